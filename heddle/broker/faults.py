"""Faults: what redis-py raises, said in Heddle's errors, in one line and without secrets.

This module never decides whether a call is repeated.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis import exceptions as theirs

from heddle.broker.kinds import Suspects
from heddle.errors import (
    BrokerAmiss,
    BrokerBlocked,
    BrokerFull,
    BrokerUnfit,
    BrokerUnreachable,
    Denied,
    HeddleError,
    UsageError,
)

BLOCKED = {
    "MISCONF": "cannot write its disk, so it refuses every write until it can",
    "NOREPLICAS": "misses replicas that it must have, so it refuses every write until they are back",
}
"""Starts of errors that mean: not even what frees room is allowed; nothing was stored, and that may pass."""
NOT_SERVING = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY")
"""Starts of errors of a server that is starting, changing roles, or busy with somebody's endless script."""
SERVES_NOBODY = "is there and serves nobody now"
CHANGING_ROLES = theirs.ReadOnlyError | theirs.MasterDownError | theirs.ClusterDownError | theirs.TryAgainError
"""The same by class: some versions of redis-py cut the start off."""
THEIRS = (theirs.ConnectionError, theirs.TimeoutError, theirs.ResponseError, theirs.InvalidResponse)
"""What trouble with a server comes as."""
TLS_TROUBLE = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate cannot be trusted; name its CA: rediss://HOST:PORT?ssl_ca_certs=FILE",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; write redis:// instead of rediss://",
    "CERTIFICATE_REQUIRED": "it asks for a certificate; name yours: rediss://HOST:PORT?ssl_certfile=FILE&ssl_keyfile=FILE",
    "UNKNOWN_CA": "it does not trust our certificate; name one that it does: ssl_certfile=FILE&ssl_keyfile=FILE",
}
"""What OpenSSL says, and what to do."""
NOT_OURS = re.compile(
    r"(?:ERR )?(?:(?:hash )?value is not an integer|value is not a valid float"
    r"|.*user_script.*attempt to (?:perform arithmetic|compare|concatenate|index))"
)
"""Starts of errors over a field that is no number any more, in a command and in a script."""
PIPELINE_PREFIX = re.compile(r"^((?:[A-Z]+ )?)Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)


class Damaged(HeddleError, theirs.ResponseError):
    """Somebody put something of another kind in the place of a key. It is that key's trouble, not the server's."""


class NoNumber(Damaged, ValueError):
    """Somebody put something else in the place of a number."""


class Odd(NoNumber):
    """A number that somebody's hand made none was read as nothing: it can be written anew, and nobody is harmed."""


OPTIONS = re.compile(r"\?(?=[a-z_]+=)")


def redact(url: str) -> str:
    """`url` without its password, even where that was not encoded as it should be."""
    where, mark, options = split_options(url)
    shown = [option if not option.startswith("password=") else "password=***" for option in options.split("&")]
    return re.sub(r"^([a-z]+://[^:@/]*):.*@", r"\1:***@", where) + mark + "&".join(shown)


def split_options(url: str) -> tuple[str, str, str]:
    """`url` up to its options, "?" and those; a question mark may also be part of a password that was not encoded."""
    begins = OPTIONS.search(url)
    return (url[: begins.start()], "?", url[begins.end() :]) if begins else (url, "", "")


@contextmanager
def translated(
    url: str, secret: str, *, known: bool = False, suspects: Callable[[], Suspects] = Suspects
) -> Iterator[None]:
    """Within it, trouble with the server at `url` becomes a HeddleError; other ResponseErrors pass.

    Args:
        url: redacted already.
        secret: a password that no message may hold; "" for none.
        known: the server let us in before, see `translate`.
        suspects: the keys of the command that failed.
    """
    try:
        yield
    except (*THEIRS, OSError) as error:
        ours = translate(error, url, secret, known=known, suspects=suspects)
        if ours is None:
            raise
        # The original names hosts and reasons, never passwords; but it is cut off where it might.
        raise ours from (None if secret and secret in str(error) else error)


def translate(
    error: Exception, url: str, secret: str, *, known: bool = False, suspects: Callable[[], Suspects] = Suspects
) -> HeddleError | None:
    """The error of ours that says what `error` means; None when it is not about the server as a whole.

    Args:
        known: the server took this password before: one that does not any more is being set up anew, and waited for.
        suspects: the keys of the command that failed.
    """
    told = PIPELINE_PREFIX.sub(r"\1", str(error))  # it repeats the whole command, payload and all
    reason = " ".join(told.split()) or type(error).__name__
    if secret:
        reason = reason.replace(secret, "***")
    word = reason.split(" ", 1)[0].rstrip(":")
    if word in BLOCKED:
        return BrokerBlocked(f"{url} {BLOCKED[word]}: {reason}")
    if isinstance(error, theirs.OutOfMemoryError) or word == "OOM":
        return BrokerFull(f"{url} refused to store anything for now: {reason}")
    if isinstance(error, theirs.NoPermissionError):
        return Denied(f"{url} does not allow this to the user of its URL: {reason}")
    if isinstance(error, theirs.AuthenticationError | theirs.AuthorizationError) or word in ("NOAUTH", "WRONGPASS"):
        if known:
            return BrokerUnreachable(f"{url} does not take the password any more that it took before ({reason})")
        return Denied(
            f"{url} asks for {'another' if secret else 'a'} password ({reason}); write redis://:PASSWORD@HOST:PORT, or "
            "redis://HOST:PORT?password_file=FILE"
        )
    if isinstance(error, theirs.BusyLoadingError | CHANGING_ROLES) or word in NOT_SERVING:
        return BrokerUnreachable(f"{url} {SERVES_NOBODY}: {reason}")
    if isinstance(error, theirs.ConnectionError | theirs.TimeoutError | OSError):
        return BrokerUnreachable(f"no answer from {url}: {_advised(reason)}")
    if isinstance(error, theirs.InvalidResponse) and known:
        return BrokerUnreachable(f"{url} gave an answer that Redis never gives ({reason}): its bytes were damaged")
    return _wrong_address(error, word, reason, url) or _damaged(word, reason, url, suspects)


def _damaged(word: str, reason: str, url: str, asked: Callable[[], Suspects]) -> HeddleError | None:
    """A key, or a field in one, is not what Heddle put there: its experiment's trouble, or everybody's."""
    is_of_kind = word == "WRONGTYPE"
    if not is_of_kind and not NOT_OURS.match(reason):
        return None
    suspects = asked()
    amiss = suspects.find() if is_of_kind else None
    whose = amiss.experiment if amiss is not None else ""
    if amiss is not None and not whose:
        told = f"{amiss}; nobody can go on with it until it is removed: redis-cli DEL {amiss.key}"
        return BrokerAmiss(f"{url}: {told} ({reason})", key=amiss.key)
    if amiss is None and suspects.are_shared:
        told = f"{' or '.join(suspects.names)} holds what Heddle did not write; look at it, then redis-cli DEL it"
        return BrokerAmiss(f"{url}: {told} ({reason})", key=suspects.names[0])
    if amiss is not None:
        mended = "a coordinator mends it, or ends the experiment over it"
        return Damaged(f"{url}: {amiss}; {mended}, see heddle why {whose}: {reason}")
    what = "a key of another kind than Heddle put there" if is_of_kind else "a field that Heddle did not write"
    return Damaged(f"{url} holds {what}, `heddle rm EXP` clears up: {reason}")


def _wrong_address(error: Exception, word: str, reason: str, url: str) -> HeddleError | None:
    """Something answers at `url`, and not what is asked for."""
    if "DB index" in reason:
        form = "unix:///PATH?db=0" if url.startswith("unix:") else "redis://HOST:PORT/0"
        return UsageError(f"{url} has no database of that number ({reason}); write {form}")
    if isinstance(error, theirs.InvalidResponse):
        return BrokerUnfit(f"{url} answers, but not as Redis does ({reason}); is another service at that port?")
    if reason.lower().startswith("unknown command"):
        return Denied(f"{url} does not know a command ({reason}); use a plain Redis, no proxy, no renamed commands")
    if isinstance(error, theirs.AskError) or word in ("MOVED", "ASK"):
        return BrokerUnfit(f"{url} is one node of a cluster of several; use a single server")
    return None


def _advised(reason: str) -> str:
    """Why nobody answers, and what to do."""
    advice = next((advice for sign, advice in TLS_TROUBLE.items() if sign in reason), "")
    if advice:
        return f"{advice} ({reason})"
    if "timeout" in reason.lower() or "timed out" in reason.lower():  # a new server would not help: one may be there
        return f"{reason.rstrip('.')}; check that it runs there, and that it is neither stopped (kill -CONT) nor busy"
    return f"{reason.rstrip('.')}; check that it runs there, or start one with `heddle up`"
