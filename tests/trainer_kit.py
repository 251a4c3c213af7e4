"""What trainer tests share: workers without environments, a learner that remembers, and a trainer process to kill.

Run as a program it is that trainer: `python -m tests.trainer_kit URL EXPERIMENT DIRECTORY TTL_MS`.
"""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

import numpy as np
import torch

from heddle.batch import checksum, encode, spot_check
from heddle.broker import Broker, keys
from heddle.broker.experience_types import Flow
from heddle.broker.pools import WorkerBeat
from heddle.broker.records import text
from heddle.broker.types import AppendMeta, AppendReply, Claim
from heddle.checkpoint import Checkpoint, newest
from heddle.clock import SystemClock
from heddle.consumers.learners import TrainBatch
from heddle.consumers.setting import read_setting
from heddle.consumers.trainer import Trainer
from heddle.errors import HeddleError
from heddle.layout import Segments
from heddle.plane import Home, Ring, Slot, file_of, open_plane
from heddle.policies.base import Array, Arrays, Policy
from heddle.shard import plan_shards
from heddle.spaces import Box, Discrete, to_json
from heddle.spec import ExperimentSpec, load_spec
from heddle.stop import StopFlag, listen_to_signals
from tests.helpers import eventually

TTL_MS = 60_000
STEPS = 4
ENVS = 2
SPEC: dict[str, Any] = {
    "experiment": {"name": "test"},
    "env": {"id": "CartPole-v1", "num_envs": 4, "envs_per_shard": ENVS},
    "policy": {"hidden": [4]},
    "rollout": {"steps": STEPS, "sync": True},
    "trainer": {"learner": "tests.trainer_kit:Recorder", "minibatch": 8},
    "budget": {"env_steps": 1_000_000},
    "faults": {"lease_ttl": 0.5},
}
SPACES = {
    "observation": to_json(Box((4,), "float32")),
    "action": to_json(Discrete(2, 0)),
}


