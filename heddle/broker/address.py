"""The broker's address: a URL, and the secrets and certificates in the files that it names.

It never opens a connection, and nothing that it says holds a password.

    redis://user:password@host:6379/0                       a password in the URL
    redis://user@host:6379/0?password_file=/run/secret      in a file: for all that others can see
    rediss://host:6379/0?ssl_ca_certs=ca.pem&ssl_certfile=me.pem&ssl_keyfile=me.key         TLS, with a certificate
    unix:///path/to/redis.sock
"""

import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import redis

from heddle.broker.faults import redact, split_options
from heddle.errors import UsageError

log = logging.getLogger("heddle.broker")

PASSWORD_OPTION = "password_file"
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path")
LONGEST_PASSWORD = 4_096


class FilePassword(redis.CredentialProvider):
    """A user's password as its file has it at each new connection, so that it may be changed under way.

    Attributes:
        secret: the password as last read.
    """

    def __init__(self, username: str, file: Path) -> None:
        self.secret = read_password(file)
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            self.secret = read_password(self._file)
        except UsageError as error:
            log.warning("going on with the password as it was error=%s", error)
        return (self._username, self.secret) if self._username else (self.secret,)


def read_password(file: Path) -> str:
    """The first line of a file. Raises UsageError."""
    try:
        with file.expanduser().open(encoding="utf-8") as opened:
            password = opened.readline(LONGEST_PASSWORD + 1).rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read the broker's password from {file}: {reason}") from None
    if not password or len(password) > LONGEST_PASSWORD:
        raise UsageError(f"there is no password in the first line of {file}")
    return password


def open_pool(url: str, **kwargs: Any) -> redis.BlockingConnectionPool:
    """A pool of connections to `url`, none of them opened yet.

    Raises:
        UsageError: not a broker URL, or a file that it names is not there.
    """
    _check_password(url)
    plain, password_file = _split(url)
    try:
        pool = redis.BlockingConnectionPool.from_url(plain, **kwargs)
        options = pool.connection_kwargs
        if password_file is not None:
            if options.get("password"):
                raise UsageError(f"{redact(url)} has a password and names a file with one; leave one of them out")
            options["credential_provider"] = FilePassword(options.pop("username", None) or "", Path(password_file))
            options.pop("password", None)
        _check_files(options)
        pool.connection_class(**options)  # an option that there is not is found here
    except (ValueError, TypeError, redis.RedisError) as error:
        said = " ".join(str(error).split()).replace("AbstractConnection.__init__() ", "")
        raise UsageError(f"not a broker URL: {redact(url)}; write redis://host:6379 or unix:///path: {said}") from None
    return pool


def secret_of(pool: redis.BlockingConnectionPool) -> str:
    """The password that connections of a pool use; "" for none."""
    provider = pool.connection_kwargs.get("credential_provider")
    if isinstance(provider, FilePassword):
        return provider.secret
    return str(pool.connection_kwargs.get("password") or "")


def _check_password(url: str) -> None:
    """A URL's reader ends the host's part at the first of these, and says in its error what it found there.

    Raises:
        UsageError: the password has one of them.
    """
    user = split_options(url)[0].partition("://")[2].rpartition("@")[0]
    if not url.startswith("unix:") and (bad := sorted({*user} & {*"/?#@[]"})):
        wants = ", ".join(f"{quote(character, safe='')} for {character}" for character in bad)
        raise UsageError(
            f"not a broker URL: {redact(url)}: in a password write {wants}; or name a file: ?{PASSWORD_OPTION}=FILE"
        )


def _split(url: str) -> tuple[str, str | None]:
    """The URL without `password_file`, and that."""
    if PASSWORD_OPTION not in url:
        return url, None
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError as error:
        raise UsageError(f"not a broker URL: {redact(url)}: {error}") from None
    named = [value for name, value in options if name == PASSWORD_OPTION]
    rest = urlencode([(name, value) for name, value in options if name != PASSWORD_OPTION])
    return urlunsplit(parts._replace(query=rest)), named[-1] if named else None


def _check_files(options: dict[str, Any]) -> None:
    for name in FILES:
        value = options.get(name)
        if value and not Path(str(value)).exists():
            raise UsageError(f"{name} of the broker's URL is not there: {value}")
