"""Recovery after outages against promise P3: the server killed and started again, alone or with a worker and its
supervisor, and a host cut off and healed.

It never measures by polling, see `recovery`; only when nobody is missing is found out by looking.
"""

import os
import signal
from pathlib import Path

import redis

from heddle.broker.coordinators import LEADER_TTL_MS
from tests.chaos import procs
from tests.chaos.bench import CALM_S, TTL_S, Bench, Measured, leader
from tests.chaos.fleet import Size, names_of, serve
from tests.chaos.proxy import Proxy
from tests.chaos.report import shard_recovery, times
from tests.chaos.siege import Hit


def measure_server(folder: Path, *, each: int) -> tuple[list[Measured], list[str]]:
    """The server killed and started again: until every shard, trainer, coordinator, supervisor and worker works on."""
    bench = Bench.open(folder, Size(hosts=(2,), short="restarts", durability="strict"))
    took: list[float | None] = []
    try:
        bench.play("ledger")
        for _ in range(each):
            bench.until(lambda: len(bench.owners()) == 2, "both workers hold shards")
            bench.pause(0.2 + 0.5 * bench.rng.random())
            took.append(_restart_server(bench, down_s=float(bench.rng.uniform(0.05, 1.5))))
    finally:
        violations = bench.close()
    return [Measured("the server, everybody works on", 5.0, times(took))], violations


def _restart_server(bench: Bench, *, down_s: float) -> float | None:
    """Seconds from its first answer until the last of all works on; None = one never did."""
    fleet = bench.fleet
    pids = {role: fleet.pids(role) for role in ("worker", "trainer", "coordinator", "supervisor", "host")}
    fleet.kill_server(down_s)
    bench.until(lambda: fleet.server_is_down_until is None, "the server is started")
    back_ms = bench.now_ms()
    (history,) = bench.histories().values()

    def last_ms() -> int | None:
        """When the last of all was seen at work; None = somebody was not yet."""
        firsts = [
            next((b.at_ms for b in reversed(shard.batches) if b.at_ms >= back_ms), None)
            for shard in history.shards.values()
        ]
        firsts.append(next((u.at_ms for u in history.updates if u.at_ms >= back_ms), None))
        firsts += _seen_ms(fleet.server.url, back_ms, pids)
        known = [at_ms for at_ms in firsts if at_ms is not None]
        return max(known) if len(known) == len(firsts) else None

    try:
        bench.until(last_ms, "everybody works on", timeout_s=30.0)
    except AssertionError:
        return None
    if any(fleet.pids(role) != before for role, before in pids.items()):
        return None  # somebody died of it
    at_ms = last_ms()
    return None if at_ms is None else (at_ms - back_ms) / 1000


def _seen_ms(url: str, since_ms: int, pids: dict[str, list[int]]) -> list[int | None]:
    """When the leader, each supervisor and each worker were heard of; None = not since."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        workers = client.zrangebyscore("heddle:pool:default:workers", since_ms, "+inf", withscores=True)
        supervisors = client.zrangebyscore("heddle:pool:default:supervisors", since_ms, "+inf", withscores=True)
    name, _, until = leader(url)
    seen: list[int | None] = [int(at_ms) for _, at_ms in (*workers, *supervisors)]
    missing = len(pids["worker"]) + len(pids["supervisor"]) - len(seen)
    renewed = until - LEADER_TTL_MS
    return [*seen, *[None] * missing, renewed if name and renewed >= since_ms else None]


def measure_deaths_meanwhile(folder: Path, *, each: int) -> tuple[list[Measured], list[str]]:
    """The server, a worker and its supervisor killed: from the server's return until others play all that it held."""
    bench = Bench.open(folder, Size(hosts=(1, 1, 1), short="restarts", durability="strict"))
    took: list[float | None] = []
    try:
        bench.play("ledger", env={"num_envs": 12})
        while len(took) < each:
            bench.until(lambda: len(bench.owners()) >= 2, "two workers hold shards")
            bench.pause(CALM_S * (1 + bench.rng.random()))
            hit, back_ms = _kill_server_and_host(bench, down_s=float(bench.rng.uniform(0.5, 3.0)))
            if not hit.held:  # it let go of its shards at that very moment
                continue
            bench.until(lambda hit=hit: bench.is_back(hit), f"the shards of {hit.held} are back")  # type: ignore[misc]
            seconds = shard_recovery(hit, bench.histories())
            took.append(None if seconds is None else seconds - (back_ms - hit.at_ms) / 1000)
    finally:
        violations = bench.close()
    return [Measured(f"server, worker, supervisor (TTL {TTL_S:g} s)", 2 * TTL_S + 1, times(took))], violations


