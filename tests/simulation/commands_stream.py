"""Commands on streams and their groups, as the real servers answer them.

It never blocks: a read that finds nothing answers None, and the server decides whether it waits.
"""

from collections.abc import Iterable
from typing import Any

from tests.simulation.commands_plain import Args, Command, whole
from tests.simulation.database import Database
from tests.simulation.values import OK, Group, Id, Pending, ServerError, Stream, parse_id, show_id

Entry = list[Any]
LAST = 1 << 62
SMALLER = "ERR The ID specified in XADD is equal or smaller than the target stream top item"


# ---- entries


def xadd(db: Database, args: Args) -> bytes:
    key, place, limit = args[0], 1, None
    if args[place].upper() == b"MAXLEN":
        exact = args[place + 1] not in (b"~", b"=")
        limit = whole(args[place + (1 if exact else 2)])
        place += 2 if exact else 3
    stream = db.make(key, Stream)
    made = _new_id(db, key, stream, args[place])
    stream.entries[made] = tuple(args[place + 1 :])
    stream.last = made
    if limit is not None:
        _trim(stream, limit)
    db.woken.add(key)
    return show_id(made)


def _new_id(db: Database, key: bytes, stream: Stream, text: bytes) -> Id:
    last = stream.last
    if text == b"*" and db.told_ids.get(key, last) > last:
        return db.told_ids[key]
    if text == b"*":
        return (db.now_ms, 0) if db.now_ms > last[0] else (last[0], last[1] + 1)
    made = parse_id(text, missing=0)
    if made <= last:
        raise ServerError(SMALLER)
    return made


def _trim(stream: Stream, limit: int) -> int:
    doomed = list(stream.entries)[: max(0, len(stream.entries) - limit)]
    for place in doomed:
        del stream.entries[place]
    return len(doomed)


def xtrim(db: Database, args: Args) -> int:
    """With "~" a real server trims whole nodes of a hundred entries or so; this one never trims then."""
    stream = db.get(args[0], Stream)
    if stream is None or args[2] == b"~":
        return 0
    return _trim(stream, whole(args[-1]))


def xdel(db: Database, args: Args) -> int:
    stream = db.get(args[0], Stream)
    if stream is None:
        return 0
    return sum(stream.entries.pop(parse_id(one, missing=0), None) is not None for one in args[1:])


def xlen(db: Database, args: Args) -> int:
    stream = db.get(args[0], Stream)
    return 0 if stream is None else len(stream.entries)


def xrange(db: Database, args: Args) -> list[Entry]:
    return _range(db, args[0], args[1], args[2], _count(args[3:]), backwards=False)


def xrevrange(db: Database, args: Args) -> list[Entry]:
    return _range(db, args[0], args[2], args[1], _count(args[3:]), backwards=True)


def xread(db: Database, args: Args) -> list[Any] | None:
    upper = [arg.upper() for arg in args]
    at = upper.index(b"STREAMS")
    key, after = args[at + 1], args[at + 2]
    stream = db.get(key, Stream)
    if stream is None:
        return None
    place = stream.last if after == b"$" else parse_id(after, missing=0)
    found = [_entry(one, fields) for one, fields in stream.entries.items() if one > place]
    count = _count(args[:at])
    return [[key, found[:count] if count else found]] if found else None


def _range(db: Database, key: bytes, low: bytes, high: bytes, count: int | None, *, backwards: bool) -> list[Entry]:
    stream = db.get(key, Stream)
    if stream is None or count == 0:
        return []
    if low == high and not low.startswith(b"(") and low not in (b"-", b"+"):
        place = parse_id(low, missing=0)
        fields = stream.entries.get(place)
        return [] if fields is None else [_entry(place, fields)]
    first, last = _edge(low, low_end=True), _edge(high, low_end=False)
    found = [_entry(place, fields) for place, fields in stream.entries.items() if first <= place <= last]
    if backwards:
        found.reverse()
    return found if count is None else found[:count]


def _edge(text: bytes, *, low_end: bool) -> Id:
    if text == b"-":
        return (0, 0)
    if text == b"+":
        return (LAST, LAST)
    if not text.startswith(b"("):
        return parse_id(text, missing=0 if low_end else LAST)
    first, second = parse_id(text[1:], missing=0)
    return (first, second + 1) if low_end else (first, second - 1)


def _entry(place: Id, fields: Iterable[bytes]) -> Entry:
    return [show_id(place), list(fields)]


def _count(options: Args) -> int | None:
    upper = [option.upper() for option in options]
    return whole(upper[upper.index(b"COUNT") + 1]) if b"COUNT" in upper else None


# ---- groups


def xgroup(db: Database, args: Args) -> Any:
    verb, key, name = args[0].upper(), args[1], args[2]
    if verb == b"CREATE":
        return _make_group(db, key, name, args[3], make_stream=b"MKSTREAM" in [arg.upper() for arg in args[4:]])
    stream = db.get(key, Stream)
    if stream is None:
        raise ServerError(
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
            "MKSTREAM option to create an empty stream automatically."
        )
    if verb == b"DESTROY":
        return int(stream.groups.pop(name, None) is not None)
    group = _group(stream, key, name)
    if verb == b"DELCONSUMER":
        group.consumers.pop(args[3], None)
        held = [place for place, one in group.pending.items() if one.consumer == args[3]]
        for place in held:
            del group.pending[place]
        return len(held)
    if verb == b"SETID":
        group.last = stream.last if args[3] == b"$" else parse_id(args[3], missing=0)
        return OK
    raise ServerError(f"ERR unknown subcommand '{verb.decode()}'. Try XGROUP HELP.")


