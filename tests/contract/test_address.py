"""How a broker is reached: passwords in URLs and files, users, TLS, on real servers; each mistake in one line."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from heddle.broker import open_broker
from heddle.broker.server import LocalServer, start_server
from heddle.broker.server_setup import Address, choose_address, config_text
from heddle.errors import BrokerUnfit, BrokerUnreachable, Denied, HeddleError, UsageError
from tests.helpers import eventually

SECRET = "canary-7f3a2b"


def one_line(error: BaseException) -> str:
    assert isinstance(error, HeddleError)
    assert "\n" not in str(error)
    assert SECRET not in str(error)
    return str(error)


@pytest.fixture
def locked(redis_server: LocalServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server that wants a password."""
    binary = redis_server.settings.binary
    with start_server(tmp_path / "locked", port=0, durability="memory", binary=binary) as server:
        client: Any = redis.Redis.from_url(server.url)
        client.execute_command("ACL", "SETUSER", "ada", "on", f">{SECRET}", "~*", "&*", "+@all")
        client.close()
        yield server


def test_a_password_comes_from_a_file(locked: LocalServer) -> None:
    assert "@" not in locked.shown_url
    with open_broker(locked.shown_url, role="test") as broker:
        assert broker.conn.now_ms() > 0
        password = locked.settings.address.password
        assert password not in broker.conn.url_redacted
        assert broker.conn.main.secret == password


def test_a_user_logs_in_with_a_password_in_the_url_or_in_a_file(locked: LocalServer, tmp_path: Path) -> None:
    address = locked.url.rpartition("@")[2]
    file = tmp_path / "ada"
    file.write_text(SECRET + "\n")
    for url in (f"redis://ada:{SECRET}@{address}", f"redis://ada@{address}?password_file={file}"):
        with open_broker(url, role="test") as broker:
            assert broker.conn.main.acl_whoami() in ("ada", b"ada")
            assert SECRET not in broker.conn.url_redacted
    for url in (f"redis://ada:guess@{address}", f"redis://eve@{address}?password_file={file}", f"redis://{address}"):
        with pytest.raises(Denied) as caught:
            open_broker(url, role="test")
        assert "password_file=FILE" in one_line(caught.value)


