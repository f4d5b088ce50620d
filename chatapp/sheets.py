"""Cells of CSV files, which people open in spreadsheets."""

from __future__ import annotations

from typing import TypeVar

Cell = TypeVar("Cell")

# What a spreadsheet would take for a formula; the wide forms too, since some read them alike.
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def safe(value: Cell) -> Cell | str:
    """Text that would begin a formula has a quote in front; everything else is as it was."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
