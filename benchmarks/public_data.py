"""The folder of the public data that some benchmarks read; benchmarks/README.md says what it must hold.

The environment variable ``FALCON_DATA`` names the folder; without it, it is ``shared/data`` beside the repository.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("FALCON_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))


def public_file(name: str) -> Path:
    """Return the path of a file of the public data, such as ``stragglers/trace-AR.csv.gz``.

    Raises:
        FileNotFoundError: the file is not there; the message names the remedy.
    """
    path = DATA / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: set FALCON_DATA to the folder of the public data (benchmarks/README.md describes it)"
        )
    return path
