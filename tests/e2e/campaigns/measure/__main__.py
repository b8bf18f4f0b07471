"""Measure what faults lead to on the real cluster: known when, acted on when, and how fast the job is before and after.

    make cluster-up images gateway torch-venv shim
    python -m tests.e2e.campaigns.measure --check                         # what has limits, at a reduced size
    python -m tests.e2e.campaigns.measure --check --only fail-stop        # one of the tables: ten minutes
    python -m tests.e2e.campaigns.measure --only fail-slow --kind "a process"
    python -m tests.e2e.campaigns.measure --full --keep FILE              # into RESULTS.md: hours

The jobs and faults are those of the campaigns that test the same (``tests/e2e/campaigns``). ``phases`` and
``one-machine`` need no cluster. A run that was ended goes on with what ``--keep`` has; see ``--help`` for the other
options, each of which belongs to the tables that it names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evaluation.harness import Evaluation, Maker, run
from tests.e2e.campaigns.measure import (
    exchange,
    fail_slow,
    fail_stop,
    lost_nodes,
    phases,
    restarts,
    sequences,
    shares,
    standby,
)

TABLES: Final[Mapping[str, Maker]] = {
    "fail-stop": fail_stop.make,
    "fail-slow": fail_slow.make,
    "shares": shares.make,
    "exchange": exchange.make,
    **{name: sequences.maker(name) for name in sequences.SEQUENCES},
    "restarts": restarts.make,
    "lost-nodes": lost_nodes.make,
    "phases": phases.make,
    "one-machine": standby.make,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of single tables."""
    parser.add_argument("--runs", type=int, help="fail-slow, restarts, lost-nodes, phases, one-machine: of each kind")
    parser.add_argument("--kind", action="append", default=[], help="fail-slow: kinds whose name begins so")
    parser.add_argument("--repeats", type=int, help="fail-stop: of each fault whose detection has a limit")
    parser.add_argument("--campaign", type=int, help="fail-stop: number of faults of the campaign")
    parser.add_argument("--seed", type=int, default=1, help="fail-stop: of the campaign")
    parser.add_argument("--layout", type=int, nargs="+", metavar="N", help="shares: these layouts alone, from 0")
    parser.add_argument(
        "--standby", choices=restarts.STANDBYS, action="append", help="restarts, phases: with this kind of standby"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="fail-slow, restarts, lost-nodes, one-machine: go on with the results there, and add to them",
    )


MEASURE: Final = Evaluation(
    name="measure",
    within="tests.e2e.campaigns",
    about=__doc__,
    code=(),  # a table depends on all of Falcon
    tables=TABLES,
    checked=("fail-stop", "fail-slow", "shares", "exchange", "restarts", "lost-nodes"),
    kept=tuple(TABLES),
    options=add_options,
)


if __name__ == "__main__":
    sys.exit(run(MEASURE))
