"""The queries of the dashboards that are shipped, as Grafana would ask them."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "dashboards"
VARIABLES = ("$experiment", "$pool")


def panels() -> list[tuple[str, str]]:
    """Every panel's every query: "dashboard: panel: letter", and the expression with its variables set to all."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for variable in VARIABLES:
                    expression = expression.replace(variable, ".*")
                found.append((f"{path.stem}: {panel['title']}: {target['refId']}", expression))
    return found


def names(expression: str) -> set[str]:
    """The metrics that an expression asks for."""
    return set(re.findall(r"\bheddle_\w+", expression))


def selectors(expression: str) -> list[tuple[str, dict[str, str]]]:
    """Each metric with the labels that it is asked for by."""
    found = []
    for name, inside in re.findall(r"\b(heddle_\w+)(?:\{([^}]*)\})?", expression):
        found.append((name, dict(re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', inside))))
    return found