class Recorder:
    """A learner that learns nothing and remembers which batches it saw; hangs and fails on request.

    The workers of this kit write (shard, seq) into every observation, so `seen` in its state is a ledger that a
    checkpoint carries.

    Args:
        hooks: a folder; while it holds a file hang-make, hang-update, hang-state, fail-update, nan-weights, nan-loss,
            exploded-gradient or die-SHARD-SEQ, that happens.
    """

    min_steps = 1

    def __init__(
        self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int, hooks: str = ""
    ) -> None:
        self.weights = policy.get_weights()
        self.seen: list[list[tuple[int, int]]] = []
        self._hooks = Path(hooks) if hooks else None
        self._hook("make")

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        self._hook("update")
        firsts = batch.observations["obs"][:, 0, :2].to(torch.int64).tolist()
        seen = sorted({(int(shard), int(seq)) for shard, seq in firsts})
        for shard, seq in seen:
            if self._has(f"die-{shard}-{seq}"):
                os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(seen)
        loss, norm = (math.nan if self._has("nan-loss") else 0.0), (1e7 if self._has("exploded-gradient") else 1.0)
        return {"policy_loss": loss, "grad_norm": norm, "progress": progress}

    def get_weights(self) -> Arrays:
        add = np.nan if self._has("nan-weights") else len(self.seen)
        return {name: array + np.float32(add) for name, array in self.weights.items()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """The weights follow from what was seen."""

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        self._hook("state")
        return {}, {"seen": [[list(pair) for pair in update] for update in self.seen]}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        self.seen = [[(shard, seq) for shard, seq in update] for update in meta["seen"]]

    def _has(self, name: str) -> bool:
        return self._hooks is not None and (self._hooks / name).exists()

    def _hook(self, where: str) -> None:
        if self._hooks is None:
            return
        if (self._hooks / f"fail-{where}").exists():
            raise ValueError("the learner fell over")
        if (self._hooks / f"hang-{where}").exists():
            (self._hooks / f"in-{where}").touch()
            while (self._hooks / f"hang-{where}").exists():
                SystemClock().sleep(0.005)


def hanging_policy(observation: object, action: object) -> Never:
    """A policy of a user's that is never made."""
    while True:
        SystemClock().sleep(0.1)


def submit(broker: Broker, *, resume_from: str | None = None, **sections: dict[str, Any]) -> str:
    """An experiment of SPEC with changes, its shards made and counted; the id."""
    raw = {name: {**SPEC.get(name, {}), **sections.get(name, {})} for name in {*SPEC, *sections}}
    spec = load_spec(raw).spec
    made = broker.experiments.submit(
        spec.canonical_json(),
        "",
        spec.sha256(),
        spec.experiment.name,
        suffix=os.urandom(3).hex(),
        spaces=json.dumps(SPACES),
        resume_from=resume_from,
    )
    plans = plan_shards(spec)
    broker.shards.create(made.id, 0, plans, leader_epoch=1)
    kinds = [plan.kind for plan in plans]
    broker.experiments.set_active(made.id, leader_epoch=1, active=kinds.count("train"), active_eval=kinds.count("eval"))
    broker.shards.queue_tickets(made.id, 0, [plan.index for plan in plans], "default")
    return made.id


def run_well(broker: Broker, experiment: str, *workers: str) -> int:
    """As it is while all is well: a coordinator leads, a trainer trains on the policy it published, workers play.

    Returns:
        The epoch of its seat.
    """
    broker.conn.main.hset(keys.status(experiment), "state", "running")
    assert broker.coordinators.claim_leader("c-1", ttl_ms=600_000) is not None
    epoch = broker.seats.claim_seat(experiment, "t-1", ttl_ms=600_000)
    assert epoch is not None
    broker.experiments.set_command(experiment, "run")
    broker.policies.publish(experiment, epoch, 1, b"w", update=0)
    for worker in workers:
        broker.pools.heartbeat(WorkerBeat(worker, pid=7, host="box", state="playing", shards=1), ttl_ms=600_000)
    return epoch


class Fleet:
    """Every shard of an experiment in one hand: claims, appends, and knows what it gave."""

    def __init__(self, broker: Broker, experiment: str, *, worker: str = "w1") -> None:
        self.broker = broker
        self.experiment = experiment
        self.setting = read_setting(broker, experiment)
        self.worker = worker
        self.claims: dict[int, Claim] = {}
        self.seqs: dict[int, int] = {}
        self.gave: list[tuple[int, int]] = []
        is_shared = self.setting.spec.plane == "shm"
        self.home = Home(open_plane(), broker.planes.identity(), experiment) if is_shared else None
        self._ring = None if self.home is None else Ring(self.home)
        self._told = ""  # the shared memory that the readers see, as the broker last said

    def claim_all(self) -> "Fleet":
        """Every shard that waits for a worker."""
        while (ticket := self.broker.shards.read_ticket("default", self.worker, block_ms=0)) is not None:
            claim = self.broker.shards.claim(ticket, worker=self.worker, nonce=os.urandom(4).hex(), ttl_ms=TTL_MS)
            self.broker.shards.drop_ticket(ticket)
            assert isinstance(claim, Claim), claim
            self.claims[ticket.shard], self._told = claim, claim.plane
            self.seqs[ticket.shard] = claim.seq
        return self

    def segments(self, shard: int, version: int, *, rows: int = ENVS, returns: Sequence[float] = ()) -> Segments:
        """One segment for each environment; `returns` of episodes that ended in the first one's steps."""
        made = Segments.empty(self.setting.layout, rows)
        made.arrays["obs"][..., 0] = shard
        made.arrays["obs"][..., 1] = self.seqs[shard] + 1
        made.arrays["reward"][:] = 1.0
        if "out.log_prob" in made.arrays:
            made.arrays["out.log_prob"][:] = np.log(0.5)
        made.arrays["length"][:] = STEPS
        made.arrays["env"][:] = np.arange(rows)
        made.arrays["version"][:] = version
        for step, value in enumerate(returns):
            made.arrays["terminated"][0, step] = True
            made.arrays["episode_return"][0, step] = value
            made.arrays["episode_length"][0, step] = 1
        return made

    def give(
        self,
        shard: int,
        version: int,
        *,
        given: int | None = None,
        returns: Sequence[float] = (),
        data: bytes | None = None,
        steps: int | None = None,
        **told_ms: int,
    ) -> AppendReply:
        """Append the shard's next batch; raises when it is not accepted."""
        reply = self.offer(shard, version, given=given, returns=returns, data=data, steps=steps, **told_ms)
        assert reply.status == "OK", reply
        return reply

    def offer(
        self,
        shard: int,
        version: int,
        *,
        given: int | None = None,
        returns: Sequence[float] = (),
        data: bytes | None = None,
        steps: int | None = None,
        **told_ms: int,
    ) -> AppendReply:
        """Append the shard's next batch, or bytes in its place."""
        claim = self.claims[shard]
        segments = self.segments(shard, version, returns=returns)
        blob = bytes(encode(self.setting.layout, segments)) if data is None else data
        slot = self._slot(blob) if data is None else None
        meta = AppendMeta(
            kind=claim.kind,
            version_min=version,
            version_max=version,
            segments=segments.rows,
            steps=segments.num_steps if steps is None else steps,
            bytes=len(blob),
            crc32=checksum(blob) if slot is None else spot_check(blob),
            given=(version if claim.sync or claim.kind == "eval" else 0) if given is None else given,
            **told_ms,
        )
        seq, lease = self.seqs[shard] + 1, claim.lease
        if slot is not None:
            slot.offer(file_of(lease.shard, lease.epoch, lease.nonce, seq))
        reply = self.broker.shards.append(
            lease,
            seq=seq,
            blob=memoryview(blob) if slot is None else None,
            meta=meta,
            ttl_ms=TTL_MS,
            stepping_next=True,
            place="" if slot is None else slot.token,
        )
        self._told = reply.plane
        if slot is not None:
            slot.close() if reply.status == "OK" else slot.discard()
        if reply.status == "OK":
            self.seqs[shard] = seq
            self.gave.append((shard, seq))
        return reply

    def _slot(self, blob: bytes) -> Slot | None:
        """A buffer with these bytes, where the readers see this host's shared memory."""
        if self._ring is None:
            return None
        if not self._told:  # what a claim of now would be told
            self._told = text(self.broker.conn.main.hget(keys.ctl(self.experiment, 0), "plane"))
        if self._ring.token != self._told:
            return None
        slot = self._ring.take(len(blob))
        slot.view()[: len(blob)] = blob
        return slot

    def end(self) -> None:
        """Leave nothing in shared memory, whatever happened."""
        if self._ring is not None and self.home is not None:
            self._ring.close()
            self.home.drop()

    def release_all(self) -> None:
        """Let every shard go."""
        for claim in self.claims.values():
            self.broker.shards.release(claim.lease)
        self.claims.clear()

    def version(self, at_least: int = 1) -> int:
        """The latest policy, once it is at least so high."""
        return eventually(
            lambda: (found := self.broker.policies.latest(self.experiment)) >= at_least and found,
            what=f"policy {at_least}",
        )

    def flow(self) -> Flow:
        return self.broker.experience.flow(self.experiment, 0)

    def check_balance(self) -> None:
        """appended = all outcomes + in flight, in batches and steps."""
        flow = self.flow()
        for unit in ("batches", "steps"):
            names = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back")
            settled = sum(getattr(getattr(flow, name), unit) for name in names)
            in_flight = flow.entries if unit == "batches" else flow.steps
            assert getattr(flow.appended, unit) == settled + in_flight, flow


class InThread:
    """A trainer in a thread of this process."""

    def __init__(self, url: str, experiment: str, directory: Path, *, ttl_ms: int = 1_000) -> None:
        self.stop = StopFlag()
        self.code: int | None = None
        self.error: BaseException | None = None
        self._trainer = Trainer(url, experiment, directory=directory, stop=self.stop, ttl_ms=ttl_ms)
        self._thread = threading.Thread(target=self._run, name="trainer")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self._trainer.run()
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float = 30.0) -> int | None:
        """Wait for its end; the exit code, or raise what it raised."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the trainer did not end"
        if self.error is not None:
            raise self.error
        return self.code

    def leave(self) -> int | None:
        """SIGTERM, as it were."""
        self.stop.request("the test says so")
        return self.join()

    def end(self) -> None:
        """Whatever happens."""
        self.stop.request("the test is over")
        self.stop.request("the test is over")
        self._thread.join(30.0)


@contextmanager
def trainers(url: str, home: Path) -> Iterator[Callable[..., InThread]]:
    """Starts trainers in threads, with checkpoints in `home`, and ends them."""
    running: list[InThread] = []

    def begin(experiment: str, **options: Any) -> InThread:
        running.append(InThread(url, experiment, home, **options))
        return running[-1]

    yield begin
    for one in running:
        one.end()


def start_process(url: str, experiment: str, directory: Path, *, ttl_ms: int = 1_000) -> subprocess.Popen[bytes]:
    """A trainer process to kill."""
    argv = [sys.executable, "-m", "tests.trainer_kit", url, experiment, str(directory), str(ttl_ms)]
    return subprocess.Popen(argv, cwd=Path(__file__).resolve().parents[1], stderr=subprocess.PIPE)


def seen_in(checkpoint: Checkpoint | None) -> list[tuple[int, int]]:
    """Every (shard, seq) that the saved learner has seen, in the order of its updates."""
    assert checkpoint is not None
    return [(shard, seq) for update in checkpoint.learner_meta["seen"] for shard, seq in update]


def saved(directory: Path) -> Checkpoint | None:
    """The newest checkpoint."""
    return newest(directory / "checkpoints")


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    url, experiment, directory, ttl_ms = sys.argv[1:]
    stop = StopFlag()
    listen_to_signals(stop)
    try:
        return Trainer(url, experiment, directory=Path(directory), stop=stop, ttl_ms=int(ttl_ms)).run()
    except HeddleError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