def _kill_server_and_host(bench: Bench, *, down_s: float) -> tuple[Hit, int]:
    """What the worker held, and when the server was back."""
    pid = bench.owners()[str(bench.rng.choice(sorted(bench.owners())))]
    found = procs.process(pid)
    assert found is not None
    supervisor = found.parent

    def all_three() -> None:
        bench.fleet.kill_server(down_s)
        os.kill(supervisor, signal.SIGSTOP)  # so that it cannot tell of the worker's death, nor start another
        os.kill(pid, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)

    hit = bench.hit("meanwhile", pid, "worker", all_three)
    bench.until(lambda: bench.fleet.server_is_down_until is None, "the server is started")
    return hit, bench.now_ms()


def measure_cuts(folder: Path, *, each: int) -> tuple[list[Measured], list[str]]:
    """The network of two hosts of four is cut for longer than a TTL: until each's worker plays again after it heals."""
    size = Size(hosts=(1, 1, 1, 1), short="restarts")
    server = serve(folder, size)
    socket_file = server.settings.address.socket_path
    assert socket_file is not None
    proxy = Proxy(socket_file, names_of(size))
    bench = Bench.open(folder, size, proxy=proxy, server=server)
    took: list[float | None] = []
    try:
        bench.play("ledger", env={"num_envs": 16})
        for turn in range(-(-each // 2)):
            bench.until(lambda: len(bench.owners()) == 4, "four workers hold shards")
            bench.pause(CALM_S * (1 + bench.rng.random()))
            two = [f"supervisor-{(turn + more) % 4}" for more in (0, 1 + turn // 4 % 3)]
            took += _cut(bench, proxy, two, ("cut", "deaf", "mute")[turn % 3])
    finally:
        violations = bench.close()
        proxy.stop()
    return [Measured(f"a network cut, healed (TTL {TTL_S:g} s)", TTL_S + 2, times(took))], violations


def _cut(bench: Bench, proxy: Proxy, names: list[str], deed: str) -> list[float | None]:
    """Cut hosts off for two TTLs; seconds from healing until the worker of each has a batch accepted."""
    workers = [cut_off(bench, name)[0] for name in names]
    heal = [proxy.hurt(name, deed) for name in names]
    bench.pause(2 * TTL_S)
    healed_ms = bench.now_ms()
    for one in heal:
        one()
    return [_back(bench, worker, healed_ms) for worker in workers]


def _back(bench: Bench, worker: str, healed_ms: int) -> float | None:
    try:
        return await_played(bench, worker, healed_ms)
    except AssertionError:
        return None


def cut_off(bench: Bench, name: str) -> tuple[str, Hit]:
    """The worker of the supervisor `name`, and what it holds at this moment, before it is cut off."""
    child = bench.fleet.member(name).child
    assert child is not None
    (found,) = [
        (w, pid) for w, pid in bench.owners().items() if (one := procs.process(pid)) and one.parent == child.pid
    ]
    worker, pid = found
    return worker, bench.hit("cut", pid, "worker", lambda: None)


def await_played(bench: Bench, worker: str, since_ms: int) -> float:
    """Seconds from then until `worker` has a batch accepted. Raises AssertionError when it has none in time."""

    def played_ms() -> int | None:
        return next(
            (
                shard.batches[-1].at_ms
                for history in bench.histories().values()
                for shard in history.shards.values()
                if shard.owner.worker == worker and shard.batches and shard.batches[-1].epoch == shard.owner.epoch
                if shard.batches[-1].at_ms >= since_ms
            ),
            None,
        )

    bench.until(played_ms, f"{worker} plays again", timeout_s=30.0)
    at_ms = played_ms()
    assert at_ms is not None
    return (at_ms - since_ms) / 1000
