"""Room: whether the hosts of a pool have the cores and the memory for as many workers as it shall have.

Pure, and never a reason to refuse: whoever says how many may know better.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from heddle.broker.presence import HostReport
from heddle.launch.pacing import share

MOST_HOSTS = 3

CROWD = 4
"""Workers a core from which on it is worth a word: fewer may well be waiting for their environments."""


@dataclass(slots=True)
class _Load:
    """What one host shall carry."""

    cores: int = 0
    free_bytes: int = 0
    workers: int = 0
    more_bytes: int = 0


def doubts(desired: int, hosts: Mapping[str, HostReport | None]) -> list[str]:
    """What speaks against so many workers; nothing where nobody can tell.

    Args:
        hosts: what each supervisor that is here says of its host.
    """
    if not hosts and desired:
        return ["no supervisor is here to start them: heddle workers start -n 2, or heddle up"]
    loads: dict[str, _Load] = {}
    for supervisor, report in hosts.items():
        if report is None:
            continue
        part = share(desired, list(hosts), supervisor)
        part = part if report.most is None else min(part, report.most)
        load = loads.setdefault(report.host, _Load(report.cores, report.free_bytes))
        load.workers += part
        load.more_bytes += max(0, part - report.running) * report.worker_bytes
    crowded = [_crowded(host, load) for host, load in loads.items() if load.workers > CROWD * load.cores]
    full = [_full(host, load) for host, load in loads.items() if 0 < load.free_bytes < load.more_bytes]
    return [*_some(crowded), *_some(full)]


def _crowded(host: str, load: _Load) -> str:
    times = load.workers / load.cores
    return (
        f"host {host} has {load.cores} cores for {load.workers} workers, {times:.1f} times as many: they take turns,"
        " and commands may be slow there"
    )


def _full(host: str, load: _Load) -> str:
    return (
        f"host {host} has {load.free_bytes / 1e9:.1f} GB free, and the workers that are to come would take about"
        f" {load.more_bytes / 1e9:.1f} GB at what one takes now: it may kill some"
    )


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_HOSTS
    return lines if more <= 0 else [*lines[:MOST_HOSTS], f"and so it is on {more} more hosts"]
