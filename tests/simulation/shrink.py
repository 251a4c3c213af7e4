"""Shrinking: the fewest faults and the smallest fleet with which a schedule still breaks the same promise.

It never invents a fault. What remains is kept in `regressions.json` with the bug that it shows, and run by a test.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.simulation.bugs import named
from tests.simulation.mutate import planted
from tests.simulation.plan import Fault, Outcome, Plan
from tests.simulation.world import World

KEPT = Path(__file__).with_name("regressions.json")
SAME_CHARS = 30
"""So much of a problem's first line tells which promise it is; what follows are numbers."""


def run(plan: Plan, bug: str = "") -> Outcome:
    """A plan with a bug planted, "" for none."""
    with planted(named(bug)) if bug else nullcontext(str) as rewrite:
        return World(plan, rewrite=rewrite).run()


def shrink(plan: Plan, attempt: Callable[[Plan], Outcome]) -> Plan:
    """The smallest plan found; `plan` itself when it breaks nothing."""
    promise = attempt(plan).problem[:SAME_CHARS]
    if not promise:
        return plan
    smaller: Plan | None = plan
    while smaller is not None:
        plan = smaller
        smaller = next((one for one in _smaller(plan) if attempt(one).problem[:SAME_CHARS] == promise), None)
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for index in range(len(plan.faults)):
        yield plan.without(index)
    for name in sorted(plan.permanent):
        yield replace(plan, permanent=plan.permanent - {name})
    for role in ("workers", "coordinators", "trainers"):
        least = 2 if role == "workers" and "shy" in plan.permanent else 1  # somebody must take what there is
        if getattr(plan, role) > least:
            yield replace(plan, **{role: getattr(plan, role) - 1})
    if plan.evals:
        yield replace(plan, evals=0)
    if plan.forced:
        yield replace(plan, forced=False)


def to_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON values."""
    return {**asdict(plan), "permanent": sorted(plan.permanent)}


def from_json(value: dict[str, Any]) -> Plan:
    """The opposite of `to_json`."""
    faults = tuple(Fault(**fault) for fault in value["faults"])
    return Plan(**{**value, "faults": faults, "permanent": frozenset(value["permanent"])})


def kept() -> list[tuple[str, Plan]]:
    """The schedules that are kept, each with the name of the bug that it shows."""
    return [(case["bug"], from_json(case["plan"])) for case in json.loads(KEPT.read_text())]


def keep(cases: list[tuple[str, Plan]]) -> None:
    """Write them all."""
    KEPT.write_text(json.dumps([{"bug": bug, "plan": to_json(plan)} for bug, plan in cases], indent=1) + "\n")
