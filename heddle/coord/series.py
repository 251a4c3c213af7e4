"""Series: what a look at the fleet says in numbers, with names, labels and units as Prometheus wants them.

Pure. Labels are experiments, pools and words of our own, never workers or shards; times are seconds, sizes bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heddle.broker.fleet import Fleet
from heddle.broker.overview import ExperimentGlance
from heddle.broker.presence import WorkerInfo

Sample = tuple[tuple[str, ...], float]
Values = Mapping[str, float]
QUIET_MS = 5_000
SETTLED = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back")
MEASURED = {
    "return": ("heddle_return", "Mean return of the last 100 training episodes"),
    "eval_return": ("heddle_eval_return", "Mean return of the last evaluation"),
    "length": ("heddle_episode_length_steps", "Mean length of the last 100 training episodes"),
    "steps_per_second": ("heddle_trained_steps_per_second", "Steps per second at the last update"),
    "update_seconds": ("heddle_update_seconds", "Time of the last update"),
    "wait_seconds": ("heddle_trainer_wait_seconds", "Time that the trainer waited for the last update's experience"),
    "worker_wait_seconds": (
        "heddle_worker_wait_seconds",
        "Time workers waited, summed over the last update's batches",
    ),
    "checkpoint_seconds": ("heddle_checkpoint_seconds", "Time of the last checkpoint"),
    "cpu_seconds": ("heddle_trainer_cpu_seconds", "Processor time of the trainer's process"),
    "rss_bytes": ("heddle_trainer_memory_bytes", "Memory of the trainer's process"),
    "gpu_bytes": ("heddle_trainer_gpu_memory_bytes", "Memory that the trainer holds on its GPU; absent without one"),
    "gpu_use": ("heddle_trainer_gpu_use_ratio", "Share of time in which that GPU was busy; absent without one"),
    "longest_shard": (
        "heddle_slowest_shard",
        "Shard (its number) whose batch of the last update took longest to play",
    ),
}
"""Metrics of updates that become gauges."""
STAGES = ("rollout", "append", "stream", "queue", "update", "publish", "first_use")
"""What a batch goes through; of the first four there is one figure for each batch of an update."""
STATS = {"mean": "{}_seconds", "p95": "{}_p95_seconds", "slowest": "slowest_{}_seconds"}
"""How a stage's seconds are told, and the metric of that."""
STATES = ("playing", "waiting", "idle", "draining", "silent", "dead")
LAGS = 8
QUANTILES = ((0.5, "0.5"), (0.95, "0.95"), (1.0, "1"))
PLAY_STEP = {"0.5": "play_step_p50_seconds", "0.95": "play_step_p95_seconds", "1": "play_step_max_seconds"}


