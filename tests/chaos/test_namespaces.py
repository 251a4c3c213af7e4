"""A host that loses its network loses its shards, not a batch; back again it works on. Real packets, really lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.broker.server import LocalServer, start_server
from tests.chaos.bench import MARGIN, TTL_S, Bench
from tests.chaos.fleet import Size
from tests.chaos.namespaces import Host, reason_not
from tests.chaos.outages import await_played, cut_off

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300), pytest.mark.skipif(bool(reason_not()), reason=reason_not())]

HOSTS = (1, 2)
ELSEWHERE_S, HEALED_S = TTL_S + 1, TTL_S + 2
"""What is promised. Of the second one TCP takes its part: it asks again after twice as long each time, so whoever was
cut off for 1.5 s hears of the heal up to 1.5 s late."""


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    made = [Host(number) for number in HOSTS]
    try:
        yield [host.up() for host in made]
    finally:
        for host in made:
            host.down()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with start_server(tmp_path / "server", bind="0.0.0.0", port=0, maxmemory=256 << 20) as running:
        yield running


def test_a_host_whose_packets_are_lost_is_replaced_within_its_ttl_and_comes_back(
    hosts: list[Host], server: LocalServer, tmp_path: Path
) -> None:
    size = Size(hosts=(1, 1), short="restarts")
    names = [f"supervisor-{number}" for number in range(len(hosts))]
    address = server.settings.address
    bench = Bench.open(
        tmp_path,
        size,
        server=server,
        urls={name: address.url(host.gateway) for name, host in zip(names, hosts, strict=True)},
        prefixes={name: host.prefix for name, host in zip(names, hosts, strict=True)},
    )
    try:
        bench.play("ledger", env={"num_envs": 8})
        for number, deed in enumerate(("cut", "deaf", "mute")):
            host, name = hosts[number % 2], names[number % 2]
            bench.until(lambda: len(bench.owners()) == 2, "both hosts' workers hold shards")
            worker, hit = cut_off(bench, name)
            host.hurt(deed)
            bench.until(lambda hit=hit: bench.is_back(hit), f"{deed}: its shards are played elsewhere", timeout_s=30)  # type: ignore[misc]
            elsewhere_s = bench.took(hit)
            healed_ms = bench.now_ms()
            host.heal()
            healed_s = await_played(bench, worker, healed_ms)
            print(f"{deed}: elsewhere {elsewhere_s:.2f} s of {ELSEWHERE_S:g}, healed {healed_s:.2f} s of {HEALED_S:g}")
            assert elsewhere_s <= MARGIN * ELSEWHERE_S
            assert healed_s <= MARGIN * HEALED_S
    finally:
        violations = bench.close()
    assert violations == []
