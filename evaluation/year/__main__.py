"""Let a fleet of ten kinds of jobs live for a year under the operator's own decisions, and look for trends.

python -m evaluation.year --check                  # the small jobs, 12 months: minutes
python -m evaluation.year --full [--keep FOLDER]   # all jobs on 1,000 nodes as well: hours
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from evaluation.harness import Evaluation, Measure, Table, run
from evaluation.year.kinds import KINDS, Member, fleet
from evaluation.year.life import Life
from evaluation.year.months import Month, chance, joined, slope

MONTHS: Final = 12
# A figure rises where its months in random order rise as steadily once in a thousand times or less: eight figures are
# judged, so a fleet without any trend fails in less than one of a hundred runs.
LEAST_CHANCE: Final = 0.001
MOST_HEALTHY: Final = 0.05  # of the nodes that are left for being slow
MOST_PRICE_SECONDS: Final = 62.0  # twice what a replacement costs when nothing goes wrong
FIGURES: Final[dict[str, Callable[[Month], float]]] = {
    "healthy nodes left": lambda month: month.healthy_evicted,
    "slow nodes left": lambda month: month.bad_evicted,
    "nodes of slow links left": lambda month: month.link_evicted,
    "slow before action, median [s]": lambda month: statistics.median(month.seconds_before_action or [0.0]),
    "slow before action, worst [s]": lambda month: max(month.seconds_before_action, default=0.0),
    "a spare's price, median [s]": lambda month: statistics.median(month.spare_prices or [0.0]),
    "price of a replacement [s]": lambda month: month.prices.get("replacement", 0.0),
    "price of an exchange [s]": lambda month: month.prices.get("exchange", 0.0),
    "splits changed": lambda month: month.moves,
    "and back within the hour": lambda month: month.moves_back,
    "slow seconds": lambda month: month.lost_seconds,
    "stood still [s]": lambda month: month.stood_still_seconds,
}
# Faults are drawn: how many nodes are slow or dead is no decision. A price rises once, from the default to what the
# job's own restarts take, and is judged by its height.
_NOT_JUDGED: Final = ("slow nodes left", "stood still [s]", "price of a replacement [s]", "price of an exchange [s]")
JUDGED: Final = tuple(name for name in FIGURES if name not in _NOT_JUDGED)


def lived(member: Member, seed: int, keep: Path | None = None) -> list[Month]:
    """Return the months of a job's year, from the folder ``keep`` where they are known there."""
    file = _kept(keep, member, seed)
    if file is not None and file.exists():
        return msgspec.json.decode(file.read_bytes(), type=list[Month])
    months = Life(member, seed, MONTHS).run()
    if file is not None:
        file.write_bytes(msgspec.json.encode(months))
    return months


def _kept(keep: Path | None, member: Member, seed: int) -> Path | None:
    return None if keep is None else keep / f"{seed}-{member.number}.json"


def _ended(options: argparse.Namespace) -> list[Member]:
    """Return the jobs of the fleet; if so asked, those alone that an earlier run has ended."""
    known = [(member, _kept(options.keep, member, options.seed)) for member in fleet()]
    found = [member for member, file in known if not options.ended or (file is not None and file.exists())]
    if not found:
        raise SystemExit(f"--ended: the folder of --keep ({options.keep}) has no job of seed {options.seed}")
    return found


def _all(members: Sequence[Member], seed: int, keep: Path | None) -> list[list[Month]]:
    with ProcessPoolExecutor() as pool:
        waiting = [pool.submit(lived, member, seed, keep) for member in members]
        return [life.result() for life in waiting]


def _rows(months: Sequence[Month]) -> list[str]:
    names = list(FIGURES)
    rows = [f"| month | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for number, month in enumerate(months, 1):
        rows.append(f"| {number} | {' | '.join(f'{FIGURES[name](month):,.0f}' for name in names)} |")
    series = {name: [FIGURES[name](month) for month in months] for name in names}
    rows.append(f"| slope a month | {' | '.join(f'{slope(series[name]):+,.2f}' for name in names)} |")
    rows.append(f"| chance of it | {' | '.join(f'{chance(series[name]):.3f}' for name in names)} |")
    return rows


def _measures(months: Sequence[Month], name: str) -> list[Measure]:
    found = [
        Measure(
            f"{name}: chance that {figure} rises so",
            chance([FIGURES[figure](month) for month in months]),
            LEAST_CHANCE,
            form=".4f",
        )
        for figure in JUDGED
    ]
    whole = joined(months)
    left = whole.healthy_evicted + whole.bad_evicted + whole.link_evicted
    found.append(
        Measure(f"{name}: healthy of the nodes left", whole.healthy_evicted / max(1, left), MOST_HEALTHY, most=True)
    )
    price = months[-1].prices.get("replacement", 0.0)
    found.append(Measure(f"{name}: price of a replacement", price, MOST_PRICE_SECONDS, most=True, form=".0f"))
    return found


def _fleet(name: str, members: Sequence[Member], options: argparse.Namespace) -> Table:
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    lives = _all(members, options.seed, options.keep)
    months = [joined(at) for at in zip(*lives, strict=True)]
    nodes = sum(member.nodes + member.cluster.spares for member in members)
    lines = [
        f"{len(members)} jobs on {nodes} nodes, seed {options.seed}.",
        "",
        *_rows(months),
        "",
        *_by_job(members, lives),
    ]
    return Table("\n".join(lines), _measures(months, name))


def _by_job(members: Sequence[Member], lives: Sequence[Sequence[Month]]) -> list[str]:
    rows = [
        "| job | ranks | nodes left: slow, of a slow link, healthy | exchanges | splits changed, back"
        " | slow before action [s]: median, worst | slow [h] | stood still [h] |",
        "|---" * 8 + "|",
    ]
    for member, months in zip(members, lives, strict=True):
        whole = joined(months)
        waited = whole.seconds_before_action or [0.0]
        rows.append(
            f"| {member.name} | {member.kind.job.parallelism.world}"
            f" | {whole.bad_evicted}, {whole.link_evicted}, {whole.healthy_evicted} | {whole.exchanges}"
            f" | {whole.moves}, {whole.moves_back} | {statistics.median(waited):.0f}, {max(waited):,.0f}"
            f" | {whole.lost_seconds / 3600:.1f} | {whole.stood_still_seconds / 3600:.1f} |"
        )
    return rows


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="jobs that are done: a later run goes on from there"
    )
    parser.add_argument("--ended", action="store_true", help="of all jobs, only those that --keep has")


YEAR: Final = Evaluation(
    name="year",
    about=__doc__,
    code=("core/falcon_core", "core/falcon_sim", "evaluation/year/*.py"),
    tables={
        "small": lambda options: _fleet("small", fleet()[: len(KINDS)], options),
        "all": lambda options: _fleet("all", _ended(options), options),
    },
    checked=("small",),
    kept=("small", "all"),
    options=_options,
)

if __name__ == "__main__":
    raise SystemExit(run(YEAR))
