"""What each key is: a hash, a stream, a sorted set or a string; and which key of a command is something else.

It never touches a key's contents, and asks a server only after it has said that one is of another kind.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from heddle.broker import keys

Kind = Literal["hash", "zset", "stream", "string"]

SAYS: dict[str, str] = {"hash": "hash", "zset": "sorted set", "stream": "stream", "string": "string"}
PREFIX = "heddle:"
MOST_ASKED = 64
"""Keys of one command whose kind is asked for; those that are no bytes of batches come first in every script."""
_SHARED: dict[str, Kind] = {
    keys.QUEUE: "stream",
    keys.EXPERIMENTS: "zset",
    keys.COORDINATOR: "hash",
    keys.LOG: "stream",
    keys.PRINTS: "stream",
    keys.IDENTITY: "string",
    keys.PROBE: "string",
}
_SHARED_FORMS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"heddle:name:[^:]+"), "hash"),
    (re.compile(r"heddle:pool:[^:]+"), "hash"),
    (re.compile(r"heddle:pool:[^:]+:(workers|supervisors)"), "zset"),
    (re.compile(r"heddle:pool:[^:]+:tickets"), "stream"),
    (re.compile(r"heddle:worker:.+"), "hash"),
)
_OF_EXPERIMENT = re.compile(r"heddle:\{(?P<experiment>.+)\.\d+\}:(?P<what>.+)")
_FORMS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (
        re.compile(r"(ctl|spec|status|seat|trainer|trackers|queued|flow|accepted|loading)|(shard|lease|failure):\d+"),
        "hash",
    ),
    (re.compile(r"policy:\d+"), "hash"),
    (re.compile(r"due|waiting"), "zset"),
    (re.compile(r"experience|metrics|dead"), "stream"),
    (re.compile(r"(blob|snapshot|dead|policy):.+"), "string"),
)


@dataclass(frozen=True, slots=True)
class Amiss:
    """A key that is not what it should be.

    Attributes:
        key: its name.
        kind: what it should be.
        found: what it is, in the server's word; "" where that was not told.
        experiment: whose it is; "" for one that all share.
    """

    key: str
    kind: Kind
    found: str
    experiment: str

    def __str__(self) -> str:
        is_now = f"holds a {SAYS.get(self.found, self.found)}" if self.found else "holds something else"
        return f"{self.key} {is_now} that somebody put there, and should be a {SAYS[self.kind]}"


@dataclass(frozen=True, slots=True)
class Suspects:
    """The keys that a command named, one of which is of another kind than the command takes.

    Attributes:
        names: of the keys.
        ask: the kind of one, as the server names it; "" where it does not tell.
    """

    names: tuple[str, ...] = ()
    ask: Callable[[str], str] = lambda _: ""

    def find(self) -> Amiss | None:
        """The first that is something else; None where nobody can tell."""
        known = [(name, kind) for name in self.names if (kind := kind_of(name)) is not None]
        for name, kind in known[:MOST_ASKED]:
            found = self.ask(name)
            if found not in ("", "none", kind) or (not found and len(known) == 1):
                return Amiss(name, kind, found, experiment_of(name))
        return None

    @property
    def are_shared(self) -> bool:
        """None of them is an experiment's."""
        return bool(self.names) and not any(experiment_of(name) for name in self.names)


def names_in(command: Iterable[object]) -> tuple[str, ...]:
    """The keys of ours that a command names, each once."""
    said = (word.decode(errors="replace") if isinstance(word, bytes) else word for word in command)
    named = [word for word in said if isinstance(word, str) and word.startswith(PREFIX)]
    return tuple(dict.fromkeys(named))


def kind_of(key: str) -> Kind | None:
    """What a key is by its name; None for one that is none of ours."""
    if (kind := _SHARED.get(key)) is not None:
        return kind
    whose = _OF_EXPERIMENT.fullmatch(key)
    what, forms = (key, _SHARED_FORMS) if whose is None else (whose["what"], _FORMS)
    return next((kind for form, kind in forms if form.fullmatch(what)), None)


def experiment_of(key: str) -> str:
    """The experiment whose key that is; "" for one that all share."""
    whose = _OF_EXPERIMENT.fullmatch(key)
    return "" if whose is None else whose["experiment"]
