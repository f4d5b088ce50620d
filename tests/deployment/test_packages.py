"""The images' lists of packages are enough: everything that an image runs can be imported with nothing else there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.project.test_settings import safe

# Refuses every package that this list does not bring, as if it were not installed.
GUARD = """
import importlib.abc, re, sys
from importlib import metadata
from pathlib import Path

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def listed(file):
    for line in Path("requirements", file).read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            yield from listed(line[3:])
        elif line:
            name, extras = re.match(r"([\\w.-]+)(?:\\[(.*)\\])?", line).groups()
            yield plain(name), tuple((extras or "").split(","))

def closure(file):
    from packaging.requirements import Requirement
    found, waiting = set(), [(name, extras) for name, extras in listed(file)]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        try:
            needs = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        for text in needs:
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((plain(need.name), tuple(sorted(need.extras)) or ("",)))
    return {name for name, _ in found}

allowed = closure(sys.argv[1])
refused = {
    module for module, names in metadata.packages_distributions().items()
    if module not in ("engine", "chatapp", "kernels", "ops") and not allowed & {plain(name) for name in names}
}
for module in [module for module in sys.modules if module.partition(".")[0] in refused]:
    del sys.modules[module]

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r} in the image", name=name)

sys.meta_path.insert(0, Absent())
"""
WEB = """
import importlib, pkgutil
import django
django.setup()
import chatapp
for found in pkgutil.walk_packages(chatapp.__path__, "chatapp."):
    if "settings" not in found.name:
        importlib.import_module(found.name)
for name in ("daphne.cli", "celery.__main__", "celery.apps.beat", "celery.concurrency.thread", "whitenoise", "hiredis"):
    importlib.import_module(name)
import ops.alive
print(len(sys.modules), sorted({"torch", "numpy", "babel", "supervisor"} & set(sys.modules)))
"""
ENGINE = """
import importlib, pkgutil
import engine, kernels
for package in (engine, kernels):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith("kernels.triton"):  # a CUDA build of torch brings its triton
            importlib.import_module(found.name)
import ops.alive, hiredis
print(len(sys.modules), sorted({"django", "daphne", "celery", "psycopg"} & set(sys.modules)))
"""


@pytest.mark.long
@pytest.mark.parametrize(("list_of", "code"), [("web.txt", WEB), ("engine.txt", ENGINE)], ids=["web", "engine"])
def test_an_image_has_all_packages_that_its_programs_import(
    list_of: str, code: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OCTAVO_", "TRITON_"))}
    env = {**clean, **safe(), "OCTAVO_DATA": str(tmp_path_factory.mktemp("data"))}
    env["DJANGO_SETTINGS_MODULE"] = "chatapp.settings.production"
    done = subprocess.run(
        [sys.executable, "-c", GUARD + code, list_of], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("[]"), done.stdout


def test_one_machine_installs_what_both_images_have() -> None:
    run = (ROOT / "requirements" / "run.txt").read_text()
    assert "-r web.txt\n" in run
    assert "-r engine.txt\n" in run
