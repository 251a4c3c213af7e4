"""Turns in lanes: a shard whose environments run in a child, or beside each other, keeps nobody waiting when they do.

It never chooses a shard. Inline environments are played by the worker's own thread, as if there were no lanes.
"""

from heddle.producers.desk import Desk
from heddle.producers.holdings import Facts, Holding
from heddle.producers.lanes import Lane
from heddle.producers.parcel import Parcel
from heddle.producers.stage import Stage
from heddle.producers.turn import Turns
from heddle.producers.user_code import Left

ShardLane = Lane[Parcel | None]


class LaneTurns:
    """Plays turns as `Turns` does, each such shard's in a thread of its own, and never two at once."""

    def __init__(self, turns: Turns, desk: Desk) -> None:
        self._turns = turns
        self._desk = desk

    def play(self, holding: Holding, stage: Stage, facts: Facts) -> Parcel | None:
        """One segment, or the rest of one that had to wait; None when there is nothing to record (yet).

        Raises:
            EnvError, NotFound, Gone, BrokerError: as `Turns.play` does.
        """
        if stage.spec.env.isolation == "inline" and stage.stepping == "inline" and holding.lane is None:
            return self._turns.play(holding, stage, facts)
        if holding.lane is None:
            holding.lane = self._lane(holding)
        lane = holding.lane
        if lane.is_parked:
            self._turns.mark_stepping(holding)  # others had their turn meanwhile
            finished = lane.go_on()
        else:
            finished = lane.begin(lambda: self._turns.play(holding, stage, facts))
        return lane.result() if finished else None

    def close(self, holding: Holding) -> None:
        """Close the shard's environments, whatever they are at, and end its lane."""
        lane = holding.lane
        if lane is None:
            self._turns.close(holding)
            return
        lane.abandon()
        lane.begin(lambda: self._turns.close(holding), may_park=False)
        lane.end()
        holding.lane = None
        lane.result()

    def _lane(self, holding: Holding) -> ShardLane:
        """A lane of which `Turns` and the desk know whether it waits."""
        user_code, desk, kept = self._turns.user_code, self._desk, list[Left]()

        def park() -> None:
            kept.append(user_code.leave())

        def go() -> None:
            user_code.come_back(kept.pop())

        return Lane(f"shard {holding.name}", on_park=park, on_go=go, on_ready=desk.wake)
