"""The manifests for Kubernetes say what docker-compose.yml says: the same programs, secrets and limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.deployment import compose

FOLDER = ROOT / "deploy" / "kubernetes"


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [found for name in kustomization["resources"] for found in yaml.safe_load_all((FOLDER / name).read_text())]


@pytest.fixture(scope="module")
def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]
        for found in documents
        if "template" in found["spec"]
    }


def test_the_same_programs_run_as_with_compose(pods: dict[str, dict[str, Any]]) -> None:
    services = compose.read(compose.NEEDED)["services"]
    assert set(pods) == set(services) - {"proxy", "postgres", "engine-gpu"}
    for name, pod in pods.items():
        (container,) = pod["containers"]
        # Where beat has no volume it begins anew with each start: its tasks come by themselves.
        expected = [word.replace("/data/celerybeat", "/tmp/celerybeat") for word in services[name]["command"]]
        assert container["command"] == expected, name
        image = services[name]["image"]
        assert container["image"] == (image if name == "redis" else image.partition(":")[0]), name
        if name != "migrate":
            assert pod["terminationGracePeriodSeconds"] >= int(services[name]["stop_grace_period"].rstrip("s")), name


def test_no_pod_is_root_writes_to_its_image_or_has_no_limit(pods: dict[str, dict[str, Any]]) -> None:
    for name, pod in pods.items():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["automountServiceAccountToken"] is False, name
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        }, name  # fmt: skip
        assert container["resources"]["limits"]["memory"], name


def test_secrets_are_files_and_each_pod_has_those_that_it_names(pods: dict[str, dict[str, Any]]) -> None:
    generated = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["secretGenerator"][0]["files"]
    keys = {Path(line.partition("=")[0]).name for line in generated}
    for name, pod in pods.items():
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "secrets"]
        mounted = {item["path"] for item in volume["secret"]["items"]}
        assert mounted <= keys, name
        env = pod["containers"][0].get("env", ())
        assert {Path(item["value"]).name for item in env if item["name"].endswith("_FILE")} <= mounted, name
    assert mounted


def test_only_web_processes_are_ended_for_being_unwell(pods: dict[str, dict[str, Any]]) -> None:
    """The others are asked by their signs in Redis: while that is away, starting all of them anew would help nobody."""
    for name, pod in pods.items():
        assert ("livenessProbe" in pod["containers"][0]) is (name in ("web", "redis")), name


def test_redis_is_configured_as_with_compose() -> None:
    assert (FOLDER / "redis.conf").read_text() == (ROOT / "deploy" / "redis" / "octavo.conf").read_text()


def test_workers_are_counted_by_figures_that_exist(documents: list[dict[str, Any]]) -> None:
    (scaled,) = [found for found in documents if found["kind"] == "ScaledObject"]
    known = (ROOT / "docs" / "metrics.md").read_text()
    for trigger in scaled["spec"]["triggers"]:
        for name in re.findall(r"octavo_\w+", trigger["metadata"]["query"]):
            assert f"`{name}`" in known, name
    assert scaled["spec"]["scaleTargetRef"]["name"] == "engine"
