"""A server of ours that refuses, loads, stands still or is busy: it runs, is found, and is asked what its trouble is.

Its full disk is a snapshot that cannot be written, which the server answers in the same way, to PING as well.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from heddle.broker import server as servers
from heddle.broker import server_setup
from heddle.broker.server import LocalServer, find_running, start_server
from heddle.cli.root import Session, cli
from heddle.clock import SystemClock
from heddle.errors import Interrupted
from tests.helpers import eventually

FOLDER = Path(".heddle")
LOADING_S = 3.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """As `heddle up` starts it, in the current directory; one that DEBUG may have load its data again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    monkeypatch.setattr(servers, "config_text", _debuggable)
    with start_server(FOLDER) as started:
        yield started


def _debuggable(*args: Any) -> str:
    return server_setup.config_text(*args) + "enable-debug-command yes\n"


def admin(server: LocalServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True, socket_timeout=60)


def heddle(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, arguments, obj=Session())
    code = getattr(done.exception, "exit_code", done.exit_code)
    return code, f"{done.output} {done.exception or ''}"


def doctor() -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(cli, ["doctor", "-o", "json"], obj=Session())
    assert done.exit_code == 5, done.output
    return {f"{one['area']} {one['what']}": one for one in json.loads(done.stdout)["findings"]}


def refuse_writes(server: LocalServer) -> None:
    """Have it unable to write its disk: where its snapshot is to lie, a folder is."""
    (FOLDER / "dump.rdb").mkdir()
    with admin(server) as client:
        client.config_set("save", "3600 1")
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="its snapshot fails")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.ping()


@contextlib.contextmanager
def loading(server: LocalServer) -> Iterator[None]:
    """Within it, the server loads its data, for some seconds."""
    keys = 100
    with admin(server) as client, admin(server) as other:
        client.mset({f"key-{number}": os.urandom(2_000) for number in range(keys)})
        client.config_set("key-load-delay", int(1e6 * LOADING_S / keys))
        client.config_set("loading-process-events-interval-bytes", 1024)
        reload = threading.Thread(target=client.execute_command, args=("DEBUG", "RELOAD"))
        reload.start()
        try:
            eventually(lambda: other.info("persistence")["loading"] == 1, what="it loads")
            yield
        finally:
            reload.join()


def ready(server: LocalServer, given_up: Callable[[], bool] = lambda: False) -> str:
    """As a start waits."""
    return servers._wait_until_ready(server.process, server.url, FOLDER, SystemClock(), given_up)


def test_a_server_that_cannot_write_its_disk_is_found_and_told_of(server: LocalServer) -> None:
    refuse_writes(server)
    assert find_running(FOLDER) == server.url
    code, said = heddle("ls")
    assert code == 0, said
    told = doctor()
    assert told["broker writes"]["level"] == told["broker files"]["level"] == "bad"
    assert "cannot write its disk" in told["broker writes"]["says"]
    assert told["broker files"]["do"] == "make room on its disk"


def test_a_server_that_is_started_on_a_full_disk_is_taken_as_ready(server: LocalServer) -> None:
    refuse_writes(server)
    assert ready(server) == server.run_id


def test_a_server_that_loads_is_found_and_a_start_waits_for_it_however_long(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_START_TIMEOUT_S", LOADING_S / 3)
    with loading(server), admin(server) as client:
        assert find_running(FOLDER) == server.url
        assert ready(server) == server.run_id
        assert client.info("persistence")["loading"] == 0


def test_a_start_that_waits_for_a_server_to_load_says_so_and_hears_that_it_shall_end(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers, "_QUIET_S", LOADING_S / 10)
    with loading(server), pytest.raises(Interrupted) as told:
        ready(server, lambda: bool(caplog.records))
    assert "still loads its data" in caplog.text
    assert told.value.exit_code == 130 and "its data are as they were" in str(told.value)


def test_a_server_that_loads_is_no_broker_that_nobody_knows(server: LocalServer) -> None:
    with loading(server):
        told = doctor()
    assert "is there and serves nobody now" in told["broker answer"]["says"]
    assert told["broker answer"]["do"].startswith("wait: it loads its data")


def test_a_server_that_stands_still_does_not_answer_but_is_known(server: LocalServer) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert find_running(FOLDER) == server.url
        told = doctor()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert told["broker answer"]["level"] == "bad"
    assert "no answer from" in told["broker answer"]["says"]
    assert "stopped (kill -CONT)" in told["broker answer"]["do"]


def test_a_server_that_stood_still_and_was_killed_is_not_known_any_more(server: LocalServer) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running(), what="it is dead")
    assert (FOLDER / "server.json").exists()
    assert find_running(FOLDER) is None


def test_a_server_that_is_busy_with_somebodys_script_is_found(server: LocalServer) -> None:
    with admin(server) as client, admin(server) as other:
        client.config_set("lua-time-limit", 50)

        def endless() -> None:
            with contextlib.suppress(redis.ResponseError):  # it is killed
                client.eval("while true do end", 0)

        script = threading.Thread(target=endless)
        script.start()
        try:
            eventually(lambda: is_busy(other), what="it is busy")
            assert find_running(FOLDER) == server.url
        finally:
            other.script_kill()
            script.join()


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


def test_a_server_that_lets_nobody_more_in_is_found(server: LocalServer) -> None:
    # Given as many clients as it may have
    client = admin(server)
    client.config_set("maxclients", 1)
    # Then who looks in its folder finds it all the same
    assert {find_running(FOLDER) for _ in range(20)} == {server.url}
