"""Which broker a command takes where none is named: of `heddle up`, else of the only `heddle run` of this folder."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.broker import open_broker
from heddle.broker.server import start_server
from heddle.cli.root import Session, cli
from tests.trainer_kit import submit

UP, RUN, SECOND = Path(".heddle"), Path(".heddle/run"), Path(".heddle/run-2")


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """What ends the servers that a test starts in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    with ExitStack() as stack:
        yield stack


def serve(servers: ExitStack, folder: Path) -> str:
    """A server there with an experiment; its id."""
    server = servers.enter_context(start_server(folder))
    with open_broker(server.url, role="client") as broker:
        return submit(broker)


def heddle(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, arguments, obj=Session())
    return getattr(done.exception, "exit_code", done.exit_code), f"{done.output} {done.exception or ''}"


def listed() -> list[str]:
    code, said = heddle("ls", "-o", "name")
    assert code == 0, said
    return said.split()


def test_beside_a_run_whoever_looks_and_steers_finds_its_broker(servers: ExitStack) -> None:
    made = serve(servers, RUN)
    assert listed() == [made]
    for command in ("status", "why", "pause", "resume", "shards"):
        code, said = heddle(command, made)
        assert code == 0, said
    code, said = heddle("doctor", "-o", "json")
    told = {f"{one['area']} {one['what']}": one for one in json.loads(said)["findings"]}
    assert told["broker answer"]["level"] == "ok", said


def test_what_is_to_stay_is_not_brought_to_a_run_that_ends(servers: ExitStack) -> None:
    made = serve(servers, RUN)
    Path("exp.toml").write_text('[experiment]\nname = "x"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 1000\n')
    for brings in (
        ("enqueue", "exp.toml", "--no-check"),
        ("enqueue", "--resume", made),
        ("coordinator",),
        ("trainer",),
    ):
        code, said = heddle(*brings)
        assert (code, "no broker is known" in said) == (5, True), said
    assert listed() == [made]


def test_of_two_runs_none_is_taken_and_each_is_named(servers: ExitStack) -> None:
    serve(servers, RUN), serve(servers, SECOND)
    code, said = heddle("ls")
    assert code == 5
    for folder in (RUN, SECOND):
        assert f"a `heddle run` works here, look at it with --redis-url unix://{folder.resolve()}" in said


def test_heddle_up_comes_first(servers: ExitStack) -> None:
    serve(servers, RUN)
    made = serve(servers, UP)
    assert listed() == [made]