def _make_group(db: Database, key: bytes, name: bytes, start: bytes, *, make_stream: bool) -> Any:
    stream = db.get(key, Stream)
    if stream is None and not make_stream:
        raise ServerError(
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
            "MKSTREAM option to create an empty stream automatically."
        )
    stream = db.make(key, Stream)
    if name in stream.groups:
        raise ServerError("BUSYGROUP Consumer Group name already exists")
    stream.groups[name] = Group(stream.last if start == b"$" else parse_id(start, missing=0))
    return OK


def _group(stream: Stream | None, key: bytes, name: bytes, command: str = "") -> Group:
    group = None if stream is None else stream.groups.get(name)
    if group is None:
        if command:
            where = f"'{key.decode()}' or consumer group '{name.decode()}' in {command}"
            raise ServerError(f"NOGROUP No such key {where}")
        raise ServerError(f"NOGROUP No such consumer group '{name.decode()}' for key name '{key.decode()}'")
    return group


def xreadgroup(db: Database, args: Args) -> list[Any] | None:
    upper = [arg.upper() for arg in args]
    at = upper.index(b"STREAMS")
    name, consumer, key = args[1], args[2], args[at + 1]
    stream = db.get(key, Stream)
    group = _group(stream, key, name, "XREADGROUP with GROUP option")
    assert stream is not None and args[at + 2] == b">", "only new entries are ever asked for"
    group.consumers[consumer] = db.now_ms
    count = _count(args[:at])
    found = []
    if stream.last > group.last:
        for place, fields in stream.entries.items():
            if place > group.last:
                found.append(_entry(place, fields))
                group.pending[place] = Pending(consumer, db.now_ms, 1)
                group.last = place
                if count is not None and len(found) >= count:
                    break
    return [[key, found]] if found else None


def xack(db: Database, args: Args) -> int:
    stream = db.get(args[0], Stream)
    group = None if stream is None else stream.groups.get(args[1])
    if group is None:
        return 0
    return sum(group.pending.pop(parse_id(one, missing=0), None) is not None for one in args[2:])


def xautoclaim(db: Database, args: Args) -> list[Any]:
    key, name, consumer, idle = args[0], args[1], args[2], whole(args[3])
    stream = db.get(key, Stream)
    group = _group(stream, key, name, "XAUTOCLAIM") if stream is not None and name in stream.groups else None
    if group is None or stream is None:
        raise ServerError(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
    group.consumers[consumer] = db.now_ms
    start, ids_only = _edge(args[4], low_end=True), b"JUSTID" in [arg.upper() for arg in args[5:]]
    count = _count(args[5:]) or 100
    found: list[Any] = []
    deleted: list[bytes] = []
    attempts = 10 * count
    due = sorted(place for place in group.pending if place >= start)
    while due and attempts > 0 and count > 0:
        attempts -= 1
        place = due.pop(0)
        one = group.pending[place]
        if place not in stream.entries:
            del group.pending[place]
            deleted.append(show_id(place))
            count -= 1
        elif not idle or db.now_ms - one.delivered_ms >= idle:  # 0 takes also what a clock set back shows as to come
            one.consumer, one.delivered_ms = consumer, db.now_ms
            one.count += 0 if ids_only else 1
            found.append(show_id(place) if ids_only else _entry(place, stream.entries[place]))
            count -= 1
    return [show_id(due[0]) if due else b"0-0", found, deleted]


def xpending(db: Database, args: Args) -> list[Any]:
    key, name = args[0], args[1]
    stream = db.get(key, Stream)
    if stream is None or name not in stream.groups:
        raise ServerError(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
    first, last, count = _edge(args[2], low_end=True), _edge(args[3], low_end=False), whole(args[4])
    pending = sorted((place, one) for place, one in stream.groups[name].pending.items() if first <= place <= last)
    return [
        [show_id(place), one.consumer, max(0, db.now_ms - one.delivered_ms), one.count]
        for place, one in pending[:count]
    ]


def xinfo(db: Database, args: Args) -> list[Any]:
    """The facts that Heddle looks at; a real server tells some more."""
    verb, key = args[0].upper(), args[1]
    stream = db.get(key, Stream)
    if stream is None:
        raise ServerError("ERR no such key")
    if verb == b"GROUPS":
        return [
            [b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending)]
            + [b"last-delivered-id", show_id(group.last)]
            for name, group in sorted(stream.groups.items())
        ]
    group = _group(stream, key, args[2])
    holds = [one.consumer for one in group.pending.values()]
    return [
        [b"name", name, b"pending", holds.count(name), b"idle", max(0, db.now_ms - seen_ms)]
        for name, seen_ms in sorted(group.consumers.items())
    ]


STREAMS: dict[bytes, Command] = {
    b"XADD": xadd,
    b"XTRIM": xtrim,
    b"XDEL": xdel,
    b"XLEN": xlen,
    b"XRANGE": xrange,
    b"XREVRANGE": xrevrange,
    b"XREAD": xread,
    b"XGROUP": xgroup,
    b"XREADGROUP": xreadgroup,
    b"XACK": xack,
    b"XAUTOCLAIM": xautoclaim,
    b"XPENDING": xpending,
    b"XINFO": xinfo,
}
