"""`python -m ops.supply [FOLDER]`, or `python -m ops.supply licences`."""

from __future__ import annotations

import sys
from pathlib import Path

from ops.setup import ROOT
from ops.supply import audit, bom, licences
from ops.supply.parts import Incomplete, Part, everything

FOLDER = ROOT / ".cache" / "supply"


def check(parts: list[Part]) -> int:
    lines = licences.refused(parts)
    for line in lines:
        print(line, file=sys.stderr)
    if not lines:
        print(f"Licences of {len(parts)} parts: all are among those that we take.")
    return 1 if lines else 0


def write(parts: list[Part], folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "octavo.cdx.json").write_text(bom.document(parts))
    (folder / "licences.md").write_text(licences.table(parts))
    reports = [audit.python(parts), audit.browser(parts)]
    lines = [line for report in reports for line in report.lines()]
    (folder / "audit.txt").write_text("".join(f"{line}\n" for line in lines))
    status = check(parts)
    print("\n".join(lines))
    print(f"Written to {folder}: octavo.cdx.json, licences.md, audit.txt")
    return status or (1 if any(report.found for report in reports) else 0)


def main(arguments: list[str]) -> int:
    try:
        parts = everything()
    except Incomplete as error:
        print(error, file=sys.stderr)
        return 1
    if arguments == ["licences"]:
        return check(parts)
    folder = Path(arguments[0]) if arguments else FOLDER
    try:
        return write(parts, folder)
    except OSError as error:
        print(
            f"Nothing can be written to {error.filename or folder}: {error.strerror}. Name another: SUPPLY=…",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
