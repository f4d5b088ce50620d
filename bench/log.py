"""An entry of docs/LOG.md about one run: date, commit, machine, command, tables. Newest first, below the heading.

Owns the entry's form and its place in the file. Promises that no absolute path of this machine gets into it.
"""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench.servers import cores
from bench.table import LEGEND, by_dtype, by_load, compare, markdown, notes
from bench.targets import Results, cpu_line, unmeasured, verdicts
from ops.setup import ROOT

LOG = ROOT / "docs" / "LOG.md"
TELLING = {"avx2": "avx2", "avx512_vnni": "avx512_vnni", "avx512_bf16": "avx512_bf16", "amx_tile": "AMX"}
# Two parts at least: a lone slash stands between figures, and one name says nothing about a machine.
ABSOLUTE = re.compile(r"(?<![\w.…/:])/(?:[\w.+@~-]+/)+([\w.+@~-]*)")


def scrub(text: str) -> str:
    """The text with only the last name of every absolute path."""
    return ABSOLUTE.sub(r"…/\1", text)


def machine(cpuinfo: str, count: int, memory_kib: int) -> str:
    """One sentence from the text of /proc/cpuinfo: how many cores of what, what they can, and the memory."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name") or platform.machine()
    if "cpu family" in fields:
        name += f", family {fields['cpu family']} model {fields.get('model', '?')}"
    flags = set(fields.get("flags", "").split())
    able = [words for flag, words in TELLING.items() if flag in flags]
    able += ["no AMX"] if flags and "AMX" not in able else []
    return ", ".join([f"{count}-core machine ({name}", *able, f"{memory_kib / 2**20:.0f} GiB of memory)"])


def this_machine() -> str:
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    return machine(Path("/proc/cpuinfo").read_text(), cores(), int(memory))


def git(*arguments: str) -> str:
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def commit() -> str:
    """The short name of the commit, and whether the files differed from it."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' with local changes' if changed else ''}"


def paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def entry(results: Results, *, day: datetime.date, commit: str, machine: str, command: str) -> str:
    parts = [f"## {day.isoformat()} The benchmarks", paragraph(f"{machine}. Commit {commit}; `{command}`.")]
    if results.columns:
        parts += [markdown(compare(results.columns)), *map(paragraph, [LEGEND, *notes(results.columns)])]
    if results.cpu:
        parts.append(paragraph(cpu_line(results.cpu)))
    if results.carried:
        parts.append(markdown(by_load(results.carried)))
    for title, section in results.sections.items():
        parts.append(markdown(by_dtype(title, section["columns"], section["rows"])))
    parts.append(markdown(verdicts(results)))
    missing = unmeasured(results)
    if missing:
        parts.append(paragraph(missing))
    return scrub("\n\n".join(parts)) + "\n"


def insert(text: str, new: str) -> str:
    """The log with the entry above the newest one, below the heading and what stands there."""
    at = re.search(r"^## ", text, re.MULTILINE)
    if at is None:
        return text.rstrip() + "\n\n" + new
    return text[: at.start()] + new + "\n" + text[at.start() :]


def append(results: Results, arguments: Sequence[str], path: Path) -> None:
    new = entry(
        results,
        day=datetime.datetime.now(datetime.UTC).date(),
        commit=commit(),
        machine=this_machine(),
        command=" ".join(["python -m bench", *arguments]),
    )
    part = path.with_suffix(".part")
    part.write_text(insert(path.read_text(), new))
    part.replace(path)
