"""Write the definitions under ``crds/``, or check them: ``python -m dev.crd [--check]``."""

from __future__ import annotations

import argparse
import sys

from dev.crd.definition import Kind, render
from dev.crd.trainingjob import TRAINING_JOB
from dev.crd.trainingrun import TRAINING_RUN
from dev.crd.warmpool import WARM_POOL

KINDS = (TRAINING_JOB, TRAINING_RUN, WARM_POOL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is out of date")
    if parser.parse_args().check:
        return check()
    for kind in KINDS:
        kind.path.write_text(render(kind), encoding="utf-8")
    return 0


def check() -> int:
    """Name each file that differs from its generated text; return 1 where there is one."""
    outdated = [kind.path for kind in KINDS if not _is_current(kind)]
    for path in outdated:
        print(f"crds/{path.name} differs from the types in operator/falcon_operator/api/: run python -m dev.crd")
    return 1 if outdated else 0


def _is_current(kind: Kind) -> bool:
    return kind.path.exists() and kind.path.read_text(encoding="utf-8") == render(kind)


if __name__ == "__main__":
    sys.exit(main())
