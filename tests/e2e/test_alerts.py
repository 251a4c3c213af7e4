"""Every alert that is shipped, made to fire and kept from it by Prometheus' own tester; needs promtool."""

import re
import subprocess
from pathlib import Path

from ruamel.yaml import YAML

from tests.panels import names
from tests.prometheus import RULES, alerts, binary

CASES = RULES.with_name("rules_test.yml")


def asked(what: str, cases: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary("promtool"), *what.split(), str(cases)], text=True, capture_output=True)


def test_the_rules_are_right_by_prometheus_own_word() -> None:
    done = asked("check rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_where_it_shall_and_not_where_that_comes_close() -> None:
    done = asked("test rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_a_case_in_which_it_fires_and_one_with_all_its_metrics_in_which_it_does_not() -> None:
    fires: set[str] = set()
    quiet: dict[str, set[str]] = {}
    for case in YAML(typ="safe").load(CASES.read_text(encoding="utf-8"))["tests"]:
        series = {name for one in case["input_series"] for name in names(one["series"])}
        expected = {check["alertname"]: False for check in case["alert_rule_test"]}
        expected |= {check["alertname"]: True for check in case["alert_rule_test"] if check["exp_alerts"]}
        assert case["name"] == f"{next(iter(expected))} {'fires' if any(expected.values()) else 'keeps quiet'}"
        for alert, fired in expected.items():
            if fired:
                fires.add(alert)
            else:
                quiet.setdefault(alert, set()).update(series)
    rules = alerts()
    assert fires == quiet.keys() == rules.keys()
    assert {alert: names(rule["expr"]) - quiet[alert] for alert, rule in rules.items()} == dict.fromkeys(rules, set())


def test_an_alert_that_did_not_wait_as_its_rule_says_would_be_told(tmp_path: Path) -> None:
    text = RULES.read_text(encoding="utf-8")
    (tmp_path / RULES.name).write_text(re.sub(r"\n +for: \w+", "", text))
    (tmp_path / CASES.name).write_text(CASES.read_text(encoding="utf-8"))
    told = asked("test rules", tmp_path / CASES.name)
    waiting = {alert for alert, rule in alerts().items() if "for" in rule}
    assert len(waiting) >= 9
    assert set(re.findall(r"alertname: (\w+)", told.stdout + told.stderr)) >= waiting
