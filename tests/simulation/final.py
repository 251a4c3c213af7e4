"""The end: what must hold when a run is over, and when it was removed.

It never changes anything.
"""

from typing import TYPE_CHECKING, Any

from tests.simulation.books import numbers_of
from tests.simulation.truth import Batch, must
from tests.simulation.values import Stream

if TYPE_CHECKING:
    from tests.simulation.world import World


def check_end(world: "World") -> None:
    """Nothing is in flight or held, and everything that was accepted is in the model once or has another end."""
    db = world.server.db
    flow = numbers_of(db, world.tag)
    reason = world.hash_of("status").get(b"reason", b"").decode()
    # Or a worker found no memory for its last batch until the trainer had given up waiting for it.
    left = reason.startswith("no trainer was there") or "memory" in world.plan.permanent
    must(left or not flow.get("entries"), "liveness: batches are in flight after the end", (flow, reason))
    stream = db.data.get(world.tag + b"experience")
    for name, group in (stream.groups if isinstance(stream, Stream) else {}).items():
        must(left or not group.pending, "liveness: entries are pending after the end", (name, len(group.pending)))
    for index, state in world.shard_states().items():
        must(state.get(b"state") != b"leased", "a shard is held after the end", (index, state))
    must(not flow.get("parked"), "P4: bytes are parked after the end", flow)
    _check_model(world, flow)
    _check_answers(world, flow)


def _check_model(world: "World", flow: dict[str, int]) -> None:
    truth = world.watcher.truth
    model: set[Batch] = {item[:4] for item in world.model()}
    trained = {batch for batch, outcome in truth.settled.items() if outcome == "trained"}
    if world.plan.ack == "update":
        must(truth.losses > 0 or flow.get("trained", 0) == len(model), "P2: trained is not what the model holds", flow)
        return
    if not truth.losses:
        must(model == trained, "P2: the model is not what was acked", (len(model), len(trained), model ^ trained))
    for batch, fact in truth.accepted.items():
        lost = fact.kind == "train" and batch not in model and truth.settled.get(batch) == "trained"
        must(not lost, "P2: a batch that the broker remembers is missing from the model", batch)


def _check_answers(world: "World", flow: dict[str, int]) -> None:
    """answered = appended + discarded + forgotten."""
    truth = world.watcher.truth
    forgot = len(truth.ever_accepted) - len(truth.accepted)
    must(flow.get("forgotten", 0) <= forgot, "P2: more was reported as forgotten than was", (flow, forgot))
    if not truth.losses:
        must(flow.get("discarded", 0) == len(truth.refused), "P2: discarded is miscounted", (flow, len(truth.refused)))


def check_nothing_left(world: "World") -> None:
    """Of a removed experiment no key is left, nor its name, its ticket or its place in a list."""
    db = world.server.db
    db.now_ms = int(world.server.clock())
    left = [(key, db.expires.get(key, 0) - db.now_ms) for key in db.living() if key.startswith(world.tag)]
    must(not left, "P7: keys are left after rm", left[:5])
    listed: Any = db.data.get(b"heddle:experiments", {})
    must(world.experiment.encode() not in listed, "P7: a removed experiment is listed")
    must(b"heddle:name:sim" not in db.data, "P7: the name of a removed experiment is taken")
    tickets = db.data.get(b"heddle:pool:default:tickets")
    entries = tickets.entries.items() if isinstance(tickets, Stream) else ()
    # One that was on its way for seconds and arrives after the end is dropped by the worker who reads it.
    early = [place for place, fields in entries if world.experiment.encode() in fields and place[0] < world.removed_ms]
    must(not early, "P7: tickets of a removed experiment", early)
