"""The exp.toml that `heddle init` writes: valid as it is, every section explained.

It never reads the models; a test holds the two together.
"""

_TEMPLATE = """# An experiment for Heddle. Check it with `heddle validate`, see what it needs with `heddle plan`,
# run it here with `heddle run`, or hand it to a fleet with `heddle enqueue`.
# Lines that start with "# key =" show what else there is; `heddle plan` shows the defaults. Remove the "# " to use one.

[experiment]
name = "@NAME@"             # a-z, 0-9, - and _
seed = 0                      # every random stream follows from it
# tags = []
# pool = "default"            # the workers that play it

[env]
id = "@ENV@"          # a Gymnasium id, or "package.module:factory"
num_envs = 8                  # over all workers; cut into shards by itself
# kwargs = { gravity = 9.8 }  # for the environment
# wrappers = ["package.module:Wrapper"]
# step_timeout = "60s"        # a step, reset or act that takes longer ends its worker
# isolation = "process"       # a child process for each shard: what crashes, hangs or leaks ends only that
# stepping = "inline"         # or "auto", "threads", "processes", "async": those that wait are stepped side by side
# memory = "2GiB"             # for each child, with isolation = "process"

[policy]
# id = "mlp"                  # or "package.module:Name"
# hidden = [64, 64]
# activation = "tanh"         # or "relu"

[rollout]
steps = 32                    # steps of a segment
sync = true                   # every update on one batch of each shard; or, faster on a fleet:
# max_policy_lag = 4          # instead of sync: how many versions old experience may be
# compression = "none"        # or "lz4", "zstd"
# plane = "auto"              # large batches lie in shared memory where worker and trainer share a host; or "redis"

[trainer]
learner = "ppo"               # or "package.module:Learner"
lr = { start = 1e-3, end = 0.0 }  # a number, or a straight line over the budget
gamma = 0.98
gae_lambda = 0.8
clip = { start = 0.2, end = 0.0 }
passes = 20
minibatch = 256
entropy = 0.0
# target_kl = 0.02
# normalize_observations = false
# checkpoint_every = 1        # updates
# device = "auto"             # or "cpu", "cuda"
# compile = false             # the network by torch.compile

[eval]                        # remove the section to train without evaluation
num_envs = 2
episodes = 10
every_updates = 50

[budget]                      # the first limit reached ends the run
env_steps = 100_000
# wall = "1h"
# target_return = 475

[faults]
# lease_ttl = "10s"           # a dead worker's shards are played again after this long
# env_failures = 10           # in a row, after which a shard is set aside (quarantined); 1: after the first one
# on_quarantine = "continue"  # or "fail": what a shard does to the run that was set aside
# snapshot_every = "auto"     # batches; 1: whoever takes over a shard always continues exactly where it was; 0: never

[limits]
# max_bytes = "512MiB"        # between workers and trainer; more waits, nothing is dropped
# durability = "fast"         # the least the broker must promise: "strict", "fast" or "memory"
"""


_COMMENTS_AT = 30
"""Column at which comments begin, where the value leaves room."""


def template(*, name: str = "my-run", env_id: str = "CartPole-v1") -> str:
    """A commented exp.toml for `env_id`.

    Args:
        name: experiment.name; must be a slug.
        env_id: env.id; must hold no quotes.
    """
    filled = _TEMPLATE.replace("@NAME@", name).replace("@ENV@", env_id)
    return "".join(_aligned(line) for line in filled.splitlines(keepends=True))


def _aligned(line: str) -> str:
    """A line whose value was filled in, with its comment where those of the others begin."""
    value, mark, comment = line.partition("  # ")
    return line if not mark or line.startswith("#") else f"{value.rstrip():<{_COMMENTS_AT - 2}}  # {comment.lstrip()}"
