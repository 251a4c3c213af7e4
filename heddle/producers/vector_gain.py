"""What the vector form that a Gymnasium id registers would gain, measured: before a run, for whoever asks.

It never runs within a worker and never chooses: with such a form episodes have other seeds and no snapshots.
"""

from heddle.clock import Clock, SystemClock
from heddle.errors import HeddleError
from heddle.layout import make_layout
from heddle.policies import Policy
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.vector_player import VectorPlayer
from heddle.shard import plan_shards
from heddle.spaces import Space
from heddle.spec import ExperimentSpec
from heddle.spec.objects import is_object_name

STEPS = 16
LONGEST_S = 0.1
"""A segment ends after this long, however slow a step is."""
ROUNDS = 5


def vector_gain(
    spec: ExperimentSpec, observation: Space, action: Space, policy: Policy, *, clock: Clock | None = None
) -> float:
    """How many times as many steps a second a shard would play with `env.vector = true`; 0.0 where it cannot.

    Both ways are played here, with the spec's policy, in turn; the fastest segment of each counts. A spec that asks
    for what a vector form has not (variants, wrappers, children, another way of stepping) is not tried.
    """
    if not _may_gain(spec):
        return 0.0
    rollout = spec.rollout.model_copy(update={"steps": STEPS, "max_seconds": LONGEST_S})
    plain = spec.model_copy(update={"rollout": rollout})
    vector = plain.model_copy(update={"env": spec.env.model_copy(update={"vector": True})})
    keys, plan = spec.rollout.info_keys, plan_shards(spec)[0]
    layout = make_layout(observation, action, steps=STEPS, outputs=policy.outputs, state=policy.state, info_keys=keys)
    time, players = clock or SystemClock(), list[Play]()
    try:
        players.append(VectorPlayer(plan, vector, policy, layout, clock=time))
        players.append(Player(plan, plain, policy, layout, clock=time))
        seconds = [[_segment_s(player, time) for player in players] for _ in range(1 + ROUNDS)][1:]  # the first begins
    except HeddleError:  # none is registered, it has other spaces, or it does not play
        return 0.0
    finally:
        for player in players:
            player.close()
    quickest = [min(of_one) for of_one in zip(*seconds, strict=True)]
    return float(quickest[1] / quickest[0])


def _may_gain(spec: ExperimentSpec) -> bool:
    env = spec.env
    as_it_is = not (env.at_once or env.in_children or env.variants or env.wrappers) and env.stepping == "inline"
    return as_it_is and env.envs_per_shard > 1 and not is_object_name(env.id)


def _segment_s(player: Play, clock: Clock) -> float:
    """Seconds a step of one more segment."""
    player.prepare()
    began = clock.monotonic()
    segments = player.play(1)
    took_s = clock.monotonic() - began
    steps = segments.num_steps
    player.recycle(segments)
    return took_s / max(1, steps)
