"""What is in deploy/ for Prometheus and Grafana, by Prometheus's own checker: it is read, and says what it should."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.metrics.conftest import Promtool

PROMETHEUS = ROOT / "deploy" / "prometheus"
NAME = re.compile(r"\b(?:octavo|process)_[a-z0-9_]+")
ALERT = re.compile(r"- alert: (\w+)")


def dashboard() -> dict[str, Any]:
    return dict(json.loads((ROOT / "deploy" / "grafana" / "octavo.json").read_text()))


def charts() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Of the dashboard, as Prometheus gets them: with a model, and a range, in place of the variables."""
    found = [target["expr"] for chart in charts() for target in chart["targets"]]
    found += [note["expr"] for note in dashboard()["annotations"]["list"]]
    return [expr.replace("$__rate_interval", "5m").replace("$model", ".*") for expr in found]


def alerts() -> list[str]:
    return ALERT.findall((PROMETHEUS / "alerts.yml").read_text())


def names() -> set[str]:
    """Every metric that an alert or a chart asks for."""
    rules = [line for line in (PROMETHEUS / "alerts.yml").read_text().splitlines() if "description:" not in line]
    text = "\n".join([*rules, *expressions()])
    text += "\n" + "\n".join(item["definition"] for item in dashboard()["templating"]["list"] if "definition" in item)
    return set(NAME.findall(text))


def test_the_configuration_and_the_rules_can_be_read(promtool: Promtool, tmp_path: Path) -> None:
    for file in PROMETHEUS.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "metrics_token").write_text("a token")
    said = promtool.run("check", "config", tmp_path / "prometheus.yml")
    assert f"{len(alerts())} rules found" in said


def test_each_alert_speaks_of_what_it_is_for_and_no_other_one_does(promtool: Promtool) -> None:
    promtool.run("test", "rules", PROMETHEUS / "alerts_test.yml")
    tested = re.findall(r'\{alertname="(\w+)"\}', (PROMETHEUS / "alerts_test.yml").read_text())
    assert sorted(set(tested)) == sorted(alerts())


def test_alerts_say_how_urgent_they_are_and_what_to_do() -> None:
    text = (PROMETHEUS / "alerts.yml").read_text()
    for rule in text.split("- alert: ")[1:]:
        name = rule.split("\n", 1)[0]
        assert re.search(r"severity: (page|ticket)\}", rule), name
        assert "summary:" in rule, name
        assert "description:" in rule, name


def test_every_chart_asks_what_prometheus_understands(promtool: Promtool, tmp_path: Path) -> None:
    rules = [{"record": f"check:{number}", "expr": expr} for number, expr in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "charts", "rules": rules}]}))  # JSON is YAML too
    assert f"{len(rules)} rules found" in promtool.run("check", "rules", file)


def test_charts_say_what_they_show_and_none_lies_on_another() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    for chart in charts():
        assert chart["title"], chart["id"]
        assert chart["description"].endswith("."), chart["title"]
        assert chart["fieldConfig"]["defaults"]["unit"], chart["title"]
        assert chart["datasource"]["uid"] == "${datasource}", chart["title"]


@pytest.mark.parametrize("word", ["tenant=", "conversation", "user="])
def test_no_chart_and_no_alert_needs_to_know_a_team(word: str) -> None:
    assert not [expr for expr in expressions() if word in expr]
    assert word not in (PROMETHEUS / "alerts.yml").read_text()
