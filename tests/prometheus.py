"""A real Prometheus for tests: the one on PATH, or that which HEDDLE_PROMETHEUS names, asking what the tests serve."""

import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.helpers import eventually

RULES = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "rules.yml"


def binary(name: str = "prometheus") -> str:
    """Where it is; skips without it, and fails where every server must be there."""
    found = os.environ.get("HEDDLE_PROMETHEUS", "") or shutil.which("prometheus") or ""
    path = Path(found).with_name(name) if found else Path()
    if found and path.is_file():
        return str(path)
    if os.environ.get("HEDDLE_ALL_SERVERS"):
        pytest.fail("no prometheus on PATH, and HEDDLE_ALL_SERVERS is set")
    pytest.skip("no prometheus on PATH (apt-get install prometheus)")


def alerts() -> dict[str, dict[str, Any]]:
    """Every rule that is shipped, by the name of its alert."""
    parsed = YAML(typ="safe").load(RULES.read_text(encoding="utf-8"))
    return {rule["alert"]: rule for group in parsed["groups"] for rule in group["rules"]}


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now."""
        found = self.ask("/api/v1/query", query=expression)["result"]
        return [one if isinstance(one, dict) else {"value": one} for one in found]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """One that asks `target` once a second, with the rules that are shipped."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{RULES}]\n"
        f"scrape_configs: [{{job_name: heddle, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = [binary(), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    started = Prometheus(f"http://127.0.0.1:{port}")
    try:
        eventually(lambda: _answers(started), timeout_s=60, every_s=0.2, what="prometheus answers")
        yield started
    finally:
        process.terminate()
        process.wait(30)


def _answers(started: Prometheus) -> bool:
    try:
        return bool(started.ask("/api/v1/status/buildinfo"))
    except OSError:
        return False
