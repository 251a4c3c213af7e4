"""The names that `import heddle` offers."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import heddle

ROOT = Path(__file__).resolve().parents[2]


def test_public_names_are_sorted_and_each_can_be_had() -> None:
    assert list(heddle.__all__) == sorted(heddle.__all__)
    for name in heddle.__all__:
        assert getattr(heddle, name) is not None, name


def test_public_names_are_known_to_dir_and_unknown_ones_are_refused() -> None:
    assert set(heddle.__all__) <= set(dir(heddle))
    assert not hasattr(heddle, "no_such_name")


def test_the_version_is_the_one_of_the_package() -> None:
    assert importlib.metadata.version("heddle-rl") == heddle.__version__


def test_error_names_load_nothing_heavy() -> None:
    code = (
        "import sys, heddle; heddle.HeddleError; print(*(set(sys.modules) & {'redis', 'pydantic', 'torch', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.split() == []
