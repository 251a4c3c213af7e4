"""Finding the broker and loading specs, as Python users and commands share it."""

from pathlib import Path

import pytest

from heddle.client import find_url, load_source
from heddle.errors import BrokerUnreachable, NotFound, SpecError

TEXT = '[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\n[rollout]\nsync = true\n[budget]\nenv_steps = 10_000\n'
TABLES = {
    "experiment": {"name": "a"},
    "env": {"id": "CartPole-v1"},
    "rollout": {"sync": True},
    "budget": {"env_steps": 10_000},
}


def test_a_spec_is_the_same_as_text_path_mapping_or_model(tmp_path: Path) -> None:
    path = tmp_path / "exp.toml"
    path.write_text(TEXT)
    text = load_source(TEXT)
    digests = {load_source(one).spec.sha256() for one in (TEXT, path, str(path), TABLES, text.spec)}
    assert digests == {text.spec.sha256()}


def test_overrides_and_name_apply_to_every_kind() -> None:
    for source in (TEXT, TABLES, load_source(TEXT).spec):
        loaded = load_source(source, overrides=["trainer.gamma=0.5"], name="other")
        assert loaded.spec.trainer.gamma == 0.5
        assert loaded.spec.experiment.name == "other"


def test_what_cannot_be_read_or_is_wrong_says_so() -> None:
    with pytest.raises(NotFound):
        load_source("nowhere.toml")
    with pytest.raises(SpecError):
        load_source({"experiment": {"name": "a"}})


def test_the_broker_is_the_given_one_then_the_environments_then_that_of_this_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_REDIS_URL", "redis://env")
    assert find_url("redis://given") == "redis://given"
    assert find_url() == "redis://env"
    monkeypatch.delenv("HEDDLE_REDIS_URL")
    with pytest.raises(BrokerUnreachable, match="heddle up"):
        find_url()