@dataclass(frozen=True, slots=True)
class Series:
    """One name with its samples.

    Attributes:
        name: a counter's ends in _total.
        kind, about: counter or gauge; one line.
        labels: their names, in the order of each sample's values.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    labels: tuple[str, ...]
    samples: Sequence[Sample]


def series_of(
    fleet: Fleet, coordinator: str, latest: Mapping[str, Values], budgets: Values, phases: Mapping[str, Values]
) -> list[Series]:
    """Everything, of whoever leads; of others that they do not, so that nothing is there twice.

    Args:
        coordinator: id of whoever is asked.
        latest: last value of every metric, by experiment.
        budgets: steps of each experiment's budget, 0 without one.
        phases: what workers spend their time on, shares by pool and phase.
    """
    leader = fleet.server.leader
    somebody = leader is not None and leader.left_ms > 0
    leads = somebody and leader is not None and leader.coordinator == coordinator
    own = [
        _gauge("heddle_broker_up", "1 while the broker answers", (), [((), 1.0)]),
        _gauge("heddle_leader", "1 while any coordinator leads", (), [((), float(somebody))]),
        _gauge("heddle_leads", "1 while this coordinator leads", (), [((), float(leads))]),
    ]
    if not leads:
        return own
    return [
        *own,
        *_broker(fleet),
        *_experiments(fleet),
        *_flow(fleet),
        *_trainers(fleet, latest, budgets),
        *_stages(fleet, latest),
        *_pools(fleet),
        _gauge("heddle_worker_time_ratio", "Share of its workers' time by phase; sending is another thread's",
               ("pool", "phase"), [((pool, phase), share) for pool, some in phases.items()
                                   for phase, share in some.items()]),
    ]  # fmt: skip


def _gauge(name: str, about: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Series:
    return Series(name, "gauge", about, labels, list(samples))


def _counter(name: str, about: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Series:
    return Series(name, "counter", about, labels, list(samples))


def _broker(fleet: Fleet) -> list[Series]:
    server = fleet.server
    network = [(("in",), float(server.read_bytes)), (("out",), float(server.written_bytes))]

    def one(name: str, about: str, value: float) -> Series:
        return _gauge(name, about, (), [((), float(value))])

    return [
        one("heddle_broker_uptime_seconds", "Since the broker's start", server.uptime_ms / 1000),
        one("heddle_broker_used_bytes", "Memory that the broker uses", server.used_bytes),
        one("heddle_broker_max_bytes", "Memory that it may use (maxmemory); 0 for no limit", server.max_bytes),
        one("heddle_broker_ops_per_second", "Commands per second of late", server.ops_per_second),
        one("heddle_broker_clients", "Connections", server.clients),
        _counter("heddle_broker_network_bytes_total", "Bytes since the broker's start", ("direction",), network),
        one("heddle_queue_entries", "Submitted experiments that wait for a coordinator", server.queued),
    ]


def _experiments(fleet: Fleet) -> list[Series]:
    states: list[str] = [glance.status.state for glance in fleet.experiments.values()]
    states += [status.state for status in fleet.ended.values()]
    names = ("queued", "running", "paused", "stopping", "completed", "stopped", "failed")
    counted = [((name,), float(states.count(name))) for name in names]
    running = [((one,), float(glance.status.state == "running")) for one, glance in _each(fleet)]
    return [
        _gauge("heddle_experiments", "Experiments by their written state", ("state",), counted),
        _gauge("heddle_experiment_running", "1 while it runs; 0 while queued, paused or stopping", ("experiment",),
               running),
    ]  # fmt: skip


def _each(fleet: Fleet) -> list[tuple[str, ExperimentGlance]]:
    return list(fleet.experiments.items())


def _counted(fleet: Fleet) -> list[tuple[str, ExperimentGlance]]:
    """Those whose counters are told: also what ended lately, for what came behind the last scrape before its end."""
    return list({**fleet.lately, **fleet.experiments}.items())


def _flow(fleet: Fleet) -> list[Series]:
    found, counted = _each(fleet), _counted(fleet)

    def gauge(name: str, about: str, field: str) -> Series:
        return _gauge(name, about, ("experiment",), [((one,), float(getattr(g.flow, field))) for one, g in found])

    def counter(name: str, about: str, field: str, unit: str) -> Series:
        samples = [((one,), float(getattr(getattr(g.flow, field), unit))) for one, g in counted]
        return _counter(name, about, ("experiment",), samples)

    def settled(unit: str) -> Series:
        samples = [
            ((one, outcome), float(getattr(getattr(g.flow, outcome), unit)))
            for one, g in counted
            for outcome in SETTLED
        ]
        return _counter(f"heddle_settled_{unit}_total", f"What became of {unit}", ("experiment", "outcome"), samples)

    return [
        counter("heddle_appended_batches_total", "Batches accepted from workers", "appended", "batches"),
        counter("heddle_appended_steps_total", "Environment steps accepted from workers", "appended", "steps"),
        _counter("heddle_appended_bytes_total", "Bytes of those batches, in shared memory, too", ("experiment",),
                 [((one,), float(g.flow.appended_bytes)) for one, g in counted]),
        settled("batches"),
        settled("steps"),
        counter("heddle_fenced_batches_total", "Batches refused: another owns their shard", "discarded", "batches"),
        counter("heddle_forgotten_batches_total", "Accepted batches that the broker lost", "forgotten", "batches"),
        gauge("heddle_in_flight_batches", "Accepted and not settled", "entries"),
        gauge("heddle_in_flight_bytes", "Accepted and not settled", "bytes"),
        gauge("heddle_parked_bytes", "Of batches that wait for room in the stream", "parked"),
        gauge("heddle_shards_waiting", "Shards that wait for room in the stream", "waiting"),
        _gauge("heddle_in_flight_max_bytes", "The cap of what is in flight", ("experiment",),
               [((one,), float(g.ctl.max_bytes)) for one, g in found]),
        _gauge("heddle_in_flight_max_batches", "The cap of what is in flight", ("experiment",),
               [((one,), float(g.ctl.max_entries)) for one, g in found]),
        _gauge("heddle_shards", "Shards: all, those that count, those that are played", ("experiment", "kind"),
               [((one, kind), float(value)) for one, g in found for kind, value in _shards(g).items()]),
        _counter("heddle_shards_reassigned_total", "Shards taken from an owner, by why", ("experiment", "reason"),
                 [((one, reason), float(g.totals[name])) for one, g in counted
                  for name, reason in (("reaped", "lease_over"), ("vouched", "worker_ended"))]),
        _counter("heddle_shards_quarantined_total", "Shards set aside (quarantined)", ("experiment",),
                 [((one,), float(g.totals["quarantined"])) for one, g in counted]),
    ]  # fmt: skip


def _shards(glance: ExperimentGlance) -> dict[str, int]:
    ctl = glance.ctl
    return {"all": glance.shards, "active": ctl.active + ctl.active_eval, "leased": glance.leased}


def _trainers(fleet: Fleet, latest: Mapping[str, Values], budgets: Values) -> list[Series]:
    found = _each(fleet)
    series = [
        _gauge(name, about, ("experiment",),
               [((one,), latest[one][metric]) for one, _ in found if metric in latest.get(one, {})])
        for metric, (name, about) in MEASURED.items()
    ]  # fmt: skip
    lags = [((one, label), lag) for one, _ in found for label, lag in lag_quantiles(latest.get(one, {})).items()]
    about = "Versions behind, of the last update's segments; 7 stands for 7 and more"
    return [
        *series,
        _gauge("heddle_policy_lag", about, ("experiment", "quantile"), lags),
        _gauge("heddle_policy_version", "Latest published version", ("experiment",),
               [((one,), float(g.status.policy)) for one, g in found]),
        _gauge("heddle_budget_steps", "Environment steps of the budget; 0 without one", ("experiment",),
               [((one,), budgets.get(one, 0.0)) for one, _ in found]),
        _gauge("heddle_trainer_seated", "1 while a trainer holds the seat", ("experiment",),
               [((one,), float(g.sitter.left_ms > 0)) for one, g in found]),
        _counter("heddle_trainer_seats_total", "How often a trainer took the seat", ("experiment",),
                 [((one,), float(g.seats)) for one, g in _counted(fleet)]),
        _counter("heddle_trainer_restarts_total", "Trainers that another one followed, by how they ended",
                 ("experiment", "reason"),
                 [((one, how), float(number)) for one, g in _counted(fleet) for how, number in g.followed.items()]),
    ]  # fmt: skip


def _stages(fleet: Fleet, latest: Mapping[str, Values]) -> list[Series]:
    """Where batches of the last update spent their time, and how fast shards play."""
    known = [(one, latest.get(one, {})) for one, _ in _each(fleet)]
    stages = [
        ((one, stage, stat), values[metric])
        for one, values in known
        for stage in STAGES
        for stat, form in STATS.items()
        if (metric := form.format(stage)) in values
    ]
    steps = [((one, label), has[name]) for one, has in known for label, name in PLAY_STEP.items() if name in has]
    about = "Time of a batch by stage, over the batches of the last update"
    return [
        _gauge("heddle_batch_stage_seconds", about, ("experiment", "stage", "stat"), stages),
        _gauge("heddle_play_step_seconds", "Time a shard takes for one environment step, policy and encoding included",
               ("experiment", "quantile"), steps),
    ]  # fmt: skip


def lag_quantiles(latest: Values) -> dict[str, float]:
    """Quantiles of the lag histogram of the last update; {} before the first."""
    counts = [latest.get(f"lag_{lag}", 0.0) for lag in range(LAGS)]
    whole, found = sum(counts), {}
    for share, label in QUANTILES if whole else ():
        seen = 0.0
        for lag, count in enumerate(counts):
            seen += count
            if seen >= share * whole:
                found[label] = float(lag)
                break
    return found


def _pools(fleet: Fleet) -> list[Series]:
    pools = fleet.pools
    infos = {name: list(some.values()) for name, some in fleet.workers.items()}

    def gauge(name: str, about: str, value: Mapping[str, float]) -> Series:
        return _gauge(name, about, ("pool",), [((pool,), value[pool]) for pool in value])

    here = {name: [one for one in some if one.alive] for name, some in infos.items()}
    states = [
        ((name, state), float(sum(state_of(one) == state for one in some)))
        for name, some in infos.items()
        for state in STATES
    ]
    hosts = {name: [report for report in pool.hosts.values() if report is not None] for name, pool in pools.items()}
    return [
        _gauge("heddle_workers", "Workers by what they do", ("pool", "state"), states),
        gauge("heddle_desired_workers", "Workers that the pool shall have",
              {name: float(pool.wanted) for name, pool in pools.items() if pool.wanted is not None}),
        gauge("heddle_pool_steps_per_second", "Environment steps per second of all its workers of late",
              {name: sum(one.beat.steps_per_second for one in some) for name, some in here.items()}),
        gauge("heddle_env_step_seconds", "Time of one environment step of late, mean over the workers that play",
              {name: _mean([one.beat.ms_per_step / 1000 for one in some if one.beat.ms_per_step])
               for name, some in here.items()}),
        gauge("heddle_worker_wait_ratio", "Share of the time of workers with shards in which they could play none",
              {name: _mean([share for one in some if (share := one.beat.waits) is not None])
               for name, some in here.items()}),
        gauge("heddle_worker_memory_bytes", "Memory of all its workers",
              {name: float(sum(one.beat.rss_bytes for one in some)) for name, some in here.items()}),
        gauge("heddle_worker_cpu_seconds", "Processor time of the workers that are here",
              {name: sum(one.beat.cpu_s for one in some) for name, some in here.items()}),
        gauge("heddle_host_free_bytes", "Memory free on its hosts",
              {name: float(sum(one.free_bytes for one in some)) for name, some in hosts.items()}),
        gauge("heddle_host_cores", "Cores of its hosts",
              {name: float(sum(one.cores for one in some)) for name, some in hosts.items()}),
        _counter("heddle_worker_deaths_total", "Workers that ended by themselves, by how", ("pool", "how"),
                 [((name, how), float(pool.deaths.get(how, 0))) for name, pool in pools.items()
                  for how in ("exit", "left", "signal", "silent")]),
    ]  # fmt: skip


def state_of(info: WorkerInfo) -> str:
    """What a worker does, in one of six words."""
    if info.died or not info.alive:
        return "dead"
    if info.silent_ms >= QUIET_MS:
        return "silent"
    if info.draining:
        return "draining"
    return info.beat.state if info.beat.state in STATES else "idle"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
