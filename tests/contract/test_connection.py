"""What the connection promises: one line that helps for every way it can fail, no hidden retries, no secrets told."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from heddle.broker import Broker, keys, open_broker
from heddle.broker.connection import retry_delays
from heddle.broker.faults import Damaged, redact, translate
from heddle.broker.fitness import identify
from heddle.broker.scripts import names, script
from heddle.broker.server import LocalServer, restart, start_server
from heddle.errors import BrokerBlocked, BrokerFull, BrokerUnfit, BrokerUnreachable, Denied, UsageError
from tests.broker_kit import E, admit, append, claim_next, read_all, run_out
from tests.helpers import eventually

SECRET = "tr0ub4dor"


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text and SECRET not in text
    return text


# ---- who may be used


def test_nobody_there_is_said_in_one_line_with_what_to_do(tmp_path: Path) -> None:
    for url in ("redis://:tr0ub4dor@127.0.0.1:1/0", f"unix://{tmp_path}/no.sock"):
        with pytest.raises(BrokerUnreachable) as caught:
            open_broker(url, role="test")
        assert "heddle up" in one_line(caught.value) and caught.value.exit_code == 5


@pytest.mark.parametrize("url", ["http://x", "localhost:6379", "redis://host:port"])
def test_what_is_not_a_broker_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="redis://"):
        open_broker(url, role="test")


@pytest.mark.parametrize(
    ("path", "said"), [("/99", "DB index is out of range"), ("/abc", "'abc' is no database number")]
)
def test_a_database_that_is_none_is_a_usage_error_with_the_way_to_write_it(
    redis_server: LocalServer, tmp_path: Path, path: str, said: str
) -> None:
    with start_server(tmp_path / "own", port=0, binary=redis_server.settings.binary) as server:
        url = server.url.rpartition("/")[0] + path
        with pytest.raises(UsageError, match="/0$") as caught:
            open_broker(url, role="test")
        assert said in str(caught.value)


@pytest.mark.parametrize("given", ["", ":wrong-" + SECRET + "@"])
def test_a_wrong_password_is_denied_without_repeating_it(redis_server: LocalServer, tmp_path: Path, given: str) -> None:
    with start_server(
        tmp_path / "locked", bind="127.0.0.1", port=0, durability="memory", binary=redis_server.settings.binary
    ) as locked:
        host = locked.url.rpartition("@")[2]
        with pytest.raises(Denied) as caught:
            open_broker(f"redis://{given}{host}", role="test")
        assert "PASSWORD" in one_line(caught.value) and caught.value.exit_code == 6
        with open_broker(locked.url, role="test") as allowed:
            password = locked.url.partition("://:")[2].rpartition("@")[0]
            assert password and password not in allowed.conn.url_redacted
            assert allowed.conn.now_ms() > 0


def test_a_right_that_is_missing_is_denied(broker: Broker, redis_server: LocalServer, raw: redis.Redis) -> None:
    raw.acl_setuser("half", enabled=True, passwords=["+" + SECRET], keys=["*"], commands=["+ping", "+info", "+client"])
    try:
        url = redis_server.url.replace("unix://", f"unix://half:{SECRET}@")
        with open_broker(url, role="test") as half, pytest.raises(Denied) as caught:
            half.experience.flow(E, 0)
        one_line(caught.value)
    finally:
        raw.acl_deluser("half")


def test_a_server_that_evicts_is_refused_with_the_way_to_fix_it(
    redis_server: LocalServer, broker: Broker, raw: redis.Redis
) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(BrokerUnfit) as caught:
            open_broker(redis_server.url, role="test")
    finally:
        raw.config_set("maxmemory-policy", "noeviction")
    assert "CONFIG SET maxmemory-policy noeviction" in one_line(caught.value)
    assert "--maxmemory-policy noeviction" in str(caught.value) and caught.value.exit_code == 5
    open_broker(redis_server.url, role="test").close()


class OldServer:
    """Answers like a server of some version; knows four commands."""

    def __init__(self, info: str) -> None:
        self._info = info
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as lines:
                self._answer(peer, lines)

    def _answer(self, peer: socket.socket, lines: Iterator[bytes]) -> None:
        for line in lines:
            if not line.startswith(b"*"):
                continue
            words = []
            for _ in range(int(line[1:])):
                next(lines)
                words.append(next(lines).strip().upper())
            if words[0] == b"PING":
                peer.sendall(b"+PONG\r\n")
            elif words[0] == b"INFO":
                peer.sendall(b"$%d\r\n%s\r\n" % (len(self._info), self._info.encode()))
            else:
                peer.sendall(b"+OK\r\n")

    def stop(self) -> None:
        self._listener.close()


@pytest.mark.parametrize(
    ("info", "named"),
    [("redis_version:6.2.14", "redis 6.2.14"), ("redis_version:7.2.4\r\nvalkey_version:7.1.9", "valkey 7.1.9")],
)
def test_a_server_below_the_floor_is_refused_by_name_and_version(info: str, named: str) -> None:
    server = OldServer(info + "\r\nmaxmemory_policy:noeviction\r\n")
    try:
        with pytest.raises(BrokerUnfit) as caught:
            open_broker(server.url, role="test")
    finally:
        server.stop()
    assert named in one_line(caught.value) and "or newer is needed" in str(caught.value)


def test_what_answers_is_known_by_its_own_version() -> None:
    assert str(identify({"redis_version": "7.2.4", "valkey_version": "9.1.2"})) == "valkey 9.1.2"
    assert str(identify({"redis_version": "8.0"})) == "redis 8.0.0"
    assert str(identify({})) == "redis 0.0.0"


def test_a_connection_tells_what_survives(redis_server: LocalServer, tmp_path: Path) -> None:
    for durability in ("strict", "fast", "memory"):
        binary = redis_server.settings.binary
        with (
            start_server(tmp_path / durability, durability=durability, binary=binary) as server,
            open_broker(server.url, role="test") as connected,
        ):
            assert connected.conn.kept().name == durability
            assert connected.conn.uptime_ms() < 60_000


def test_what_survives_is_unknown_to_a_user_who_may_not_ask(
    redis_server: LocalServer, tmp_path: Path, raw: redis.Redis
) -> None:
    with start_server(tmp_path / "own", durability="strict", binary=redis_server.settings.binary) as server:
        admin = redis.Redis.from_url(server.url)
        admin.acl_setuser("half", enabled=True, passwords=["+" + SECRET], keys=["*"], commands=["+@all", "-config"])
        url = server.url.replace("unix://", f"unix://half:{SECRET}@")
        with open_broker(url, role="test") as half:
            assert (half.conn.kept().name, half.conn.kept().least) == ("unknown", "fast")
        admin.acl_setuser("half", enabled=True, commands=["-info"])
        with open_broker(url, role="test") as half:
            assert (half.conn.kept().name, half.conn.kept().least) == ("unknown", "memory")
        admin.close()


# ---- trouble on the way


def test_a_server_that_went_away_is_unreachable_and_found_again(redis_server: LocalServer, tmp_path: Path) -> None:
    server = start_server(tmp_path / "own", durability="strict", binary=redis_server.settings.binary)
    with open_broker(server.url, role="test") as broker:
        admit(broker, shards=1)
        lease = claim_next(broker).lease
        append(broker, lease, 1)
        server.stop()
        with pytest.raises(BrokerUnreachable):
            append(broker, lease, 2)
        with pytest.raises(BrokerUnreachable):
            broker.experience.read(E, 0, "trainer", "a", count=1, block_ms=10)
        with restart(server):
            assert append(broker, lease, 2).status == "OK"
            assert [pointer.seq for pointer in read_all(broker)] == [1, 2]


class CutReplies:
    """Between client and server: passes everything on, except replies to calls that hold `cut_on`; then it hangs up."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_on = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._path)
            cutting = threading.Event()
            threading.Thread(target=self._calls, args=(peer, server, cutting), daemon=True).start()
            threading.Thread(target=self._replies, args=(peer, server, cutting), daemon=True).start()

    def _calls(self, peer: socket.socket, server: socket.socket, cutting: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while call := peer.recv(1 << 20):
                if self.cut_on and self.cut_on in call:
                    cutting.set()
                server.sendall(call)
            server.shutdown(socket.SHUT_RDWR)

    def _replies(self, peer: socket.socket, server: socket.socket, cutting: threading.Event) -> None:
        with contextlib.suppress(OSError), peer, server:
            while (reply := server.recv(1 << 20)) and not cutting.is_set():
                peer.sendall(reply)
            peer.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._listener.close()


@pytest.fixture
def cut(redis_server: LocalServer) -> Iterator[CutReplies]:
    between = CutReplies(redis_server.url.removeprefix("unix://"))
    yield between
    between.stop()


def test_a_call_whose_reply_is_lost_is_made_once_and_told(cut: CutReplies, redis_server: LocalServer) -> None:
    with open_broker(cut.url, role="test") as far, open_broker(redis_server.url, role="test") as near:
        far.conn.now_ms()
        cut.cut_on = b"XADD"
        for _ in range(3):
            with pytest.raises(BrokerUnreachable):
                far.conn.main.xadd("stream", {"a": 1})
        assert near.conn.main.xlen("stream") == 3


def test_an_append_whose_reply_is_lost_can_be_made_again(cut: CutReplies, redis_server: LocalServer) -> None:
    with open_broker(cut.url, role="test") as far, open_broker(redis_server.url, role="test") as near:
        admit(near, shards=1)
        lease = claim_next(near).lease
        assert append(far, lease, 1).status == "OK"  # from here on the server knows the script
        cut.cut_on = b"EVALSHA"
        with pytest.raises(BrokerUnreachable):
            append(far, lease, 2)
        cut.cut_on = b""
        assert append(far, lease, 2).status == "DUP"
        assert near.experience.flow(E, 0).appended.batches == 2


def test_quiet_blocking_reads_are_no_errors(broker: Broker) -> None:
    assert broker.shards.read_ticket("nowhere", "w1", block_ms=30) is None
    assert broker.shards.read_ticket("nowhere", "w1", block_ms=30) is None


def test_blocking_reads_do_not_hold_up_other_calls(broker: Broker) -> None:
    admit(broker, shards=0)
    done = threading.Event()

    def wait() -> None:
        broker.experience.read(E, 0, "trainer", "a", count=1, block_ms=400)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(5):
        broker.conn.now_ms()
    assert not done.is_set()
    thread.join(5)
    assert done.is_set()


# ---- scripts


def test_a_server_that_forgot_the_scripts_gets_them_again(broker: Broker, raw: redis.Redis) -> None:
    admit(broker, shards=2)
    lease, other = claim_next(broker).lease, claim_next(broker).lease
    raw.script_flush()
    assert append(broker, lease, 1).status == "OK"
    raw.script_flush()
    assert [renewal.status for renewal in broker.shards.renew(E, 0, [(lease, True)], ttl_ms=9_000)] == ["OK"]
    run_out(broker, lease)
    run_out(broker, other)
    raw.script_flush()
    assert len(broker.shards.reap(E, 0, leader_epoch=7)) == 2
    assert broker.experience.flow(E, 0).appended.batches == 1


def test_of_very_many_calls_of_an_unknown_script_each_runs_once_in_order_and_the_script_is_loaded_once(
    broker: Broker, raw: redis.Redis
) -> None:
    raw.script_flush()
    loaded = raw.info("commandstats").get("cmdstat_script|load", {"calls": 0})["calls"]
    pipe = broker.conn.pipeline()
    for number in range(1_000):
        pipe.script("pool_scale", [keys.pool("p")], [number, ""])
    replies = pipe.execute()
    assert len(replies) == 1_000
    assert broker.pools.pool("p").desired == 999
    assert broker.pools.pool("p").rev == 1_000
    assert raw.info("commandstats")["cmdstat_script|load"]["calls"] == loaded + 1


def test_only_the_script_that_was_unknown_runs_again(broker: Broker, raw: redis.Redis) -> None:
    raw.script_flush()
    pipe = broker.conn.pipeline()
    pipe.incr("counter")
    pipe.script("ticket_peek", [keys.pool_tickets("p")], ["workers"])
    pipe.incr("counter")
    replies = pipe.execute()
    assert (replies[0], replies[2], len(replies[1])) == (1, 2, 1)


@pytest.mark.parametrize("name", names())
def test_every_script_loads_and_says_what_it_takes_and_answers(broker: Broker, raw: redis.Redis, name: str) -> None:
    found = script(name)
    assert raw.script_load(found.source) == found.sha
    header = "".join(line for line in found.source.splitlines(keepends=True) if line.startswith("--"))
    assert all(word in header for word in ("KEYS", "ARGV", "Reply")), name
    assert "#!lua" not in found.source


# ---- errors and delays


def test_refusals_for_want_of_memory_disk_or_replicas_are_told_apart_from_mistakes() -> None:
    refused = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
    assert isinstance(translate(refused, "u", ""), BrokerFull)
    for word in ("MISCONF Errors writing to the AOF file", "NOREPLICAS Not enough good replicas to write."):
        assert isinstance(translate(redis.exceptions.ResponseError(word), "u", ""), BrokerBlocked)
    assert not isinstance(translate(refused, "u", ""), BrokerBlocked)
    for told in ("READONLY You can't write", "You can't write"):  # as versions of redis-py have it
        assert isinstance(translate(redis.exceptions.ReadOnlyError(told), "u", ""), BrokerUnreachable)
    busy = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    assert isinstance(translate(redis.exceptions.ResponseError(busy), "u", ""), BrokerUnreachable)
    assert isinstance(translate(redis.exceptions.BusyLoadingError("LOADING"), "u", ""), BrokerUnreachable)
    assert isinstance(translate(redis.exceptions.ResponseError("MOVED 1 host:1"), "u", ""), BrokerUnfit)
    for secret, asked in (("", "asks for a password"), ("x9", "asks for another password")):
        noauth = redis.exceptions.AuthenticationError("NOAUTH Authentication required.")
        assert asked in str(translate(noauth, "u", secret))
    assert isinstance(translate(redis.exceptions.ResponseError("WRONGTYPE Operation"), "u", ""), Damaged)
    assert translate(redis.exceptions.ResponseError("ERR syntax error"), "u", "") is None


def test_a_replica_is_named_without_the_command_and_left_for_whoever_answers_at_the_address_next(
    broker: Broker, raw: redis.Redis
) -> None:
    admit(broker, shards=1)
    lease = claim_next(broker).lease
    raw.replicaof("127.0.0.1", 1)
    try:
        pipe = broker.conn.pipeline()
        pipe.set("k", "secret payload")
        ways: tuple[Callable[[], object], ...] = (
            lambda: broker.conn.main.set("k", "secret payload"),
            pipe.execute,
            lambda: append(broker, lease, 1),
        )
        for way in ways:
            before = raw.client_id()
            with pytest.raises(BrokerUnreachable, match="serves nobody now") as found:
                way()
            assert "payload" not in str(found.value)
            assert raw.client_id() != before, "it connected anew"
    finally:
        raw.replicaof("NO", "ONE")
    assert append(broker, lease, 1).status == "OK"


def test_an_endless_script_of_somebody_elses_is_waited_out(
    broker: Broker, raw: redis.Redis, redis_server: LocalServer
) -> None:
    killer = redis.Redis.from_url(redis_server.url, single_connection_client=True)
    killer.config_set("busy-reply-threshold", 50)
    stuck = threading.Thread(target=lambda: run_for_ever(redis_server.url), daemon=True)
    stuck.start()
    try:
        eventually(lambda: is_busy(raw), what="the server is busy")
        with pytest.raises(BrokerUnreachable, match="serves nobody now"):
            broker.conn.script("ticket_peek", [keys.pool_tickets("p")], ["workers"])
    finally:
        killer.script_kill()
        stuck.join(5)
        killer.config_set("busy-reply-threshold", 5000)
        killer.close()
    assert broker.conn.script("ticket_peek", [keys.pool_tickets("p")], ["workers"])


def run_for_ever(url: str) -> None:
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ResponseError, match="[Ss]cript killed"):
        client.eval("while true do end", 0)


