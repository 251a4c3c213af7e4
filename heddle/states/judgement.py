"""A judgement: how one thing is, why, since when, what to do about it, and which other judgements that follows from.

It never reads a clock: who shows it says what time it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from heddle import markup

GREEN = frozenset({"running", "playing", "alive", "training", "leading", "completed"})
"""States that need no why."""

BROKER_WAS_AWAY = "the broker was away and it has not been heard of since"
"""Why nobody knows: failing to observe is not failing."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one thing is.

    Attributes:
        subject: what it is about: "experiment cartpole-7f3a", "shard cartpole-7f3a/3", "worker W", "trainer T", ...
        state: one word; docs/reliability.md lists them.
        why: one line without durations; "" for a state that explains itself.
        do: what a person does about it; "" when nothing has to be done.
        waits_for: of a waiting one: workers, trainer, room, policy, evaluation, environments, turn or shards; else "".
        since_ms: server ms since when it is so; 0 when that is not known.
        because: what it follows from, the most important first.
    """

    subject: str
    state: str
    why: str = ""
    do: str = ""
    waits_for: str = ""
    since_ms: int = 0
    because: tuple["Judgement", ...] = field(default=())

    @property
    def is_green(self) -> bool:
        """Nothing is wrong with it."""
        return self.state in GREEN

    @property
    def shown(self) -> str:
        """The state for people, and what a waiting one waits for: one that waits for a policy is as it should be."""
        return f"{self.state}: {self.waits_for}" if self.waits_for else self.state

    def line(self, now_ms: int) -> str:
        """Why, since when and what to do, in one line; "" when there is nothing to say."""
        if not self.why:
            return ""
        since = f", since {span(now_ms - self.since_ms)}" if 0 < self.since_ms <= now_ms - 1_000 else ""
        do = f"; {self.do}" if self.do else ""
        return f"{self.why}{since}{do}"

    def chain(self) -> Iterator[tuple[int, "Judgement"]]:
        """Everything that it follows from, each with its depth from 1, in reading order; nothing twice."""
        seen = {self.subject}

        def walk(judgement: Judgement, depth: int) -> Iterator[tuple[int, Judgement]]:
            for reason in judgement.because:
                if reason.subject not in seen:
                    seen.add(reason.subject)
                    yield depth, reason
                    yield from walk(reason, depth + 1)

        return walk(self, 1)

    def _repr_html_(self) -> str:
        """For notebooks: with everything that it follows from."""
        own = markup.facts(self.subject, self.state, [("why", self.why), ("what to do", self.do)])
        rows = [(reason.subject, reason.state, reason.why, reason.do) for _, reason in self.chain()]
        return own + (markup.table(("because", "state", "why", "what to do"), rows, empty="") if rows else "")

    def in_short(self, now_ms: int) -> dict[str, Any]:
        """As plain values beside the facts of what it is about."""
        return {
            "state": self.state,
            "why": self.why,
            "do": self.do,
            "waits_for": self.waits_for,
            "for_s": round(max(0, now_ms - self.since_ms) / 1000, 1) if self.since_ms else None,
        }

    def as_json(self, now_ms: int) -> dict[str, Any]:
        """As plain values, reasons included."""
        return {
            "subject": self.subject,
            **self.in_short(now_ms),
            "since_ms": self.since_ms,
            "because": [reason.as_json(now_ms) for reason in self.because],
        }


def span(milliseconds: int) -> str:
    """A time span in words that stay short: 4 s, 3 min, 2 h."""
    seconds = max(0, milliseconds) // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def newest(judged: Iterable[Judgement], *states: str, most: int = 3) -> tuple[Judgement, ...]:
    """Of many those in some states that came into them last: a pool whose workers die one after the other has many."""
    return tuple(sorted((one for one in judged if one.state in states), key=lambda one: -one.since_ms)[:most])


def unknown(subject: str, why: str, *, since_ms: int = 0, do: str = "") -> Judgement:
    """How a thing is that nobody can see now."""
    return Judgement(subject, "unknown", why, do, since_ms=since_ms)


def ids(numbers: list[int], *, most: int = 6) -> str:
    """Shard numbers as text that does not grow without bound."""
    shown = ", ".join(str(number) for number in numbers[:most])
    return f"{shown} and {len(numbers) - most} more" if len(numbers) > most else shown
