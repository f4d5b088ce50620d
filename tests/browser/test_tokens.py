"""The look's promises that can be computed: contrast in both themes, and no values outside the tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = Path(__file__).parents[2] / "static" / "css"
TOKENS = (CSS / "tokens.css").read_text()
PAIR = re.compile(r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
AA = 4.5


def token(name: str) -> tuple[str, str]:
    found = re.search(rf"--{name}: {PAIR.pattern};", TOKENS)
    assert found, f"tokens.css has no --{name} for both themes"
    return found[1], found[2]


def accents() -> dict[str, tuple[str, str]]:
    rule = rf'\[data-accent="(\w+)"\] {{ --accent: {PAIR.pattern}; }}'
    return {found[1]: (found[2], found[3]) for found in re.finditer(rule, TOKENS)}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, 1.4.3: from 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("surface", ["surface-1", "surface-2", "surface-3"])
def test_every_text_colour_is_readable_on_every_surface(theme: int, surface: str) -> None:
    colours = {name: token(name) for name in ("text-1", "text-2", "text-3", "good", "warn", "bad", "accent")}
    for name, pair in {**colours, **accents()}.items():
        ratio = contrast(pair[theme], token(surface)[theme])
        assert ratio >= AA, f"{name} on {surface}: {ratio:.2f}"


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_on_every_accent_is_readable(theme: int) -> None:
    assert len(accents()) == 8
    for name, pair in accents().items():
        ratio = contrast(pair[theme], token("on-accent")[theme])
        assert ratio >= AA, f"text on {name}: {ratio:.2f}"


@pytest.mark.parametrize("path", sorted(CSS.glob("*.css")), ids=lambda path: path.name)
def test_colours_and_type_sizes_are_named_in_the_tokens_only(path: Path) -> None:
    css = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    if path.name != "tokens.css":
        # A page may choose one of the accents, whose contrast is checked above.
        known = {colour for pair in accents().values() for colour in pair}
        loose = set(re.findall(r"#[0-9a-f]{3,8}\b|rgb\([^)]*\)|hsl\([^)]*\)", css)) - known
        assert not loose, f"colours outside the tokens: {loose}"
        sizes = set(re.findall(r"font-size: ([^;]+);", css))
        assert all(size == "inherit" or size.startswith("var(--size-") for size in sizes), sizes
    used = set(re.findall(r"var\(--([\w-]+)", css))
    unknown = {name for name in used if f"--{name}:" not in TOKENS and f"--{name}:" not in css}
    assert not unknown, f"tokens that do not exist: {unknown}"
