"""What pages of the documentation tell people to type, and a check of each kind of it that starts nothing."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from heddle.cli.root import Group, all_commands

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"])
FENCES = ("sh", "bash", "console")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
ELSEWHERE = {"redis-cli", "jq", "curl", "source", "duckdb", "uv", "pip", "git"}
"""Programs of others: what is asked of them other tests ask, or nobody."""


def lines_of(text: str) -> Iterator[str]:
    """Every line of a page's shell blocks: of those in fences, and of those that are indented by four spaces."""
    language, before, indented = None, "", False
    for line in text.splitlines():
        fence = re.match(r"```(\w*)", line)
        if fence:
            language = fence[1] if language is None else None
        elif language is not None:
            if language in FENCES and line.strip():
                yield line.strip()
        else:
            indented = bool(line.strip()) and line.startswith("    ") and (indented or not before.strip())
            if indented:
                yield line.strip()
        before = line


def shell_lines(page: Path) -> list[str]:
    """Those of a page."""
    return list(lines_of(page.read_text(encoding="utf-8")))


def commands_of(line: str) -> list[list[str]]:
    """The commands of a line as words, without what is assigned before them, also those in $(...)."""
    inner = re.findall(r"\$\(([^()]*)\)", line)
    found: list[list[str]] = [[]]
    for word in shlex.split(re.sub(r"\$\([^()]*\)", "GIVEN", line), comments=True):
        if word in ("|", "&&"):
            found.append([])
        elif found[-1] or not ASSIGNMENT.match(word):
            found[-1].append(word)
    here = [words for words in found if words and words[0] != "export"]
    return [*here, *(words for one in inner for words in commands_of(one))]


def wrong_with(words: list[str]) -> str | None:
    """What would not be understood of a command; None when all would."""
    program, *rest = words
    if program in ELSEWHERE:
        return None
    known = {"heddle": _heddle, "make": _make, "python": _python, ".venv/bin/python": _python, "docker": _docker}
    known |= {"promtool": _files, ".ci/run": _files}
    return known[program](rest) if program in known else f"nobody here knows {program}"


def _options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}


def _heddle(words: list[str]) -> str | None:
    entry = all_commands().get(words[0])
    if entry is None:
        return f"no command {words[0]}"
    command = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(command, click.Group):
        name = words[1] if len(words) > 1 else ""
        if name not in command.commands and isinstance(command, Group) and command.default:
            name = command.default(name)
        if name not in command.commands:
            return f"{words[0]} has no command {name}"
        command = command.commands[name]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return _unless(_options(words) - known, "options")


def _make(words: list[str]) -> str | None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return _unless(set(words) - set(targets), "targets")


def _python(words: list[str]) -> str | None:
    module, *rest = words if words[0] != "-m" else words[1:]
    if module == "pytest":
        return _files([word for word in rest if word != "-s"])
    path = ROOT / (module if module.endswith(".py") else module.replace(".", "/"))
    sources = [path] if path.is_file() else [*path.glob("*.py"), *path.parent.glob(f"{path.name}.py")]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    return _unless({one for one in _options(rest) if f'"{one}"' not in text}, "options") or _files(rest)


def _docker(words: list[str]) -> str | None:
    if words[0] != "compose":
        return None
    file = ROOT / words[words.index("-f") + 1]
    if "--profile" in words and f"profiles: [{words[words.index('--profile') + 1]}]" not in file.read_text("utf-8"):
        return "a profile that is none"
    return _files(words)


def _files(words: list[str]) -> str | None:
    """Paths below a folder of this repository are there, but for results."""
    folders = ("deploy/", "examples/", "tests/", "benchmarks/")
    return _unless({word for word in words if word.startswith(folders) and not (ROOT / word).exists()}, "files")


def _unless(unknown: set[str], what: str) -> str | None:
    return f"no such {what}: {sorted(unknown)}" if unknown else None
