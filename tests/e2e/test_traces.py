"""Traces of whole runs: real workers and a real trainer, and a collector that takes OTLP, or never answers.

One that is not there is in tests/loops/test_observing_page.py: docs/observing.md has that line.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.tracing.spans import FOLLOWED_MS
from tests.e2e.shell import ROOT, started
from tests.helpers import eventually
from tests.otlp import Collector, Seen, collector, need_opentelemetry

CARTPOLE = str(ROOT / "examples" / "cartpole.toml")
SHORT = ("--set", "budget.env_steps=8_000", "--workers", "2", "-o", "json")
SLOW = """
import time
import gymnasium

class Slow(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        time.sleep(0.004)
        return super().step(action)
"""
EACH_FOLLOWED = ("--set", "env.id=slow:Slow", "--set", "rollout.steps=64", "--set", "budget.env_steps=5_000")
"""Its batches take 64 x 4 ms and more."""


@pytest.fixture(autouse=True)
def _opentelemetry() -> None:
    need_opentelemetry()


@pytest.fixture
def taken() -> Iterator[Collector]:
    with collector() as made:
        yield made


def run(folder: Path, trace: str, *more: str) -> dict[str, object]:
    """A short run to its end; what it says of it."""
    with started("run", CARTPOLE, *SHORT, *more, cwd=folder, extra={"HEDDLE_TRACE": trace}) as running:
        assert running.ends(timeout_s=120) == 0, running.output()
    out = running.output()
    told: dict[str, object] = json.loads(out[out.index("\n{\n") :])
    return told


def test_a_batch_is_followed_from_its_rollout_to_the_first_use_of_what_it_taught(
    tmp_path: Path, taken: Collector
) -> None:
    assert FOLLOWED_MS <= 64 * 4
    (tmp_path / "slow.py").write_text(SLOW)
    assert run(tmp_path, taken.url, *EACH_FOLLOWED)["state"] == "completed"
    seen = taken.by_ref()

    def path_of(update: Seen) -> bool:
        """All that comes before an update and after it is there, and hangs together."""
        queues = [seen[ref] for ref in update.links]
        publish = next(span for span in taken.named("publish") if span.parent == update.span)
        uses = [span for span in taken.named("first use") if span.parent == publish.span]
        for queue in queues:
            append = seen[queue.trace, queue.parent]
            rollout = seen[append.trace, append.parent]
            stream = next(span for span in taken.named("stream") if span.trace == queue.trace)
            assert rollout.service == append.service == "heddle-worker"
            assert queue.service == stream.service == update.service == publish.service == "heddle-trainer"
            assert rollout.instance != update.instance
            assert stream.parent == append.span
            assert queue.links == (update.ref,)
            assert rollout.began_ns <= rollout.ended_ns <= append.ended_ns
            assert stream.ended_ns <= queue.ended_ns == update.began_ns <= publish.ended_ns
            assert seen[rollout.links[0]].name == "publish"
        for use in uses:
            assert use.links[0] not in seen or seen[use.links[0]].name == "rollout"
            assert use.about["heddle.version"] == update.about["heddle.version"]
        return len(queues) > 0 and len({use.instance for use in uses}) == 2

    updates = taken.named("update")
    assert len(updates) >= 8
    assert sum(path_of(update) for update in updates) >= 3  # used by both workers
    assert {use.links[0] for use in taken.named("first use")} & seen.keys()
    assert len({span.ref for span in taken.spans}) == len(taken.spans)


def test_a_run_ends_as_ever_with_a_collector_that_never_answers(tmp_path: Path) -> None:
    with collector(slow=True) as slow:
        assert run(tmp_path, slow.url)["state"] == "completed"
        assert slow.requests > 0
        assert slow.spans == []


def test_a_worker_that_is_told_of_no_collector_says_so_in_one_line(tmp_path: Path) -> None:
    with started("worker", cwd=tmp_path, url="redis://127.0.0.1:1", extra={"HEDDLE_TRACE": "yes"}) as worker:
        eventually(lambda: worker.process.poll() is not None, timeout_s=60)
    assert worker.process.returncode == 2
    assert "HEDDLE_TRACE=yes names no collector" in worker.output()
    assert "Traceback" not in worker.output()


@pytest.mark.parametrize("command", [("run", CARTPOLE), ("up",), ("workers", "start", "-n", "2")])
def test_whatever_starts_roles_refuses_what_they_would_refuse(tmp_path: Path, command: tuple[str, ...]) -> None:
    url = "redis://127.0.0.1:1" if command[0] == "workers" else None  # the others start a broker of their own
    with started(*command, cwd=tmp_path, url=url, extra={"HEDDLE_TRACE": "yes"}) as one:
        assert one.ends() == 2
    assert "HEDDLE_TRACE=yes names no collector" in one.output()
    assert "Traceback" not in one.output()
