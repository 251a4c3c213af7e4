"""What is wrong with a spec, in words: from pydantic's errors to a key, a reason and what to do.

It never reads a file and never decides what is allowed; the models do.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import BaseModel

from heddle.spec.locate import KeyPath
from heddle.spec.models import LEARNERS, ExperimentSpec
from heddle.spec.policy import POLICIES

_REASONS = {
    "missing": "is required",
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be finite",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
}
_BOUNDS = {
    "greater_than": ("must be above {gt}", "gt"),
    "greater_than_equal": ("must be at least {ge}", "ge"),
    "less_than": ("must be below {lt}", "lt"),
    "less_than_equal": ("must be at most {le}", "le"),
}
_USER_OF_URL = re.compile(r"(//)[^/@\s]*@")
_SECRET = re.compile(r"key|token|password|secret", re.IGNORECASE)
_NONE_TOO: frozenset[KeyPath] = frozenset({("rollout", "compression")})
"""Keys at which "none" may stand beside the words that pydantic names."""
_BUILTIN: dict[KeyPath, tuple[str, ...]] = {("trainer", "learner"): LEARNERS, ("policy", "id"): POLICIES}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong, before its place in the file is known.

    Attributes:
        path: keys from the root.
        value: as given; None when missing.
        reason: what is wrong.
        hint: what to do; "" when there is nothing to say.
        is_about_key: the key itself is wrong, not its value.
    """

    path: KeyPath
    value: object
    reason: str
    hint: str = ""
    is_about_key: bool = False


def explain(error: Mapping[str, Any]) -> Fault:
    """The fault behind one of pydantic's error details."""
    path = tuple(error["loc"])
    kind = str(error["type"])
    value = _without_password(error.get("input"))
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(path, value)
    if kind == "missing":
        return Fault(path, None, "is required", example(path), is_about_key=True)
    if kind == "literal_error":
        allowed = str(context["expected"]).replace("'", "")
        if path in _NONE_TOO:
            allowed = f"none, {allowed}"
        return Fault(path, value, f"must be {allowed}", nearest(value, allowed.replace(" or ", ", ").split(", ")))
    if kind in _BOUNDS:
        return Fault(path, value, _BOUNDS[kind][0].format(**context))
    if kind == "value_error":
        return Fault(path, value, str(context["error"]), nearest(value, _BUILTIN.get(path, ())))
    reason = _REASONS.get(kind, str(error["msg"]).lower())
    return Fault(path, value, reason, _quotes_hint(kind, value))


def without_echoes(faults: Sequence[Fault]) -> list[Fault]:
    """Without what a misspelt name makes seem missing: one mistake is told once."""
    meant = set()
    for fault in faults:
        if fault.is_about_key and fault.reason.startswith("unknown"):
            match = nearest_of(str(fault.path[-1]), valid_keys(fault.path[:-1]))
            meant.add((*fault.path[:-1], match))
    return [fault for fault in faults if not (fault.reason == _REASONS["missing"] and fault.path in meant)]


def told_once(faults: Sequence[Fault]) -> list[Fault]:
    """A number that stands for both ends of a schedule is wrong once, under its own key."""
    kept: list[Fault] = []
    for fault in faults:
        before = kept[-1] if kept else None
        is_end = before is not None and fault.path[-1:] == ("end",) and before.path == (*fault.path[:-1], "start")
        if before is not None and is_end and (before.value, before.reason) == (fault.value, fault.reason):
            kept[-1] = replace(before, path=fault.path[:-1])
        else:
            kept.append(fault)
    return kept


def unknown_key(path: KeyPath, value: object) -> Fault:
    """A key that does not exist: name the nearest one that does, or the section it belongs to."""
    key = str(path[-1])
    siblings = valid_keys(path[:-1])
    if path[0] == "track" and _SECRET.search(key):  # what was written there is not shown again
        hint = "credentials never go into a spec: give them to the process that tracks, in its environment"
        return Fault(path, None, "unknown key", hint, is_about_key=True)
    hint = nearest(key, siblings)
    if not hint:
        elsewhere = {name: f"{section}.{name}" for section in valid_keys(()) for name in valid_keys((section,))}
        match = difflib.get_close_matches(key, list(elsewhere), n=1, cutoff=0.8)
        hint = f"did you mean {elsewhere[match[0]]}?" if match else f"known here: {', '.join(siblings)}"
    what = "unknown section" if len(path) == 1 and isinstance(value, Mapping) else "unknown key"
    return Fault(path, value if not isinstance(value, Mapping) else None, what, hint, is_about_key=True)


def valid_keys(path: KeyPath) -> tuple[str, ...]:
    """Names of the keys that may stand in the table at `path`; empty when it is none of ours."""
    model: type[BaseModel] | None = ExperimentSpec
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
    return tuple(model.model_fields) if model is not None else ()


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside an annotation such as `Eval | None` or `tuple[Annotated[Wrapper, ..], ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def nearest(value: object, choices: Sequence[str]) -> str:
    """ "did you mean X?" when one of `choices` looks like `value`, else ""."""
    match = nearest_of(value, choices)
    return f"did you mean {match}?" if match else ""


def nearest_of(value: object, choices: Sequence[str]) -> str:
    """The one of `choices` that looks like `value`, "" when none does."""
    if not isinstance(value, str):
        return ""
    lower = {choice.lower(): choice for choice in choices}
    match = difflib.get_close_matches(value.lower(), list(lower), n=1, cutoff=0.55)
    if match:
        return lower[match[0]]
    longer = [choice for choice in choices if len(value) > 2 and value.lower() in choice.lower()]
    return longer[0] if longer else ""


def example(path: KeyPath) -> str:
    """How a missing key is written."""
    examples: dict[KeyPath, str] = {
        ("experiment",): 'add [experiment] with name = "my-run"',
        ("experiment", "name"): 'add name = "my-run" to [experiment]',
        ("env",): 'add [env] with id = "CartPole-v1"',
        ("env", "id"): 'add id = "CartPole-v1" to [env]',
        ("budget",): "add [budget] with env_steps = 100_000",
    }
    return examples.get(path, "")


def _without_password(value: object) -> object:
    """As given, but for who is named in an address, and with which password."""
    return _USER_OF_URL.sub(r"\1***@", value) if isinstance(value, str) else value


def _quotes_hint(kind: str, value: object) -> str:
    if not isinstance(value, str):
        return ""
    if kind in ("int_type", "float_type"):
        try:
            float(value)
        except ValueError:
            return ""
        return f"write {value} without quotes"
    if kind == "bool_type" and value.lower() in ("true", "false"):
        return f"write {value.lower()} without quotes"
    return ""
