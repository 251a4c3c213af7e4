"""Left behind: what processes of this host held when all of a run was killed, given back at once.

It never ends a process. Who lives, also under a pid that was given away again, keeps what it holds until its lease is
over. A wrong guess would do no harm: all of it is fenced, so that the one who held it could write no more.
"""

import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.records import ENDED
from heddle.errors import BrokerError, Gone, NotFound
from heddle.producers.identity import host_in_name

log = logging.getLogger("heddle.launch")

NAME = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+")
"""Ids of trainers, coordinators and supervisors: host, pid, chance."""


def free(broker: Broker, pool: str, *, is_dead: Callable[[str, int], bool] | None = None) -> list[str]:
    """Free shards, seats, the lead and parts of the pool of processes that are dead for certain.

    Args:
        is_dead: tells so of a process of a host.

    Returns:
        What was freed, for people; a broker that does not answer is no error: all of it runs out in time.
    """
    judge = is_dead or is_dead_here
    try:
        shares = _shares(broker, pool, judge)
        return [*_shards(broker, pool, judge), *_seats(broker, judge), *_lead(broker, judge), *shares]
    except BrokerError as error:
        log.info("cannot free what dead processes hold, it runs out in time error=%s", error)
        return []


def free_seat(broker: Broker, experiment: str) -> bool:
    """Free the seat of one experiment from a trainer of this host that is dead for certain: it cannot leave it.

    Raises:
        BrokerError: it was not freed, or was.
    """
    holder = broker.seats.holder(experiment)
    if holder is None or not has_died(holder.trainer):
        return False
    return broker.seats.release_seat(experiment, holder.epoch, how="died")


def is_dead_here(host: str, pid: int) -> bool:
    """True when `host` is this one and no process has that pid, or one that only waits to be buried.

    Args:
        host: as it calls itself, or as it is called in names of processes.
    """
    here = socket.gethostname()
    if host not in (here, host_in_name(here)) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def has_died(name: str) -> bool:
    """Whether the trainer, coordinator or supervisor of that id ran on this host and is dead for certain."""
    return _is_dead(name, is_dead_here)


def _shards(broker: Broker, pool: str, is_dead: Callable[[str, int], bool]) -> list[str]:
    found = []
    for info in broker.pools.workers(pool):
        beat = info.beat
        if info.died or not is_dead(beat.host, beat.pid):
            continue
        for shard in broker.shards.release_worker(beat.worker, error="its worker was killed with the whole run"):
            found.append(f"shard {shard.shard} of {shard.experiment}")
        broker.pools.bury(beat.worker, "killed with the whole run")
    return found


def _seats(broker: Broker, is_dead: Callable[[str, int], bool]) -> list[str]:
    found = []
    for status in broker.experiments.ls():
        try:
            holder = None if status.state in ENDED else broker.seats.holder(status.experiment)
            if holder is None or not _is_dead(holder.trainer, is_dead):
                continue
            if broker.seats.release_seat(status.experiment, holder.epoch, how="died"):
                found.append(f"the seat of {status.experiment}")
        except (Gone, NotFound, Damaged):
            continue  # removed meanwhile, or nobody can tell who holds it
    return found


def _lead(broker: Broker, is_dead: Callable[[str, int], bool]) -> list[str]:
    leader = broker.coordinators.leader()
    if leader is None or not leader.left_ms or not _is_dead(leader.coordinator, is_dead):
        return []
    return ["the lead"] if broker.coordinators.release_leader(leader.coordinator, leader.epoch) else []


def _shares(broker: Broker, pool: str, is_dead: Callable[[str, int], bool]) -> list[str]:
    """Dead supervisors' parts of the pool: whoever starts now would run only the rest of it until they are over."""
    found = [name for name in broker.pools.supervisors(pool) if _is_dead(name, is_dead)]
    for name in found:
        broker.pools.supervisor_bye(pool, name)
    return [f"the part of supervisor {name}" for name in found]


def _is_dead(name: str, is_dead: Callable[[str, int], bool]) -> bool:
    told = NAME.fullmatch(name)
    return told is not None and is_dead(told["host"], int(told["pid"]))
