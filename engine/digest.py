"""`python -m engine.digest PATH`: the SHA-256 of a model, for OCTAVO_MODEL_SHA256.

PATH is what OCTAVO_MODEL may be. With the variable set a worker refuses any other model at its start.
"""

from __future__ import annotations

import sys

from engine.models.errors import ModelError
from engine.models.identity import of_model
from engine.models.source import located


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m engine.digest PATH", file=sys.stderr)
        return 2
    try:
        print(of_model(located(arguments[0])))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