def test_a_password_that_is_changed_in_its_file_is_used_by_the_next_connection(
    locked: LocalServer, tmp_path: Path
) -> None:
    address = locked.url.rpartition("@")[2]
    file = tmp_path / "ada"
    file.write_text("old")
    admin: Any = redis.Redis.from_url(locked.url)
    admin.execute_command("ACL", "SETUSER", "ada", ">old")
    with open_broker(f"redis://ada@{address}?password_file={file}", role="test") as broker:
        file.write_text("new")
        admin.execute_command("ACL", "SETUSER", "ada", "resetpass", ">new")
        admin.execute_command("CLIENT", "KILL", "USER", "ada")

        def works() -> bool:
            try:
                return broker.conn.now_ms() > 0
            except BrokerUnreachable:
                return False

        eventually(works)
    admin.close()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("password_file=/no/such/file", "No such file"),
        ("password_file=/", "Is a directory"),
        ("password_file=", "password"),
        ("password_file={empty}", "no password in the first line"),
        ("password_file={binary}", "no text"),
        ("nonsense=1", "nonsense"),
        ("ssl_ca_certs=/no/such/ca.pem", "ssl_ca_certs|unexpected keyword"),
        ("socket_timeout=soon", "socket_timeout"),
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_mistake_in_the_url_is_told_before_anything_is_sent(
    tmp_path: Path, query: str, said: str, scheme: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    filled = query.format(empty=tmp_path / "empty", binary=tmp_path / "binary")
    with pytest.raises(UsageError, match=said) as caught:
        open_broker(f"{scheme}://127.0.0.1:1/0?{filled}", role="test")
    one_line(caught.value)


@pytest.mark.parametrize("sign", ["/", "#", "?", "@", "[", "/x@y", "/?a#", "]"])
@pytest.mark.parametrize("user", ["", "ada"])
def test_a_password_that_was_not_encoded_is_hidden_all_the_same(sign: str, user: str) -> None:
    with pytest.raises(UsageError, match=r"in a password write .*%") as caught:
        open_broker(f"redis://{user}:{SECRET}{sign}{SECRET}@127.0.0.1:1/0", role="test")
    assert f"redis://{user}:***@127.0.0.1:1/0" in one_line(caught.value)


def test_two_passwords_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(SECRET)
    with pytest.raises(UsageError, match="leave one of them out") as caught:
        open_broker(f"redis://:{SECRET}@127.0.0.1:1/0?password_file={tmp_path / 'file'}", role="test")
    one_line(caught.value)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", BrokerUnfit, "not as Redis does"),
        (b"\x00\xff garbage\r\n", BrokerUnfit, "not as Redis does"),
        (b"-ERR unknown command 'PING'\r\n", Denied, "no proxy, no renamed commands"),
        (b"", BrokerUnreachable, "no answer from"),
    ],
)
def test_another_service_at_the_address_is_told_as_such(answer: bytes, kind: type[HeddleError], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    with listening.accept()[0] as client:
                        client.recv(4096)
                        client.sendall(answer)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(kind) as caught:
            open_broker(f"redis://127.0.0.1:{listening.getsockname()[1]}", role="test")
        assert said in one_line(caught.value)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_a_server_that_others_can_reach_is_never_set_up_without_a_password(bind: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a password"):
        config_text(tmp_path, Address(bind=bind, port=6379), "fast", 1)
    assert "requirepass" in config_text(tmp_path, Address(bind=bind, port=6379, password=SECRET), "fast", 1)
    with start_server(tmp_path / "bound", bind="0.0.0.0", port=0, durability="memory") as server:
        client = redis.Redis(host="127.0.0.1", port=server.settings.address.port)
        with pytest.raises(redis.AuthenticationError):
            client.ping()
        client.close()


# ---- TLS


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of a server at 127.0.0.1 and of a client, in one folder."""
    if shutil.which("openssl") is None:
        if os.environ.get("HEDDLE_ALL_SERVERS"):
            pytest.fail("no openssl on PATH, and HEDDLE_ALL_SERVERS is set")
        pytest.skip("no openssl on PATH")
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*argv: str) -> None:
        subprocess.run(["openssl", *argv], cwd=folder, check=True, capture_output=True)

    new = ["req", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    for ca in ("ca", "other-ca"):
        openssl(*new, "-x509", "-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, ca in (("server", "ca"), ("client", "ca"), ("stranger", "other-ca")):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ["x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial"]
        openssl(*signing, "-days", "2", "-extfile", "san", "-out", f"{name}.pem")
    return folder


@pytest.fixture(scope="module")
def tls(pki: Path, server_of: Callable[[str], LocalServer]) -> Iterator[str]:
    """The address of a server that speaks TLS only and asks for a certificate and a password."""
    program = server_of("redis").settings.binary.path
    with socket_of_nobody() as port:
        config = f"port 0\ntls-port {port}\nbind 127.0.0.1\nsave ''\nrequirepass {SECRET}\ndir {pki}\n"
    config += f"tls-cert-file {pki}/server.pem\ntls-key-file {pki}/server.key\ntls-ca-cert-file {pki}/ca.pem\n"
    process = subprocess.Popen([str(program), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as pipe:
        pipe.write(config)
    said = ""
    for line in process.stdout:
        said += line
        if "eady to accept connections" in line:
            break
    else:
        if os.environ.get("HEDDLE_ALL_SERVERS"):
            pytest.fail(f"the redis-server on PATH has no TLS: {said}")
        pytest.skip("the redis-server on PATH has no TLS")
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait(10)
    process.stdout.close()


@contextlib.contextmanager
def socket_of_nobody() -> Iterator[int]:
    """A port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield int(free.getsockname()[1])


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(SECRET)
    return file


def test_tls_with_a_ca_and_a_client_certificate(tls: str, pki: Path, password_file: Path) -> None:
    files = f"ssl_ca_certs={pki}/ca.pem&ssl_certfile={pki}/client.pem&ssl_keyfile={pki}/client.key"
    for url in (f"rediss://:{SECRET}@{tls}/0?{files}", f"rediss://{tls}/0?{files}&password_file={password_file}"):
        with open_broker(url, role="test") as broker:
            assert broker.conn.now_ms() > 0
            pipe = broker.conn.pipeline()
            pipe.set("k", memoryview(b"x" * 1_000_000))
            pipe.get("k")
            assert len(pipe.execute()[1]) == 1_000_000
            assert broker.conn.blocking().xread({"s": "$"}, block=10) in ([], None)


@pytest.mark.parametrize(
    ("scheme", "files", "said"),
    [
        ("rediss", "ssl_certfile={pki}/client.pem&ssl_keyfile={pki}/client.key", "ssl_ca_certs=FILE"),
        ("rediss", "ssl_ca_certs={pki}/other-ca.pem", "ssl_ca_certs=FILE"),
        ("rediss", "ssl_ca_certs={pki}/ca.pem", "certificate|no answer"),
        (
            "rediss",
            "ssl_ca_certs={pki}/ca.pem&ssl_certfile={pki}/stranger.pem&ssl_keyfile={pki}/stranger.key",
            "certificate|no answer",
        ),
        ("redis", "socket_timeout=1", "no answer"),
    ],
)
def test_what_is_wrong_with_tls_is_said_with_what_to_do(
    tls: str, pki: Path, scheme: str, files: str, said: str
) -> None:
    with pytest.raises(BrokerUnreachable, match=said) as caught:
        open_broker(f"{scheme}://:{SECRET}@{tls}/0?{files.format(pki=pki)}", role="test")
    one_line(caught.value)


def test_tls_to_a_server_that_has_none_says_so(locked: LocalServer) -> None:
    address = locked.url.rpartition("@")[2]
    with pytest.raises(BrokerUnreachable, match="does not speak TLS|no answer") as caught:
        open_broker(f"rediss://:{SECRET}@{address}?socket_timeout=1", role="test")
    one_line(caught.value)


def test_a_name_to_listen_on_that_has_no_address_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--bind no such host: no address of that name"):
        choose_address(tmp_path, "no such host", None)
