"""Measure faults that come one after the other: what is done against each, and how fast the job is then.

The cluster has to be that of ``python -m dev.cluster up --workers 4 --spares 1``.

*Link, then node* is FALCON's figure 17: a slow link, a slow GPU (here: a node's CPU), and a restart elsewhere, once
moved micro-batches cannot make up for it. *Node, then link*: the link becomes slow while micro-batches are moved away
from the node, which stays slow. The job moves micro-batches, has its checkpoints in its pods' memory, and may exchange
roles; its own clock times the iterations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import msgspec

from dev.cluster import faults
from dev.install import prepare_cluster
from dev.kubectl import Json, Kubectl, wait_for
from evaluation.harness import Maker, Table
from tests.e2e.campaigns.stage import heal, namespace
from tests.e2e.jobs import Job, training_job, with_script
from tests.e2e.pipelines import SPARE

RANKS: Final = 4
MICRO: Final = 4  # micro-batches of a rank
RATE: Final = "30mbit"
HALF: Final = 0.5
WORSE: Final = 0.1
SETTLED_ITERATIONS: Final = 100
STEPS: Final = 40  # of a state that is timed
LIMIT_SECONDS: Final = 300.0
RESTART_SECONDS: Final = 20.0  # by which the status shows a restart late, at most
IGNORE: Final = {"type": "Ignore"}
LADDER: Final = [IGNORE, {"type": "AdjustMicrobatches"}, {"type": "SwapNodes", "overheadSeconds": 10}]
REPLACING: Final = {"type": "ReplaceNode", "overheadSeconds": 20}


class Event(msgspec.Struct, frozen=True):
    """A fault, or what was done."""

    at: float  # unix seconds
    what: str


class Sequence:
    """A job that suffers, and what has happened to it."""

    def __init__(self, kubectl: Kubectl, name: str, ladder: list[Json]) -> None:
        spec: Json = {
            "checkpoint": {"memory": "64Mi", "copies": 1},
            "mitigation": {"strategies": ladder},
            "detection": {"pauseBudget": "20%"},
            "warmPoolRef": {"name": "spares"},
        }
        made = training_job(name, steps=1, replicas=RANKS, spec=spec)
        made["spec"]["template"]["spec"]["tolerations"] = [SPARE]
        options = ("--steps", "1000000", "--micro-batches", str(MICRO), "--every", "20")
        self.job = Job(kubectl, with_script(kubectl, made, "sharing.py", *options))
        self.events: list[Event] = []

    def happens(self, what: str, at: float | None = None) -> None:
        """Note an event. ``at``: unix seconds; None: now."""
        self.events.append(Event(time.time() if at is None else at, what))
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)

    def until(self, what: str, look: Callable[[Json], object]) -> None:
        """Wait until the status shows it, and note it."""
        self.job.wait(what, look, LIMIT_SECONDS)
        self.happens(what)

    def leaves_link(self) -> None:
        """Wait until roles are exchanged against a slow link."""
        self.until("the link is named", lambda s: _names(s, "SlowLink"))
        self.until("roles are exchanged", lambda s: s["counters"]["restarts"] > 0)
        self.trains_again()

    def moves(self) -> None:
        """Wait until micro-batches move, and train with the shares that they have then."""
        self.until("micro-batches move", self.is_shared_unevenly)
        self.train()
        self.happens(f"shares {self.shares()}")
        self.train()

    def trains_again(self) -> None:
        """Wait for the first step after a restart that the newest event has begun, and note it when it was made."""
        began = self.events[-1].at
        at = wait_for(
            "a step after the restart",
            lambda: at if (at := self.job.restarted_seconds()) is not None and at > began - RESTART_SECONDS else None,
            timeout_seconds=LIMIT_SECONDS,
        )
        self.happens("it trains again", max(at, began))

    def train(self, steps: int = STEPS) -> None:
        """Wait for so many further iterations."""
        first = int(self.job.steps()[-1]["step"])
        wait_for("more steps", lambda: self.job.steps()[-1]["step"] >= first + steps, timeout_seconds=LIMIT_SECONDS)

    def rows(self) -> list[str]:
        """Return what happened as rows: when, what, and iterations a second until the next."""
        ends = [float(line["unix_seconds"]) for line in self.job.all_lines() if line["event"] == "step"]
        rows, first = [], self.events[0].at
        for event, following in pairwise(self.events):
            count = sum(event.at < end <= following.at for end in ends)
            rate = count / (following.at - event.at)
            rows.append(f"| {event.at - first:.0f} s | {event.what} | {rate:.2f} |")
        return rows

    def shares(self) -> list[int]:
        return list(self.job.steps()[-1]["shares"])

    def is_shared_unevenly(self, _: Json) -> bool:
        return bool(self.job.steps()) and len(set(self.shares())) > 1

    def slow_link(self, ranks: tuple[int, int]) -> None:
        ends = [self.job.member(rank)["node"] for rank in ranks]
        faults.link(ends[0], RATE, ends[1])
        self.happens(f"**the link of {ends[0]} and {ends[1]} becomes slow**")

    def slow_node(self, rank: int) -> str:
        node = str(self.job.member(rank)["node"])
        faults.slow(node, HALF)
        self.happens(f"**{node} has half of its CPU**")
        return node


def link_then_node(sequence: Sequence) -> None:
    """Bring FALCON's figure 17 about."""
    job = sequence.job
    sequence.slow_link((1, 2))
    ends = {job.member(1)["node"], job.member(2)["node"]}
    sequence.leaves_link()
    sequence.train(SETTLED_ITERATIONS)
    victim = next(rank for rank in range(1, RANKS) if job.member(rank)["node"] not in ends)
    node = sequence.slow_node(victim)
    sequence.moves()
    faults.slow(node, WORSE)  # moved micro-batches leave next to nothing of half a node's CPU
    sequence.happens(f"**{node} has a tenth of its CPU**")
    sequence.until(f"{node} is left", lambda s: s["counters"]["replacements"] > 0)
    sequence.trains_again()
    sequence.train()


