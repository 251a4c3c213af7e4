"""What a server says of itself, and the name that follows."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from heddle.broker.durability import Kept, Level, kept_by, lacking
from heddle.errors import Denied


class Told:
    """A client of a server that answers so; None refuses."""

    def __init__(self, aof: int | None, fsync: dict[Any, Any] | None) -> None:
        self._aof, self._fsync = aof, fsync

    def info(self, section: str) -> dict[str, Any]:
        assert section == "persistence"
        if self._aof is None:
            raise Denied("no INFO for you")
        return {"aof_enabled": self._aof}

    def config_get(self, pattern: str) -> dict[Any, Any]:
        assert pattern == "appendfsync"
        if self._fsync is None:
            raise ResponseError("unknown command 'CONFIG'")
        return self._fsync


@pytest.mark.parametrize(
    ("aof", "fsync", "name", "least"),
    [
        (1, {"appendfsync": "always"}, "strict", "strict"),
        (1, {b"appendfsync": b"always"}, "strict", "strict"),
        (1, {"appendfsync": "everysec"}, "fast", "fast"),
        (1, {"appendfsync": "no"}, "fast", "fast"),
        (1, None, "unknown", "fast"),
        (1, {}, "unknown", "fast"),
        (0, {"appendfsync": "always"}, "memory", "memory"),
        (None, {"appendfsync": "always"}, "unknown", "memory"),
    ],
)
def test_durability_is_named_after_what_the_server_tells_and_unknown_when_it_does_not(
    aof: int | None, fsync: dict[Any, Any] | None, name: str, least: str
) -> None:
    kept = kept_by(Told(aof, fsync))  # type: ignore[arg-type]
    assert (kept.name, kept.least) == (name, least)
    assert kept.why and kept.promise


@pytest.mark.parametrize(
    ("least", "name", "certain", "lacks"),
    [
        (None, "memory", "memory", False),
        ("memory", "memory", "memory", False),
        ("memory", "unknown", "memory", False),
        ("fast", "memory", "memory", True),
        ("fast", "fast", "fast", False),
        ("fast", "unknown", "fast", False),
        ("fast", "strict", "strict", False),
        ("strict", "fast", "fast", True),
        ("strict", "unknown", "fast", True),
        ("strict", "strict", "strict", False),
    ],
)
def test_a_broker_that_does_not_surely_keep_what_a_spec_asks_for_is_refused(
    least: Level | None, name: Any, certain: Level, lacks: bool
) -> None:
    reason = lacking(least, Kept(name, certain, "because"))
    assert bool(reason) == lacks
    if lacks:
        assert f"asks for {least}" in reason and "because" in reason
