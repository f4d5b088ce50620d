"""Kills, freezes and stops the product's processes under load, and looks whether anybody lost a word by it.

    python -m tests.chaos --kills 100 --seed 1

`product` starts two engines and two web processes as `make run` does, under its supervisor; `questions` are asked by
`clients` in four ways, some at a time (`load`); `trouble` sends the signals; `checks` compares what clients saw and
what the database has with an undisturbed run, byte for byte, and looks for what was left behind; `report` is the table.
"""

import sys
from pathlib import Path

# The client is no part of the product, and not installed with it.
sys.path.append(str(Path(__file__).resolve().parents[2] / "clients/python/src"))
