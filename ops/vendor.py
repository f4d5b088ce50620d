"""Copies the browser libraries that pages load from node_modules into static/vendor: exactly the files listed here.

Owns static/vendor, which is not committed: what is there and not listed is removed, so the folder always equals the
list. npm compares each package with its hash in package-lock.json as it installs it; packages that another lock
installed are refused. Comments that point at source maps are dropped, since the maps are not served. The icons that
templates and scripts use become one sprite, a fiftieth of the whole set. Standard library only; running it again
changes nothing.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NODE_MODULES = ROOT / "node_modules"
VENDOR = ROOT / "static" / "vendor"

FILES = {
    "markdown-it.mjs": "markdown-it/dist/browser/markdown-it.esm.min.mjs",
    "purify.mjs": "dompurify/dist/purify.es.mjs",
    "highlight.mjs": "@highlightjs/cdn-assets/es/highlight.min.js",
    "temml.mjs": "temml/dist/temml.min.js",
    "uplot.mjs": "uplot/dist/uPlot.iife.min.js",
    "uplot.css": "uplot/dist/uPlot.min.css",
}
# The packages' only minified files are plain scripts that declare one name: less than half of their modules' size.
EXPORTS = {"temml.mjs": "export default temml;", "uplot.mjs": "export default uPlot;"}

ICONS = (
    "archive", "archive-restore", "arrow-down", "arrow-left", "arrow-right", "arrow-up", "book-open",
    "chart-column", "check", "chevron-left", "chevron-right", "chevrons-up-down", "circle-alert", "copy",
    "database", "download", "ellipsis", "file-text", "gauge", "history", "key-round", "keyboard", "layers",
    "list-checks", "log-out", "mail", "memory-stick", "message-square", "monitor", "moon", "panel-left",
    "paperclip", "pencil", "plus", "refresh-cw", "scroll-text", "search", "settings", "share-2", "shield-check",
    "sliders-horizontal", "square-pen", "star", "sun", "tag", "text-quote", "thumbs-down", "thumbs-up", "trash-2",
    "undo-2", "upload", "user-round", "users", "webhook", "wifi-off", "wrap-text", "x",
)  # fmt: skip

SOURCE_MAP = re.compile(r"^//[#@] sourceMappingURL=\S*\s*$", re.MULTILINE)
SVG_BODY = re.compile(r"<svg\b[^>]*>(.*)</svg>", re.DOTALL)


class VendorError(Exception):
    """What is to be copied is not there, or is not what package-lock.json names; the message says which."""


def check_lock(lock: Path = ROOT / "package-lock.json", installed: Path = NODE_MODULES / ".package-lock.json") -> None:
    """npm's own record of what it installed has the hashes of our lock. Raises VendorError."""
    try:
        there = json.loads(installed.read_text(encoding="utf-8"))["packages"]
    except (OSError, ValueError, KeyError):
        raise VendorError("node_modules was not installed by npm: run `npm ci --ignore-scripts` first.") from None
    for path, wanted in json.loads(lock.read_text(encoding="utf-8"))["packages"].items():
        if path and not wanted.get("dev") and there.get(path, {}).get("integrity") != wanted["integrity"]:
            raise VendorError(f"{path} is not the one in package-lock.json: run `npm ci --ignore-scripts` again.")


def source(path: str) -> str:
    try:
        return (NODE_MODULES / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise VendorError(f"node_modules/{path} does not exist: run `npm ci --ignore-scripts` first.") from None


def sprite() -> str:
    """One SVG document with a symbol for each icon, its id the icon's name; strokes take the text's colour."""
    symbols = []
    for name in ICONS:
        body = SVG_BODY.search(source(f"lucide-static/icons/{name}.svg"))
        if body is None:
            raise VendorError(f"The icon {name} is no SVG document.")
        shapes = " ".join(body.group(1).split())
        symbols.append(
            f'<symbol id="{name}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2"'
            f' stroke-linecap="round" stroke-linejoin="round">{shapes}</symbol>'
        )
    licence = "<!-- Icons by Lucide, ISC licence -->"
    return "\n".join(['<svg xmlns="http://www.w3.org/2000/svg">', licence, *symbols, "</svg>", ""])


def wanted() -> dict[str, str]:
    files = {name: SOURCE_MAP.sub("", source(path)).rstrip() + "\n" for name, path in FILES.items()}
    for name, line in EXPORTS.items():
        files[name] += f"{line}\n"
    return {**files, "icons.svg": sprite()}


def main() -> int:
    try:
        check_lock()
        files = wanted()
    except VendorError as error:
        print(error, file=sys.stderr)
        return 1
    VENDOR.mkdir(parents=True, exist_ok=True)
    for path in VENDOR.iterdir():
        # Hidden files are set-up's own marks.
        if path.name not in files and not path.name.startswith("."):
            path.unlink()
    for name, text in files.items():
        path = VENDOR / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