def is_busy(raw: redis.Redis) -> bool:
    try:
        raw.get("k")
    except BrokerUnreachable:
        return True
    return False


def test_a_password_that_was_taken_before_is_waited_for_and_one_that_never_was_is_refused(tmp_path: Path) -> None:
    with start_server(tmp_path, durability="memory", port=0) as server, open_broker(server.url, role="test") as broker:
        plain = redis.Redis.from_url(server.url)
        plain.config_set("requirepass", "another one")
        plain.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(BrokerUnreachable, match="does not take the password any more"):
            broker.conn.now_ms()
        with pytest.raises(BrokerUnreachable, match="does not take the password any more"):
            broker.experience.flow(E, 0)
        with pytest.raises(Denied, match="asks for another password"):
            open_broker(server.url, role="late")
        plain.config_set("requirepass", server.settings.address.password)
        assert broker.conn.now_ms()


def test_scripts_may_be_flushed_between_loading_one_and_calling_it(broker: Broker, raw: redis.Redis) -> None:
    load, left = raw.script_load, [2]

    def load_in_vain(source: str) -> object:
        sha = load(source)
        if left[0]:
            left[0] -= 1
            raw.script_flush()
        return sha

    raw.script_flush()
    raw.script_load = load_in_vain  # type: ignore[method-assign, assignment]
    try:
        assert broker.conn.script("ticket_peek", [keys.pool_tickets("p")], ["workers"])
    finally:
        del raw.script_load
    assert left == [0]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:tr0ub4dor@h:1/0", "redis://:***@h:1/0"),
        ("rediss://me:tr0ub4dor@h", "rediss://me:***@h"),
        ("redis://h:1?password=tr0ub4dor&db=2", "redis://h:1?password=***&db=2"),
        ("unix:///a/b.sock?password=tr0ub4dor", "unix:///a/b.sock?password=***"),
        ("unix://:tr0ub4dor@/a/b.sock", "unix://:***@/a/b.sock"),
        ("unix:///a/b.sock", "unix:///a/b.sock"),
        ("redis://me@h:1", "redis://me@h:1"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_what_a_users_error_says_is_stored_even_where_it_is_no_text(broker: Broker, raw: redis.Redis) -> None:
    # Given an error that names a file by bytes that are no text, as `open` raises it
    admit(broker)
    lease = claim_next(broker).lease
    said = "no file caf\udce9.xml"
    # When the shard is given back with it, and told
    broker.shards.release(lease, error=said)
    broker.events.log(E, "worker", "w", "error", said)
    # Then both are there, readable
    assert b"no file caf\\udce9.xml" in raw.hgetall(keys.shard(E, 0, lease.shard)).values()
    assert any("caf\\udce9.xml" in event.message for event in broker.events.read(E))


def test_delays_double_up_to_a_bound_and_never_fall_in_step() -> None:
    first, second = (retry_delays(np.random.default_rng(seed), first_s=0.1, last_s=1.0) for seed in (1, 2))
    delays = [next(first) for _ in range(40)]
    assert all(0.0 < delay <= 1.0 for delay in delays)
    assert delays[0] <= 0.1 and max(delays[8:]) > 0.5
    assert delays != [next(second) for _ in range(40)]


def test_a_url_cannot_change_the_shape_of_replies(redis_server: LocalServer, pick: Callable[[str], str]) -> None:
    with open_broker(pick("decode_responses=True&protocol=3&socket_timeout=7"), role="test") as broker:
        admit(broker, shards=1)
        append(broker, claim_next(broker).lease, 1)
        assert [pointer.seq for pointer in read_all(broker)] == [1]


@pytest.fixture
def pick(redis_server: LocalServer) -> Callable[[str], str]:
    """The server's URL with options."""
    return lambda options: f"{redis_server.url}?{options}"


def test_refused_writes_are_told_in_our_words_where_errors_stand_among_the_replies_and_on_every_way_of_a_worker(
    broker: Broker, raw: redis.Redis
) -> None:
    # Given a pool whose group is there, on a server that misses its replicas from now on
    assert broker.shards.read_ticket("p", "w", block_ms=0) is None
    raw.config_set("min-replicas-to-write", 1)
    try:
        # Then a reading pipe holds our error, and who reads a ticket is told to wait, not of a fault of ours
        pipe = broker.conn.pipeline()
        pipe.set("k", "v")
        pipe.get("k")
        refused, read = pipe.execute(raise_on_error=False)
        assert isinstance(refused, BrokerBlocked) and read is None
        with pytest.raises(BrokerBlocked):
            broker.shards.read_ticket("p", "w", block_ms=0)
        with pytest.raises(BrokerBlocked):
            broker.shards.read_ticket("p", "w", block_ms=50)
        # And whoever looks is told so
        assert broker.conn.blocked().startswith("misses replicas")
    finally:
        raw.config_set("min-replicas-to-write", 0)
    assert broker.conn.blocked() == ""
