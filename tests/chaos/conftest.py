"""Kill tests that ask for a `plane` run over one of them by default, in turn within their module, and over each in a
soak: none is left out of either run, and the default one lasts no longer than with one plane."""

from collections import Counter
from typing import Any

from tests.chaos.planes import planes_of

_PLACES = Counter[str]()


def pytest_generate_tests(metafunc: Any) -> None:
    if "plane" not in metafunc.fixturenames:
        return
    module = metafunc.module.__name__
    metafunc.parametrize("plane", planes_of(_PLACES[module]))
    _PLACES[module] += 1
