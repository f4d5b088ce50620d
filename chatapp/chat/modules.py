"""Our scripts as the browser finds them: which module has which address, and which ones a page asks for in the end."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from django.templatetags.static import static

FOLDER = Path(__file__).parents[2] / "static" / "js"
LIBRARIES = {
    "markdown-it": "vendor/markdown-it.mjs",
    "dompurify": "vendor/purify.mjs",
    "highlight.js": "vendor/highlight.mjs",
    "temml": "vendor/temml.mjs",
    "uplot": "vendor/uplot.mjs",
}
SOURCES = {path.name: path for path in sorted(FOLDER.glob("*.js"))}
MODULES = list(SOURCES)
# `import … from "name";` and `export … from "name";`, not import("name"), which is asked for when it is wanted.
STATIC_IMPORT = re.compile(r'^(?:import|export)\s[^"\';]*?from\s+"([^"]+)";', re.MULTILINE)


def addresses() -> dict[str, str]:
    """The import map. Names stand for hashed files, so that every one may be cached for ever."""
    own = {f"#octavo/{name}": static(f"js/{name}") for name in MODULES}
    return {**own, **{name: static(path) for name, path in LIBRARIES.items()}}


@cache
def needed_by(module: str) -> tuple[str, ...]:
    """Names of all modules that a module imports, and those that these do, itself left out. Scripts ask for each other
    one after the other; named in a page's head, they are fetched at once."""
    found: dict[str, None] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop(0)
        for wanted in STATIC_IMPORT.findall(SOURCES[name].read_text(encoding="utf-8")):
            if wanted not in found:
                found[wanted] = None
                if wanted.startswith("#octavo/"):
                    waiting.append(wanted.removeprefix("#octavo/"))
    return tuple(found)
