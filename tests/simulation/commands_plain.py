"""Commands on keys, strings, hashes and sorted sets, as the real servers answer them.

Only what Heddle sends is here; anything else is an error, as for a command that a server does not know.
"""

import fnmatch
import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.database import Database
from tests.simulation.values import OK, ServerError, ZSet, show_score

Args = Sequence[bytes]
Command = Callable[[Database, Args], Any]
NOT_AN_INTEGER = "ERR value is not an integer or out of range"


def whole(text: bytes) -> int:
    """An integer argument."""
    try:
        return int(text)
    except ValueError:
        raise ServerError(NOT_AN_INTEGER) from None


# ---- keys


def exists(db: Database, args: Args) -> int:
    return sum(db.raw(key) is not None for key in args)


def delete(db: Database, args: Args) -> int:
    found = 0
    for key in args:
        if db.raw(key) is not None:
            db.delete(key)
            found += 1
    return found


def pexpire(db: Database, args: Args) -> int:
    key, ms = args[0], whole(args[1])
    if db.raw(key) is None:
        return 0
    if [option.upper() for option in args[2:]] == [b"GT"] and db.now_ms + ms <= db.expires.get(key, math.inf):
        return 0
    if ms <= 0:
        db.delete(key)
    else:
        db.expires[key] = db.now_ms + ms
    return 1


def persist(db: Database, args: Args) -> int:
    return 0 if db.raw(args[0]) is None or db.expires.pop(args[0], None) is None else 1


def pttl(db: Database, args: Args) -> int:
    if db.raw(args[0]) is None:
        return -2
    deadline = db.expires.get(args[0])
    return -1 if deadline is None else deadline - db.now_ms


def rename(db: Database, args: Args) -> bytes:
    value, deadline = db.raw(args[0]), db.expires.get(args[0])
    if value is None:
        raise ServerError("ERR no such key")
    db.delete(args[0])
    db.delete(args[1])
    db.data[args[1]] = value
    if deadline is not None:
        db.expires[args[1]] = deadline
    return OK


def scan(db: Database, args: Args) -> list[Any]:
    """All at once: the cursor that comes back is 0."""
    options = {args[place].upper(): args[place + 1] for place in range(1, len(args), 2)}
    pattern = options.get(b"MATCH", b"*").decode()
    return [b"0", [key for key in db.living() if fnmatch.fnmatchcase(key.decode(), pattern)]]


# ---- strings


def get(db: Database, args: Args) -> bytes | None:
    return db.get(args[0], bytes)


def set_(db: Database, args: Args) -> Any:
    key, value = args[0], args[1]
    options = [option.upper() for option in args[2:]]
    is_there = db.raw(key) is not None
    if (b"NX" in options and is_there) or (b"XX" in options and not is_there):
        return None
    db.data[key] = bytes(value)
    if b"KEEPTTL" not in options:
        db.expires.pop(key, None)
    if b"PX" in options:
        db.expires[key] = db.now_ms + whole(options[options.index(b"PX") + 1])
    return OK


def strlen(db: Database, args: Args) -> int:
    return len(db.get(args[0], bytes) or b"")


def getrange(db: Database, args: Args) -> bytes:
    value = db.get(args[0], bytes) or b""
    begin, end = _span(whole(args[1]), whole(args[2]), len(value))
    return value[begin:end]


# ---- hashes


def hset(db: Database, args: Args) -> int:
    if len(args) % 2 == 0:
        raise ServerError("ERR wrong number of arguments for 'hset' command")
    found = db.make(args[0], dict)
    before = len(found)
    for place in range(1, len(args), 2):
        found[args[place]] = args[place + 1]
    return len(found) - before


def hsetnx(db: Database, args: Args) -> int:
    found = db.make(args[0], dict)
    if args[1] in found:
        return 0
    found[args[1]] = args[2]
    return 1


def hget(db: Database, args: Args) -> bytes | None:
    found = db.get(args[0], dict)
    return None if found is None else found.get(args[1])


def hmget(db: Database, args: Args) -> list[bytes | None]:
    found = db.get(args[0], dict) or {}
    return [found.get(name) for name in args[1:]]


def hgetall(db: Database, args: Args) -> list[bytes]:
    found = db.get(args[0], dict) or {}
    return [item for pair in found.items() for item in pair]


def hvals(db: Database, args: Args) -> list[bytes]:
    return list((db.get(args[0], dict) or {}).values())


def hdel(db: Database, args: Args) -> int:
    found = db.get(args[0], dict)
    if found is None:
        return 0
    gone = sum(found.pop(name, None) is not None for name in args[1:])
    db.drop_empty(args[0], found)
    return gone


def hincrby(db: Database, args: Args) -> int:
    step = whole(args[2])
    found = db.make(args[0], dict)
    try:
        total = int(found.get(args[1], b"0")) + step
    except ValueError:
        raise ServerError("ERR hash value is not an integer") from None
    found[args[1]] = b"%d" % total
    return total


