"""Text that people could type: specs with wrong values in all places, and command lines.

Half of it is nearly right, so that it gets past the first check.
"""

import functools
import importlib
import json
from typing import Any

import click
import numpy as np

from heddle.cli.root import all_commands
from heddle.spec import load_spec

BASE: dict[str, Any] = {
    "experiment": {"name": "fuzz", "seed": 1},
    "env": {"id": "CartPole-v1", "num_envs": 8},
    "rollout": {"steps": 32, "sync": True},
    "trainer": {"minibatch": 64, "lr": 1e-3},
    "budget": {"env_steps": 100_000},
}
VALUES: tuple[str, ...] = (
    *("0", "-1", "1", "3", "1e400", "-0.0", "nan", "inf", "9223372036854775807", "99999999999999999999999", "0x10"),
    *("true", "false", '""', '"x"', '"90s"', '"3h"', '"64MiB"', '"1e999s"', '"-5s"', '"999999999999999999TiB"'),
    *('"package.module:thing"', '":"', '"os:system"', '"a.b:"', '"CartPole-v1"', '"no such"', '"\\u0000"', '"é✓"'),
    *("[]", "[[]]", "[1, 2]", '["x", 1]', "{}", "{ a = 1 }", '{ id = "x", kwargs = {} }', "{ start = 1, end = 0 }"),
    *("1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '"""\nmany\nlines"""', "'\\'", "[" * 400 + "]" * 400),
    *('"' + "x" * 5_000 + '"', "1_000", "_", "=", "", "# nothing", "{ a = { b = { c = 1 } } }", '"none"', '"mlp"'),
)


@functools.cache
def keys() -> tuple[tuple[str, str], ...]:
    """Every section and key that there is."""
    resolved = json.loads(load_spec(BASE).spec.canonical_json())
    found = [(section, key) for section, values in resolved.items() if values for key in values]
    return tuple(found + [("eval", "episodes"), ("eval", "num_envs"), ("eval", "every_updates"), ("eval", "seed")])


def spec_text(rng: np.random.Generator) -> str:
    """A spec in which one to five values, keys or sections are not what they should be."""
    lines = {(section, key): json.dumps(value) for section, values in BASE.items() for key, value in values.items()}
    for _ in range(1 + int(rng.integers(5))):
        section, key = keys()[int(rng.integers(len(keys())))]
        if rng.random() < 0.1:
            key = ["", "näme", "x.y", '"quoted key"', "numenvs", "a b"][int(rng.integers(6))]
        if rng.random() < 0.05:
            section = ["", "envv", "env.kwargs", "[env]", "a]b", "experiment.experiment"][int(rng.integers(6))]
        lines[section, key] = VALUES[int(rng.integers(len(VALUES)))]
    text = [f"[{section}]\n{key} = {value}" for (section, key), value in lines.items()]
    if rng.random() < 0.7:  # each section once
        by_section: dict[str, list[str]] = {}
        for (section, key), value in lines.items():
            by_section.setdefault(section, []).append(f"{key} = {value}")
        text = [f"[{section}]\n" + "\n".join(values) for section, values in by_section.items()]
    return "\n".join(text) + "\n"


# ---- command lines

NEVER = ("demo", "up", "run", "worker", "coordinator", "trainer", "workers start")
"""What would start something; these are only typed with an option that there is not."""
WAITING = (*NEVER, "wait", "enqueue", "eval", "workers", "record-experience")
"""What could go on for long with a broker that answers."""
FOLLOWING = ("-f", "--follow")
"""Options with which a command goes on for ever there."""
WORDS: tuple[str, ...] = (
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "-x",
        "--no-such",
        "--help",
        "-h",
        "-v",
        "-vv",
        "-o",
        "json",
        "table",
        "yaml",
        "-o=json",
    ),
    *(
        "0",
        "-1",
        "1",
        "1e9",
        "99999999999999999999",
        "nan",
        "x",
        "exp",
        "exp.toml",
        "nowhere.toml",
        ".",
        "/",
    ),
    *("é✓", "\x1b[31m", "\n", "a\nb", "x" * 3_000, "%s", "{}", "*", "~", "$HOME", "`ls`", "; ls", "--set"),
    *("trainer.lr=1", "trainer.lr", "=", "a.b=c", "env.id=", "--set=experiment.name=..", "experiment.seed=[[[[", "=1"),
    *("--redis-url", "redis://127.0.0.1:1/0", "redis://", "http://x", "unix:///nowhere", "redis://h:x", "rediss://["),
    *("redis://[::1", "redis://127.0.0.1:1/x", "redis://127.0.0.1:1/0?socket_timeout=x", "redis://u:p@127.0.0.1:1"),
    *(
        "1-1",
        "9999999999999-1",
        "new.safetensors",
        "--all",
        "--force",
        "--for",
        "completed",
        "--timeout",
        "5m",
        "1e400",
        "--name",
        "--resume",
        "--version",
    ),
)


def command_line(rng: np.random.Generator, *, live: bool) -> list[str]:
    """A command with arguments, options and nonsense.

    Args:
        live: a broker answers, so only commands that end by themselves.
    """
    paths = [one for one in _paths() if not live or one[0] not in WAITING]
    path, offered = paths[int(rng.integers(len(paths)))]
    options = [option for option in offered if not live or option not in FOLLOWING]
    argv = path.split()
    if rng.random() < 0.1 and not live:
        argv = [WORDS[int(rng.integers(len(WORDS)))]]
    if live and rng.random() < 0.7:
        argv.append("exp")
    for _ in range(int(rng.integers(6))):
        if options and rng.random() < 0.5:
            argv.append(options[int(rng.integers(len(options)))])
        else:
            argv.append(WORDS[int(rng.integers(len(WORDS)))])
    if " ".join(argv).startswith(NEVER):
        argv.insert(len(path.split()), "--no-such-option")
    return argv


@functools.cache
def _paths() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every command, and its options."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for name, entry in all_commands().items():
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        group = command.commands if isinstance(command, click.Group) else {}
        for path, one in [(name, command), *((f"{name} {child}", sub) for child, sub in group.items())]:
            found.append(
                (path, tuple(option for parameter in one.params for option in parameter.opts if "-" in option))
            )
    return tuple(found)
