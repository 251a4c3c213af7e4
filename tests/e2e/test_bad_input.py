"""What bad input gets: one line and what to do, the right exit code, never a traceback and never a silent hang."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.broker.server import LocalServer, start_server
from tests.e2e.shell import heddle, heddle_json, processes_of, started
from tests.helpers import eventually

SPEC = """
[experiment]
name = "bad"
[env]
id = "{env}"
num_envs = 2
[policy]
id = "{policy}"
[rollout]
steps = 8
sync = true
[trainer]
minibatch = 16
[budget]
env_steps = 1_000
[faults]
lease_ttl = 1
barren_deaths = 2
on_quarantine = "fail"
"""

ENVIRONMENTS = """
import gymnasium, numpy as np, os
from gymnasium import spaces


class Good(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class WrongShape(Good):
    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


class OldStep(Good):
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


class Leaving(Good):
    def step(self, action):
        raise SystemExit(0)


class Silent(Exception):
    def __str__(self):
        raise ValueError("even the message is broken")


class Unspeakable(Good):
    def step(self, action):
        raise Silent


class Masked(Good):
    # refuses what its mask forbids, as game engines do

    observation_space = spaces.Dict(
        board=spaces.Box(-1, 1, (2,), np.float32), action_mask=spaces.Box(0, 1, (3,), np.int8)
    )
    action_space = spaces.Discrete(3)

    def look(self):
        mask = np.ones(3, np.int8)
        mask[self.np_random.integers(3)] = 0
        self.mask = mask
        return {"board": np.zeros(2, np.float32), "action_mask": mask.copy()}

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.n = 0
        return self.look(), {}

    def step(self, action):
        assert self.mask[action], "not allowed"
        self.n += 1
        return self.look(), 1.0, self.n == 5, False, {}


class Text(Good):
    observation_space = spaces.Text(5)


class LaterDeath(Good):
    def step(self, action):
        self.n = getattr(self, "n", 0) + 1
        if self.n > 4 and os.environ.get("HEDDLE_WORKER_ID"):
            raise RuntimeError("the simulator lost its licence")
        return super().step(action)


def good(**_): return Good()
def wrong_shape(**_): return WrongShape()
def old_step(**_): return OldStep()
def text(**_): return Text()
def raising(**_): raise RuntimeError("no display found")
def leaving(**_): return Leaving()
def leaving_early(**_): raise SystemExit("licence missing")
def unspeakable(**_): return Unspeakable()
def masked(**_): return Masked()
def later_death(**_): return LaterDeath()


class NoPolicy:
    def __init__(self, observation, action): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with modules of the user's."""
    (tmp_path / "bad_envs.py").write_text(ENVIRONMENTS)
    return tmp_path


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A broker of the test's own."""
    with start_server(tmp_path_factory.mktemp("broker")) as running:
        yield running


def write(folder: Path, env: str = "bad_envs:good", policy: str = "mlp") -> str:
    path = folder / "exp.toml"
    path.write_text(SPEC.format(env=env, policy=policy))
    return str(path)


def only_line(text: str) -> str:
    """The one line of an error."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("env", "policy", "said"),
    [
        ("CartPol-v1", "mlp", "CartPole-v1"),
        ("bad_envs:nothing", "mlp", "nothing"),
        ("no_such_module:make", "mlp", "no_such_module"),
        ("bad_envs:raising", "mlp", "no display found"),
        ("bad_envs:wrong_shape", "mlp", "(3,)"),
        ("bad_envs:old_step", "mlp", "step"),
        ("bad_envs:text", "mlp", "its space holds text"),
        ("bad_envs:leaving", "mlp", "step 1 raised SystemExit: 0"),
        ("bad_envs:leaving_early", "mlp", "licence missing"),
        ("bad_envs:unspeakable", "mlp", "step 1 raised Silent: its message cannot be shown"),
        ("bad_envs:good", "bad_envs:NoPolicy", "policy"),
        ("bad_envs:good", "bad_envs:Missing", "Missing"),
    ],
)
def test_a_bad_environment_or_policy_is_found_before_anything_is_submitted(
    env: str, policy: str, said: str, folder: Path, server: LocalServer
) -> None:
    spec = write(folder, env, policy)
    assert said in only_line(heddle("validate", spec, cwd=folder, code=3).stderr)
    assert said in only_line(heddle("enqueue", spec, cwd=folder, url=server.url, code=3).stderr)
    assert heddle_json("ls", cwd=folder, url=server.url)["experiments"] == []


def test_an_environment_that_refuses_what_its_mask_forbids_is_checked_and_trained(folder: Path) -> None:
    spec = write(folder, "bad_envs:masked")
    heddle("validate", spec, cwd=folder)
    done = heddle("run", spec, "-o", "json", cwd=folder, timeout_s=120)
    assert '"state": "completed"' in done.stdout


def test_an_unknown_environment_is_told_beside_other_mistakes_of_its_section(folder: Path) -> None:
    spec = Path(write(folder, "CartPol-v1"))
    spec.write_text(spec.read_text().replace("num_envs = 2", "num_envs = 0"))
    said = heddle("validate", str(spec), cwd=folder, code=3).stderr
    assert "env.num_envs = 0" in said
    assert "CartPole-v1" in said
    assert len(said.strip().splitlines()) == 2


def test_an_environment_that_dies_in_the_workers_fails_the_experiment_with_its_reason(
    folder: Path, server: LocalServer
) -> None:
    spec, url = write(folder, "bad_envs:later_death"), server.url
    with (
        started("coordinator", cwd=folder, url=url),
        started("workers", "start", "-n", "1", cwd=folder, url=url),
        started("trainer", cwd=folder, url=url),
    ):
        experiment = heddle("enqueue", spec, cwd=folder, url=url).stdout.strip()

        def failed() -> bool:
            return str(heddle_json("status", experiment, cwd=folder, url=url)["state"]) == "failed"

        eventually(failed, timeout_s=60, every_s=0.3)
        shown = heddle("status", experiment, cwd=folder, url=url).stdout
        assert "the simulator lost its licence" in shown + heddle("shards", experiment, cwd=folder, url=url).stdout
        assert "Traceback" not in shown
        heddle("wait", experiment, cwd=folder, url=url, code=1)


def test_run_of_a_dying_environment_fails_with_its_reason_and_ends(folder: Path) -> None:
    spec = write(folder, "bad_envs:later_death")
    done = heddle("run", spec, cwd=folder, code=1, timeout_s=90)
    assert "licence" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert processes_of(folder) == {}


def test_a_broker_that_is_absent_is_one_line_and_exit_code_5(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for command in (["ls"], ["worker"], ["coordinator"], ["trainer"], ["workers", "start"], ["run", write(folder)]):
        line = only_line(heddle(*command, cwd=folder, url=f"redis://127.0.0.1:{port}/0", code=5).stderr)
        assert str(port) in line


def test_a_wrong_password_is_one_line_and_exit_code_6(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with start_server(tmp_path_factory.mktemp("closed"), port=0) as closed:
        address = closed.url.rpartition("@")[2]
        for url in (f"redis://:wrong@{address}", f"redis://{address}"):
            for command in (["ls"], ["coordinator"], ["workers", "start"]):
                line = only_line(heddle(*command, cwd=folder, url=url, code=6).stderr)
                assert "password" in line.lower()
                assert "wrong@" not in line


def test_a_server_that_evicts_is_refused_with_the_command_that_mends_it(folder: Path, server: LocalServer) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    line = only_line(heddle("ls", cwd=folder, url=server.url, code=5).stderr)
    assert "noeviction" in line
    assert "CONFIG SET" in line.upper()


def test_something_that_is_no_redis_is_told_in_one_line(folder: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        done = heddle("ls", cwd=folder, url=f"redis://127.0.0.1:{listener.getsockname()[1]}/0", code=5)
    only_line(done.stderr)


@pytest.mark.parametrize("url", ["http://x", "nonsense", "redis://host:notaport/0"])
def test_an_address_that_is_none_is_told_in_one_line(url: str, folder: Path) -> None:
    done = heddle("ls", cwd=folder, url=url, code=None)
    assert done.returncode in (2, 5)
    only_line(done.stderr)


def test_a_checkpoint_that_is_none_is_told_in_one_line(folder: Path) -> None:
    (folder / "torn.safetensors").write_bytes(b"not a checkpoint")
    assert "torn.safetensors" in only_line(heddle("eval", "torn.safetensors", cwd=folder, code=1).stderr)
    only_line(heddle("eval", "nowhere.safetensors", cwd=folder, code=4).stderr)