# ---- sorted sets


def zadd(db: Database, args: Args) -> int:
    place, only_new = 1, False
    if args[1].upper() == b"NX":
        place, only_new = 2, True
    found = db.make(args[0], ZSet)
    before = len(found)
    for at in range(place, len(args), 2):
        if not (only_new and args[at + 1] in found):
            found[args[at + 1]] = float(args[at])
    return len(found) - before


def zrem(db: Database, args: Args) -> int:
    found = db.get(args[0], ZSet)
    if found is None:
        return 0
    gone = sum(found.pop(member, None) is not None for member in args[1:])
    db.drop_empty(args[0], found)
    return gone


def zcard(db: Database, args: Args) -> int:
    return len(db.get(args[0], ZSet) or ())


def zscore(db: Database, args: Args) -> bytes | None:
    score = (db.get(args[0], ZSet) or ZSet()).get(args[1])
    return None if score is None else show_score(score)


def zrank(db: Database, args: Args) -> int | None:
    found = db.get(args[0], ZSet) or ZSet()
    if args[1] not in found:
        return None
    return [member for member, _ in found.ordered()].index(args[1])


def zrange(db: Database, args: Args) -> list[bytes]:
    ordered = (db.get(args[0], ZSet) or ZSet()).ordered()
    options = [option.upper() for option in args[3:]]
    if b"REV" in options:
        ordered.reverse()
    first, last = whole(args[1]), whole(args[2])
    some = ordered[first if first >= 0 else max(0, len(ordered) + first) :]
    some = ordered[slice(*_span(first, last, len(ordered)))]
    return _members(some, scores=b"WITHSCORES" in options)


def zrevrange(db: Database, args: Args) -> list[bytes]:
    return zrange(db, [*args, b"REV"])


def zrangebyscore(db: Database, args: Args) -> list[bytes]:
    low, high = _bound(args[1], lowest=True), _bound(args[2], lowest=False)
    options = [option.upper() for option in args[3:]]
    ordered = (db.get(args[0], ZSet) or ZSet()).ordered()
    some = [(member, score) for member, score in ordered if low <= score <= high]
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        start, count = whole(options[at + 1]), whole(options[at + 2])
        some = some[start:] if count < 0 else some[start : start + count]
    return _members(some, scores=b"WITHSCORES" in options)


def zremrangebyscore(db: Database, args: Args) -> int:
    found = db.get(args[0], ZSet)
    if found is None:
        return 0
    low, high = _bound(args[1], lowest=True), _bound(args[2], lowest=False)
    gone = [member for member, score in found.items() if low <= score <= high]
    for member in gone:
        del found[member]
    db.drop_empty(args[0], found)
    return len(gone)


def _span(first: int, last: int, size: int) -> tuple[int, int]:
    begin = first if first >= 0 else max(0, size + first)
    end = last if last >= 0 else size + last
    return begin, end + 1


def _bound(text: bytes, *, lowest: bool) -> float:
    if text in (b"-inf", b"+inf", b"inf"):
        return -math.inf if text == b"-inf" else math.inf
    if not text.startswith(b"("):
        return float(text)
    return math.nextafter(float(text[1:]), math.inf if lowest else -math.inf)


def _members(some: list[tuple[bytes, float]], *, scores: bool) -> list[bytes]:
    if not scores:
        return [member for member, _ in some]
    return [item for member, score in some for item in (member, show_score(score))]


# ---- the server


def time(db: Database, args: Args) -> list[bytes]:
    return [b"%d" % (db.now_ms // 1000), b"%d" % (db.now_ms % 1000 * 1000 + db.now_us)]


def publish(db: Database, args: Args) -> int:
    db.published.append((args[0], args[1]))
    return 0


def ping(db: Database, args: Args) -> bytes:
    return OK.__class__(b"PONG")


PLAIN: dict[bytes, Command] = {
    b"EXISTS": exists,
    b"DEL": delete,
    b"UNLINK": delete,
    b"PEXPIRE": pexpire,
    b"PERSIST": persist,
    b"PTTL": pttl,
    b"RENAME": rename,
    b"SCAN": scan,
    b"GET": get,
    b"SET": set_,
    b"STRLEN": strlen,
    b"GETRANGE": getrange,
    b"HSET": hset,
    b"HSETNX": hsetnx,
    b"HGET": hget,
    b"HMGET": hmget,
    b"HGETALL": hgetall,
    b"HVALS": hvals,
    b"HDEL": hdel,
    b"HINCRBY": hincrby,
    b"ZADD": zadd,
    b"ZREM": zrem,
    b"ZCARD": zcard,
    b"ZSCORE": zscore,
    b"ZRANK": zrank,
    b"ZRANGE": zrange,
    b"ZREVRANGE": zrevrange,
    b"ZRANGEBYSCORE": zrangebyscore,
    b"ZREMRANGEBYSCORE": zremrangebyscore,
    b"TIME": time,
    b"PUBLISH": publish,
    b"PING": ping,
}
