"""Keep the state of a probe: ranks that stand still while machines or links are measured."""

from __future__ import annotations

from typing import Literal

from falcon_core.recovery.model.stored import Stored

Measured = Literal["Links", "Machines", "Both"]


class RingSeat(Stored, frozen=True, kw_only=True):
    """A pod's place in the ring whose links are measured."""

    replica: int
    address: str
    port: int


class Probe(Stored, frozen=True, kw_only=True):
    """The probe that is on. Times are unix seconds."""

    number: int
    generation: int
    incident: str  # that it is for; "": somebody has asked for it
    measures: Measured = "Links"
    phase: Literal["Prepare", "Hold", "Release"]
    since: float  # of the phase
    held_at: float = 0.0  # when the ranks were ordered to stand still; 0: they were not
    lead_seconds: float  # of training between the order and the cut
    iteration_seconds: float = 0.0  # by which the cut was found
    token: str = ""  # of this probe alone
    ring: list[RingSeat] = []
    stops: dict[int, int] = {}  # by rank: iterations after the start that its agent has reported
    calls_before: dict[int, int] = {}  # by rank: calls of its only channel before that


class Pauses(Stored, frozen=True, kw_only=True):
    """The pauses of a job's life, which have a budget."""

    since: float = 0.0  # when the job was first seen to train; 0: not yet
    probes: int = 0  # numbered from 1
    count: int = 0  # those in which ranks stood still
    seconds: float = 0.0  # for which they did
    longest_seconds: float = 0.0
    last_at: float = 0.0  # when the newest ended


class Probed(Stored, frozen=True, kw_only=True):
    """What probes have found for an incident."""

    tries: int = 0
    lead_seconds: float = 0.0  # of the next try; 0: the usual one
    again_at: float = 0.0  # earliest time of the next try
    at: float = 0.0  # when the newest ended
    standstill_seconds: float = 0.0  # of the newest
    # By the newest; "": nothing. Of links: one link, a machine's own, none. Of a slow rank's machine: Slow, AsFast.
    found: Literal["", "Link", "Machine", "Alike", "Slow", "AsFast"] = ""
    node: str = ""  # whose machine was tested
    text: str = ""  # the figures, or why there are none
    slow_ns: int = 0  # what iterations took when links were found alike


class Check(Stored, frozen=True, kw_only=True):
    """A measurement of all machines and links that somebody has asked for. Times are unix seconds."""

    asked: str  # the annotation's value
    since: float  # when it was first seen
    state: Literal["Waiting", "Running", "Done", "Failed"] = "Waiting"
    tries: int = 0  # in which the ranks did not stand still together
    lead_seconds: float = 0.0  # of the next order; 0: as usual
    at: float = 0.0  # when it was over
    standstill_seconds: float = 0.0
    slow: list[str] = []  # machines and links, in words, the slowest first
    text: str = ""  # the result in a line, or why there is none
