"""Removing an experiment so that no key of it is left, whatever interrupts the removal.

This module never removes an experiment that is being played unless it is forced to.

ctl goes first, in one script: from then on every script of every role answers GONE and writes nothing. The rest
follows in bounded batches, the list entry last, so a removal that was cut short can be found and repeated.
What is left to others: blobs that a worker had not got accepted (their TTL, at most a minute), and the tickets of a
removal that was cut short (the leader drops them, and they turn GONE at claim).
"""

from heddle.broker import keys, queue
from heddle.broker.connection import Connection
from heddle.broker.faults import Damaged
from heddle.broker.plane_sweep import drop_experiment
from heddle.broker.planes import Planes
from heddle.broker.records import entries, text
from heddle.broker.tickets import Tickets
from heddle.errors import Conflict

BATCH = 200
"""Keys per UNLINK, and per SCAN step: short enough not to stall other clients."""

PASSES = 5
"""Sweeps at most; one finds everything unless a blob was being written meanwhile."""


def remove(conn: Connection, experiment: str, *, force: bool) -> None:
    """Remove `experiment`, also when somebody removed or damaged some of its keys.

    Raises:
        Conflict: it is running, paused or stopping, and `force` is not set.
    """
    name = _of_spec(conn, experiment, "name")
    reply = conn.script("remove_ctl", [keys.ctl(experiment), keys.status(experiment)], ["force" if force else ""])
    if text(reply[0]) == "ACTIVE":
        raise Conflict(
            f"{experiment} is {text(reply[1])}; stop it and wait: heddle stop {experiment} && "
            f"heddle wait {experiment} --for stopped; or remove it as it is: heddle rm --force {experiment}"
        )
    pool = _of_spec(conn, experiment, "pool")
    if pool:
        Tickets(conn).drop_tickets(experiment, 0, pool)
    for _ in range(PASSES):
        if not _sweep(conn, experiment):
            break
    drop_experiment(Planes(conn), experiment)
    conn.script("name_release", [keys.name(name or experiment.rpartition("-")[0])], [experiment])
    _unqueue(conn, experiment)
    conn.main.zrem(keys.EXPERIMENTS, experiment)


def _of_spec(conn: Connection, experiment: str, field: str) -> str:
    """What its spec says; "" where that cannot be read: tickets that stay in a pool turn GONE at claim."""
    try:
        return text(conn.main.hget(keys.spec(experiment), field))
    except Damaged:
        return ""


def _sweep(conn: Connection, experiment: str) -> int:
    """Unlink every key of the experiment's tags, of any partition; how many there were."""
    removed, cursor = 0, 0
    while True:
        cursor, found = conn.main.scan(cursor, match=f"heddle:{{{experiment}.*}}:*", count=BATCH)
        for start in range(0, len(found), BATCH):
            removed += conn.main.unlink(*found[start : start + BATCH])
        if not int(cursor):
            return removed


def _unqueue(conn: Connection, experiment: str) -> None:
    """Take an experiment that no coordinator has admitted out of the queue."""
    for entry_id, fields in entries(conn.main.xrange(keys.QUEUE)):
        if fields.get("experiment") == experiment:
            queue.ack(conn, entry_id)
