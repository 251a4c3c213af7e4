"""The loop that anybody would write for a game of several agents that act at once. It knows nothing of Heddle.

What it shares with a run are the actions, and the seed of each game's first round.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.conformance.plain import Stream


def play(game: Any, seed: int, actions: Sequence[Any]) -> list[Stream]:
    """Play rounds of `game` until somebody who acts has no action left.

    Args:
        actions: [k, ...] of each of its possible agents.

    Returns:
        Of each agent, where a round's first observation stands behind the end of the one before.
    """
    agents = list(game.possible_agents)
    streams = [Stream() for _ in agents]
    totals = dict.fromkeys(agents, 0.0)
    own = dict(zip(agents, streams, strict=True))
    begun = dict.fromkeys(agents, 0)
    observations, _ = game.reset(seed=seed)
    _begin(game.agents, observations, own, totals, begun)
    while all(len(own[agent].rewards) < len(actions[agents.index(agent)]) for agent in game.agents):
        playing = list(game.agents)
        if not playing:
            observations, _ = game.reset()
            _begin(game.agents, observations, own, totals, begun)
            continue
        chosen = {}
        for agent in playing:
            one, space = actions[agents.index(agent)][len(own[agent].rewards)], game.action_space(agent)
            chosen[agent] = int(one) if np.ndim(one) == 0 else np.clip(one, space.low, space.high)
        observations, rewards, terminated, truncated, _ = game.step(chosen)
        for agent in playing:
            stream, step = own[agent], len(own[agent].rewards)
            stream.rewards.append(rewards[agent])
            stream.terminated.append(bool(terminated[agent]))
            stream.truncated.append(bool(truncated[agent]))
            stream.observations.append(np.array(observations[agent]))
            totals[agent] += float(rewards[agent])
            if terminated[agent] or truncated[agent]:
                stream.returns[step], stream.lengths[step] = totals[agent], step + 1 - begun[agent]
                if not terminated[agent]:
                    stream.finals[step] = np.array(observations[agent])
        _begin([agent for agent in game.agents if agent not in playing], observations, own, totals, begun)
    return streams


def _begin(agents: Sequence[str], seen: Any, own: Any, totals: dict[str, float], begun: dict[str, int]) -> None:
    """An episode of these begins with what they see now."""
    for agent in agents:
        stream = own[agent]
        stream.observations[-1:] = [np.array(seen[agent])]
        totals[agent], begun[agent] = 0.0, len(stream.rewards)
