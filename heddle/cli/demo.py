"""`demo`: CartPole trained here by a small fleet, with one worker killed on the way.

Nothing in it is staged: the kill is a SIGKILL, the shards come back by the same rules as anywhere, and the numbers
are counted by the broker.
"""

import os
import signal
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle.cli.options import command, folder_to_fill
from heddle.cli.progress import trying
from heddle.cli.roles import need_torch

if TYPE_CHECKING:
    from heddle.cli.evaluate import Score
    from heddle.cli.outcome import Outcome
    from heddle.cli.running import Running

GOAL = 475.0
EPISODES = 100
KILL_AT = 1 / 3
LEAST_WORKERS = 2


def cartpole_toml() -> str:
    """The spec of the demo, as shipped."""
    return resources.files("heddle.cli").joinpath("data", "cartpole.toml").read_text(encoding="utf-8")


@dataclass(slots=True)
class Kill:
    """Kills one worker at a third of the budget and watches its shards come back.

    Attributes:
        worker: who was killed; "" before.
        lost: its shards that nobody has yet, with the epoch under which it had them.
        back: shard, new worker, seconds.
    """

    worker: str = ""
    lost: dict[int, int] = field(default_factory=dict)
    back: list[tuple[int, str, float]] = field(default_factory=list)
    _at: float = 0.0

    def step(self, running: "Running") -> None:
        """Look, and kill when it is time."""
        facts = running.reader.facts()
        if not self.worker:
            if facts.budget_steps and facts.steps >= KILL_AT * facts.budget_steps:
                self._kill(running)
            return
        if self.lost:
            self._look(running)

    def _kill(self, running: "Running") -> None:
        held = running.reader.held()
        for child in running.local.workers():
            shards = held.get(child.worker)
            if shards and not child.ending:
                os.kill(child.pid, signal.SIGKILL)
                self.worker, self.lost, self._at = child.worker, dict(shards), running.reader.now()
                numbers = " ".join(str(shard) for shard in sorted(shards))
                running.reader.say(f"SIGKILL to worker {child.worker}, which played shards {numbers}")
                return

    def _look(self, running: "Running") -> None:
        for shard, epoch in list(self.lost.items()):
            owner = running.reader.owner(shard)
            if owner is not None and owner.epoch > epoch:
                seconds = running.reader.now() - self._at
                self.back.append((shard, owner.worker, seconds))
                del self.lost[shard]
                running.reader.say(f"shard {shard} back on worker {owner.worker} after {seconds:.1f} s")


@command("demo", example="heddle demo\nheddle demo --workers 4")
@click.option(
    "-n", "--workers", type=click.IntRange(LEAST_WORKERS), default=LEAST_WORKERS, show_default=True, help="Workers."
)
@click.option("--dir", "directory", metavar="DIR", default="runs", show_default=True, help="Where checkpoints go.")
def demo(workers: int, directory: str) -> None:
    """Train CartPole-v1 here with a server, a coordinator, two workers and a trainer; kill a worker on the way.

    Exit code 1 when the mean return of 100 fresh episodes is below 475 or the accounting does not add up.
    """
    need_torch("heddle demo")
    from heddle.cli.audience import lasting_output
    from heddle.cli.running import Order, run_here
    from heddle.launch.check import load_and_check
    from heddle.launch.local import LAUNCHER_SIGNALS
    from heddle.stop import listen_no_more

    with trying():
        loaded, checked = load_and_check(cartpole_toml())
    kill = Kill()
    order = Order(
        loaded=loaded,
        checked=checked,
        url=None,
        private=True,
        workers=workers,
        directory=folder_to_fill(directory, "--dir"),
        title="heddle demo: CartPole-v1",
    )
    with lasting_output() as audience:
        outcome = run_here(order, audience, each_step=kill.step)
        listen_no_more(LAUNCHER_SIGNALS)
        if outcome.state != "completed":
            _say_cut_short(outcome)
            raise click.exceptions.Exit(outcome.exit_code or 1)
        score = _score(outcome)
        tell_demo(outcome, kill, score)
    good = score is not None and score.return_mean >= GOAL and outcome.adds_up and bool(kill.worker) and not kill.lost
    raise click.exceptions.Exit(0 if good else 1)


def _say_cut_short(outcome: "Outcome") -> None:
    click.echo(f"\nthe demo did not end: {outcome.state}{f': {outcome.reason}' if outcome.reason else ''}")
    for why in outcome.restarts[-3:]:
        click.echo(f"  {why}")


def _score(outcome: "Outcome") -> "Score | None":
    from heddle.cli.evaluate import find_checkpoint, play
    from heddle.cli.run import best_checkpoint

    path = best_checkpoint(outcome)
    if not path:
        return None
    click.echo(f"\nplaying {EPISODES} fresh episodes with the best checkpoint ...")
    return play(find_checkpoint(Path(path)), episodes=EPISODES)


def tell_demo(outcome: "Outcome", kill: Kill, score: "Score | None") -> None:
    """The result, then the curve, and what to do next: what is known does not wait for what draws."""
    from heddle.cli.run import LAST, best_checkpoint, draw_curve
    from heddle.cli.tables import print_facts

    facts = outcome.facts
    click.echo("")
    print_facts(
        [
            ("return", _score_text(score)),
            ("speed", f"{facts.steps:,} steps in {facts.elapsed_s:.0f} s"),
            ("killed", _killed_text(kill)),
            ("batches", outcome.line),
            *(("trouble", what) for what in outcome.troubles[:5]),
            (LAST, best_checkpoint(outcome) or "none"),
        ]
    )
    _draw(outcome)
    picture = draw_curve(outcome, title=f"CartPole-v1, PPO, {outcome.experiment}", goal=GOAL)
    print_facts([(f"{'curve':<{len(LAST)}}", picture or "")])
    click.echo("\nnext:")
    click.echo(f"  heddle eval {outcome.directory} --episodes 100")
    click.echo("  heddle init my.toml && heddle run my.toml   # yours goes into [env] id")
    click.echo("  heddle up           # services that stay; then heddle enqueue my.toml")


def _draw(outcome: "Outcome") -> None:
    from heddle.cli.curve import Curve, braille

    click.echo("\nmean return of the last 100 training episodes")
    for line in braille([Curve("training", outcome.facts.returns)], x_label="environment steps"):
        click.echo(line)
    click.echo("")


def _killed_text(kill: Kill) -> str:
    if not kill.worker:
        return "nobody: it was over too soon"
    slowest = max((seconds for _, _, seconds in kill.back), default=0.0)
    killed = f"worker {kill.worker} with SIGKILL; {len(kill.back)} shards back within {slowest:.1f} s"
    return f"{killed}, {len(kill.lost)} never" if kill.lost else killed


def _score_text(score: "Score | None") -> str:
    if score is None:
        return "no checkpoint was written"
    mark = "at least" if score.return_mean >= GOAL else "BELOW"
    return f"{score.return_mean:.1f} ± {score.return_std:.1f} over {score.episodes} fresh episodes, {mark} {GOAL:.0f}"
