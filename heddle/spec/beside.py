"""How many environments of a shard are stepped beside each other, and who waits for a slow one.

Pure: it never looks at how many cores there are, so that a plan says what holds wherever the shard is played.
"""

from heddle.spec.environments import Env
from heddle.spec.models import ExperimentSpec

MOST_CHILDREN = 16
"""Children of a shard where the spec gives no number: each takes some 40 MB and half a second of a core to start."""
MOST_THREADS = 64


def children_of(env: Env, num_envs: int) -> int:
    """In how many children `num_envs` environments of one shard are stepped."""
    return min(num_envs, env.processes or MOST_CHILDREN)


def threads_of(env: Env, num_envs: int) -> int:
    """In how many threads `num_envs` environments of one shard are stepped."""
    return min(num_envs, env.threads or MOST_THREADS)


def who_waits(spec: ExperimentSpec) -> str:
    """How the environments of a shard are stepped, and whom a slow one holds up, in words."""
    env = spec.env
    most = min(env.envs_per_shard, env.num_envs)
    if env.at_once:
        return "one call steps all environments of a shard: a slow one holds up its worker"
    if env.stepping == "processes":
        return _in_children(env, most)
    if env.stepping == "threads" and most > (count := threads_of(env, most)):
        return f"{count} threads for {most} environments: while {count} are slow at once, the others wait"
    if env.stepping == "auto":
        return "timed at the first steps: in threads where they mostly wait, else one after the other"
    if env.stepping == "inline":
        return "one environment after the other: a slow one holds up its worker"
    return f"{env.stepping}: a slow environment holds up nobody"


def _in_children(env: Env, most: int) -> str:
    count = children_of(env, most)
    if count == most:
        return f"processes: a child for each environment, {count} a shard: a slow one holds up nobody"
    share, noun = -(-most // count), "child" if count == 1 else "children"
    return (
        f"processes: {count} {noun} a shard, up to {share} environments in each: a slow one holds up those in its"
        f" child; env.processes = {most} gives each a child of its own"
    )
