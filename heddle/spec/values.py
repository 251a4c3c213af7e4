"""The kinds of values exp.toml knows beyond TOML's own: durations, sizes, schedules, slugs, names of user code.

It never knows a section or a key; `models.py` says where each kind stands.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB|TB|TiB)")
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Frozen(BaseModel):
    """Base of every section: no unknown key, no change, no silent conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def parse_duration(value: object) -> object:
    """Seconds from a number or from "500ms", "10s", "5m", "3h", "1d"; other types pass through unchanged.

    Raises:
        ValueError: a string that is no duration.
    """
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("must be seconds as a number, or a text such as 10s, 5m or 3h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(value: object) -> object:
    """Bytes from a whole number or from "64MiB", "1GB"; other types pass through unchanged.

    Raises:
        ValueError: a string that is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("must be bytes as a whole number, or a text such as 64MiB or 1GB")
    return int(float(match[1]) * _BYTES[match[2]])


def _slug(value: str) -> str:
    if not _SLUG.fullmatch(value):
        raise ValueError("must be 1 to 63 of a-z, 0-9, '-' and '_', starting with a letter or digit")
    return value


def _word(value: str) -> str:
    if not value or any(character.isspace() for character in value):
        raise ValueError("must be a name without spaces")
    return value


def _jsonable(value: object) -> object:
    """A value that JSON can carry, or ValueError naming the first that it cannot."""
    if isinstance(value, Mapping):
        return {_text_key(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be finite: nan and inf cannot be stored")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"must hold text, numbers, booleans, lists and tables only, not {type(value).__name__}")


def _text_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"must have text keys only, not {key!r}")
    return key


Seconds = Annotated[float, BeforeValidator(parse_duration)]
"""Seconds; written as a number or as text with a unit."""
Bytes = Annotated[int, BeforeValidator(parse_size)]
"""Bytes; written as a whole number or as text with a unit."""
Slug = Annotated[str, AfterValidator(_slug)]
"""A short name that is safe in keys, file names and shells."""
Word = Annotated[str, AfterValidator(_word)]
"""A name without spaces."""
Kwargs = Annotated[dict[str, Any], BeforeValidator(_jsonable)]
"""Keyword arguments for user code: whatever JSON can carry."""


def is_user_code(name: str) -> bool:
    """True for "package.module:Name"."""
    return _CODE.fullmatch(name) is not None


def none_auto(value: object) -> object:
    """None for "auto"; others unchanged."""
    return None if value == "auto" else value


def auto_none(value: float | None) -> float | str:
    """The opposite of `none_auto`."""
    return "auto" if value is None else value


def builtin_or_own(builtin: tuple[str, ...]) -> Any:
    """Validates a name that is one of `builtin`, or the user's own code."""

    def check(value: object) -> object:
        if isinstance(value, str) and value not in builtin and not is_user_code(value):
            raise ValueError(f"must be {' or '.join(builtin)}, or your own as package.module:Name")
        return value

    return BeforeValidator(check)


class Schedule(Frozen):
    """A number that moves in a straight line over the budget; a plain number is one that stays.

    Attributes:
        start: value at progress 0.
        end: value at progress 1.
    """

    start: float = Field(ge=0)
    end: float = Field(ge=0)

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"start": float(value), "end": float(value)}
        if isinstance(value, Mapping | Schedule):
            return value
        raise ValueError("must be a number, or { start = .., end = .. }")

    @model_serializer
    def _to_number(self) -> float | dict[str, float]:
        if self.start == self.end:
            return self.start
        return {"start": self.start, "end": self.end}

    def at(self, progress: float) -> float:
        """The value at `progress` in 0..1; outside that range the nearer end."""
        return self.start + (self.end - self.start) * min(1.0, max(0.0, progress))


def constant(value: float) -> Schedule:
    """A schedule that stays at `value`."""
    return Schedule(start=value, end=value)
