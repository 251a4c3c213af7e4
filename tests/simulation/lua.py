"""The shipped Lua scripts, run by Lua 5.1 on the simulated server's commands.

It never changes a script by itself: a planted bug gives `Engine.load` another text for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51

from tests.simulation.values import ServerError, Status

Call = Callable[[bytes, Sequence[bytes]], Any]
NOTHING = (1, False)

# `redis.call` gets (tag, value ...) from Python: 1 one value, 2 a flat list, 3 a status, 4 an error, 5 a made table.
DRIVER = b"""
local pycall = ...
local function taken(tag, ...)
  if tag == 1 or tag == 5 then return (...) end
  if tag == 2 then return {...} end
  if tag == 3 then return {ok = (...)} end
  return nil, {err = (...)}
end
redis = {}
function redis.call(...)
  local value, wrong = taken(pycall(...))
  if wrong then error(wrong, 0) end
  return value
end
function redis.pcall(...)
  local value, wrong = taken(pycall(...))
  if wrong then return wrong end
  return value
end
return function(chunk, count, ...)
  local all, keys, argv = {...}, {}, {}
  for i = 1, count do keys[i] = all[i] end
  for i = count + 1, #all do argv[i - count] = all[i] end
  local fine, reply = pcall(chunk, keys, argv)
  if not fine then
    if type(reply) == 'table' then return 'error', reply.err end
    return 'error', 'ERR ' .. tostring(reply)
  end
  if type(reply) ~= 'table' then return 'one', reply end
  if reply.err then return 'error', reply.err end
  if reply.ok then return 'status', reply.ok end
  return 'list', unpack(reply)
end
"""


class Engine:
    """One Lua interpreter; it may serve one server after another, for scripts keep nothing between calls."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._drive = self._lua.execute(DRIVER, self._called)
        self._chunks: dict[bytes, Any] = {}
        self.call: Call = _unbound

    def load(self, source: str) -> Any:
        """A script, compiled; errors keep their line numbers."""
        text = source.encode()
        if text not in self._chunks:
            self._chunks[text] = self._lua.execute(b"return function(KEYS, ARGV) " + text + b"\nend")
        return self._chunks[text]

    def run(self, chunk: Any, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """The script's reply as a server sends it. Raises ServerError."""
        found = self._drive(chunk, len(keys), *keys, *args)
        kind, values = (found[0], found[1:]) if isinstance(found, tuple) else (found, ())
        if kind == b"list":
            return [value if type(value) is bytes or type(value) is int else _plain(value) for value in values]
        if kind == b"one":
            return _plain(values[0]) if values else None
        if kind == b"status":
            return Status(values[0])
        raise ServerError(values[0].decode())

    def _called(self, name: bytes, *args: Any) -> tuple[Any, ...]:
        try:
            for arg in args:
                if type(arg) is not bytes:
                    args = tuple(map(_argument, args))
                    break
            reply = self.call(name, args)
        except ServerError as error:
            return (4, str(error).encode())
        if reply is None:
            return NOTHING
        kind = type(reply)
        if kind is bytes or kind is int:
            return (1, reply)
        if kind is Status:
            return (3, bytes(reply))
        for item in reply:
            if type(item) is list:
                return (5, self._table(reply))
        if None in reply:
            return (2, *(False if item is None else item for item in reply))
        return (2, *reply)

    def _table(self, items: list[Any]) -> Any:
        return self._lua.table_from(
            [self._table(item) if isinstance(item, list) else False if item is None else item for item in items]
        )


def _unbound(name: bytes, args: Sequence[bytes]) -> Any:
    raise AssertionError("no server uses this engine")


def _argument(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ServerError("ERR Lua redis lib command arguments must be strings or integers")
    return b"%d" % value if value == int(value) else b"%.17g" % value


def _plain(value: Any) -> Any:
    """A Lua value as a reply: numbers lose their fraction, false is nil."""
    if value is True:
        return 1
    if value is False or value is None:
        return None
    if isinstance(value, float):
        return int(value)
    if isinstance(value, bytes | int):
        return value
    if value[b"err"] is not None:
        return ServerError(value[b"err"].decode())
    if value[b"ok"] is not None:
        return Status(value[b"ok"])
    return [_plain(value[place]) for place in range(1, len(value) + 1)]
