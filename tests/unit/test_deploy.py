"""deploy/ hangs together: what is mounted is there, who is asked is a service, and dashboards ask what is provisioned.

It starts nothing: profile `obs` needs images that are not here.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
GRAFANA = DEPLOY / "grafana"


def parsed(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def plain(text: str) -> str:
    """With the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


COMPOSE = parsed(DEPLOY / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounts(service: str) -> dict[str, str]:
    """What is mounted into a service, by where to: a path as it is written, or a volume."""
    split = [plain(one).split(":") for one in SERVICES[service].get("volumes", [])]
    return {target: source for source, target, *_ in split}


def on_this_machine(service: str, inside: str) -> Path:
    """The file or folder that a service sees at a path."""
    target = max((one for one in mounts(service) if Path(inside).is_relative_to(one)), key=len)
    return DEPLOY / mounts(service)[target] / Path(inside).relative_to(target)


def listens(service: str) -> set[int]:
    """Ports of a service that are published, within its container."""
    return {int(plain(one).rpartition(":")[2]) for one in SERVICES[service].get("ports", [])}


def test_everything_that_is_mounted_is_there() -> None:
    found = [(service, source) for service in SERVICES for source in mounts(service).values()]
    folders = [source for _, source in found if source.startswith(".")]
    assert {"./prometheus", "./grafana/provisioning", "./grafana/dashboards"} <= set(folders)
    assert [source for source in folders if not (DEPLOY / source).is_dir()] == []
    assert {source for _, source in found if not source.startswith(".")} == COMPOSE["volumes"].keys()


def test_ports_are_published_on_loopback_alone_and_images_have_versions() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) >= 3
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", plain(port))] == []
    images = {plain(service["image"]) for service in SERVICES.values()}
    assert [image for image in images if not re.search(r":[\w.-]*\d", image)] == ["heddle:local"]


def test_prometheus_reads_the_rules_and_asks_the_coordinators() -> None:
    (given,) = [word for word in SERVICES["prometheus"]["command"] if word.startswith("--config.file=")]
    config = on_this_machine("prometheus", given.partition("=")[2])
    told = parsed(config)
    assert [config.parent / name for name in told["rule_files"]] == [DEPLOY / "prometheus" / "rules.yml"]
    assert (DEPLOY / "prometheus" / "rules.yml").is_file()
    targets = [one for job in told["scrape_configs"] for some in job["static_configs"] for one in some["targets"]]
    command = SERVICES["coordinator"]["command"]
    assert targets == [f"coordinator:{command[command.index('--metrics-port') + 1]}"]
    assert command[command.index("--metrics-bind") + 1] == "0.0.0.0", "another container asks"


def provisioned(what: str) -> list[dict[str, Any]]:
    """What Grafana is told of at its start."""
    folder = on_this_machine("grafana", f"/etc/grafana/provisioning/{what}")
    key = "providers" if what == "dashboards" else what
    return [one for path in sorted(folder.glob("*.yaml")) for one in parsed(path)[key]]


def test_grafana_finds_prometheus_and_every_dashboard() -> None:
    (source,) = provisioned("datasources")
    assert source["type"] == "prometheus"
    host, port = source["url"].removeprefix("http://").split(":")
    assert int(port) in listens(host)
    (provider,) = provisioned("dashboards")
    found = sorted(on_this_machine("grafana", provider["options"]["path"]).glob("*.json"))
    assert found == sorted((GRAFANA / "dashboards").glob("*.json")) != []
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in found]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(boards)


def uses(part: Any) -> list[Any]:
    """Every datasource that a dashboard names, wherever in it."""
    if isinstance(part, list):
        return [one for inner in part for one in uses(inner)]
    if not isinstance(part, dict):
        return []
    own = [part["datasource"]] if "datasource" in part else []
    return own + [one for name, inner in part.items() if name != "datasource" for one in uses(inner)]


@pytest.mark.parametrize("path", sorted((GRAFANA / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_asks_a_source_that_is_provisioned(path: Path) -> None:
    known = [{"type": one["type"], "uid": one["uid"]} for one in provisioned("datasources")]
    board = json.loads(path.read_text(encoding="utf-8"))
    queries = [target for panel in board["panels"] for target in panel["targets"]]
    variables = board["templating"]["list"]
    assert all("datasource" in one for one in (*board["panels"], *queries, *variables))
    assert len(asked := uses(board)) > 2 * len(board["panels"])
    assert [one for one in asked if one not in known] == []


def test_compose_understands_the_profile_as_we_do() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        if os.environ.get("HEDDLE_ALL_SERVERS"):
            pytest.fail("no docker compose, and HEDDLE_ALL_SERVERS is set")
        pytest.skip("no docker compose")
    command = [
        "docker",
        "compose",
        "-f",
        str(DEPLOY / "compose.yaml"),
        "--profile",
        "obs",
        "config",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["services"]
    assert told.keys() == SERVICES.keys()
    binds = [one for service in told.values() for one in service.get("volumes", []) if one["type"] == "bind"]
    assert [one["source"] for one in binds if not Path(one["source"]).is_dir()] == []
    ports = [one for service in ("prometheus", "grafana") for one in told[service]["ports"]]
    assert {(one["host_ip"], one["target"]) for one in ports} == {("127.0.0.1", 9090), ("127.0.0.1", 3000)}
    assert [path for path in told["prometheus"]["volumes"] if path["type"] == "bind" and not path["read_only"]] == []