def node_then_link(sequence: Sequence) -> None:
    """Let a link become slow while micro-batches are moved."""
    sequence.slow_node(1)
    sequence.moves()
    sequence.slow_link((2, 3))
    sequence.leaves_link()
    sequence.moves()


def measure(kubectl: Kubectl, name: str) -> list[str]:
    """Let a job that is well suffer a sequence of faults; return its table."""
    story, ladder = SEQUENCES[name]
    sequence = Sequence(kubectl, name, ladder)
    job = sequence.job
    try:
        job.wait_settled(SETTLED_ITERATIONS)
        sequence.happens("healthy")
        sequence.train()
        story(sequence)
        sequence.happens("the end")
        return _table(sequence)
    finally:
        heal(kubectl, job, job.run())
        job.delete()


def _names(status: Json, cause: str) -> bool:
    return any(note["cause"] == cause for note in status.get("diagnoses") or [])


def _table(sequence: Sequence) -> list[str]:
    """Return the rows, and what the job's owner reads in the end."""
    said = []
    for note in sequence.job.status().get("diagnoses") or []:
        done = "; ".join(each["what"] for each in note.get("done") or []) or "nothing"
        said.append(f"- {note['where']} ({note['cause']}): {done}. {note.get('result', '')}".rstrip())
    print(sequence.job.kubectl.run("describe", "trainingjob", sequence.job.name).split("Status:")[-1], flush=True)
    head = ["| from | what | iterations a second until the next |", "|---|---|---|"]
    return [*head, *sequence.rows(), "", "What the status said in the end:", "", *said, ""]


Story = Callable[[Sequence], None]
SEQUENCES: Final[dict[str, tuple[Story, list[Json]]]] = {
    "link-then-node": (link_then_node, [*LADDER, REPLACING]),
    "node-then-link": (node_then_link, LADDER),
}


def maker(name: str) -> Maker:
    """Return how the table of a sequence is made."""

    def make(_: argparse.Namespace) -> Table:
        with namespace(prepare_cluster()) as kubectl:
            return Table("\n".join(measure(kubectl, name)))

    return make
