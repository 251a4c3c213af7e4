"""Whether a host has room for its workers: tables of what supervisors say, and what the system tells of a process."""

import os
from pathlib import Path

import pytest

from heddle.broker.presence import HostReport, read_host
from heddle.launch.host import cores, free_bytes, own_bytes
from heddle.launch.room import doubts

GB = 10**9
SMALL = HostReport("box", 2, free_bytes=8 * GB, worker_bytes=GB // 10, running=2)


@pytest.mark.parametrize(
    ("desired", "hosts", "words"),
    [
        (2, {"s1": SMALL}, []),
        (0, {}, []),
        (3, {}, ["no supervisor is here"]),
        (9, {"s1": SMALL}, ["box has 2 cores for 9 workers, 4.5 times as many"]),
        (
            200,
            {"s1": SMALL},
            ["200 workers, 100.0 times", "8.0 GB free, and the workers that are to come would take about 19.8"],
        ),
        (4, {"s1": SMALL, "s2": HostReport("other", 2)}, []),
        (18, {"s1": SMALL, "s2": HostReport("other", 64)}, ["box has 2 cores for 9 workers"]),
        (9, {"s1": SMALL, "s2": HostReport("box", 2)}, ["box has 2 cores for 9 workers"]),
        (64, {"s1": HostReport("box", 2, most=2)}, []),
        (64, {"s1": None}, []),
        (64, {"s1": HostReport("box", 64, free_bytes=0, worker_bytes=GB)}, []),
        (64, {"s1": HostReport("box", 64, free_bytes=GB, worker_bytes=0)}, []),
    ],
)
def test_what_speaks_against_a_size_is_said_and_nothing_that_nobody_knows(
    desired: int, hosts: dict[str, HostReport | None], words: list[str]
) -> None:
    told = doubts(desired, hosts)
    assert len(told) == len(words), told
    assert all(word in line for word, line in zip(words, told, strict=True)), told


def test_of_many_crowded_hosts_some_are_named() -> None:
    told = doubts(100, {f"s{n}": HostReport(f"box{n}", 1) for n in range(10)})
    assert len(told) == 4
    assert "7 more hosts" in told[-1]


def test_a_report_is_read_as_it_was_written_and_what_others_wrote_is_nothing() -> None:
    for report in (SMALL, HostReport("box", 2, most=0)):
        assert read_host(report.as_field()) == report
    for field in ("", "host=box", "cores=2", "host=box cores=two", "nonsense"):
        assert read_host(field) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs /proc")
def test_the_system_tells_what_is_free_and_what_a_process_has_to_itself() -> None:
    assert free_bytes() > 0
    before = own_bytes(os.getpid())
    held = bytearray(os.urandom(1 << 20) * 64)
    assert own_bytes(os.getpid()) - before > len(held) // 2
    assert own_bytes(2**30) == 0
    assert cores() >= 1
