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
    """The probe in progress. Times are unix seconds."""

    number: int
    generation: int
    incident: str  # id of the incident that the probe is for; "": a user has requested it
    measures: Measured = "Links"
    phase: Literal["Prepare", "Hold", "Release"]
    since: float  # start of the phase
    held_at: float = 0.0  # when the ranks were ordered to stand still; 0: not yet
    lead_seconds: float  # training time between the order and the cut
    iteration_seconds: float = 0.0  # iteration time with which the cut was found
    token: str = ""  # a random value of this probe alone
    ring: list[RingSeat] = []
    stops: dict[int, int] = {}  # by rank, the iterations from the start that its agent has reported to the stop
    calls_before: dict[int, int] = {}  # by rank, the calls of its only channel from the stop to that start


class Pauses(Stored, frozen=True, kw_only=True):
    """The pauses of a job's life, which have a budget."""

    since: float = 0.0  # when the job was first seen to train; 0: not yet
    probes: int = 0  # number of probes so far; the next one gets the next number
    count: int = 0  # number of probes in which ranks stood still
    seconds: float = 0.0  # total time for which ranks stood still
    longest_seconds: float = 0.0
    last_at: float = 0.0  # when the newest pause ended


class Probed(Stored, frozen=True, kw_only=True):
    """What probes have found for an incident."""

    tries: int = 0
    lead_seconds: float = 0.0  # training time between order and cut in the next try; 0: the usual one
    again_at: float = 0.0  # earliest time of the next try
    at: float = 0.0  # when the newest probe ended
    standstill_seconds: float = 0.0  # time for which ranks stood still in the newest probe
    # By the newest; "": nothing. Of links: one link, a machine's own, none. Of a slow rank's machine: Slow, AsFast.
    found: Literal["", "Link", "Machine", "Alike", "Slow", "AsFast"] = ""
    node: str = ""  # the node whose machine was tested
    text: str = ""  # the figures, or the reason why there are none
    slow_ns: int = 0  # iteration time when links were found alike


class Check(Stored, frozen=True, kw_only=True):
    """A measurement of all machines and links that a user has requested. Times are unix seconds."""

    asked: str  # the annotation's value
    since: float  # when the annotation was first seen
    state: Literal["Waiting", "Running", "Done", "Failed"] = "Waiting"
    tries: int = 0  # tries in which the ranks did not all stand still
    lead_seconds: float = 0.0  # training time between order and cut in the next try; 0: the usual one
    at: float = 0.0  # when the check was over
    standstill_seconds: float = 0.0
    slow: list[str] = []  # machines and links, in words, the slowest first
    text: str = ""  # the result in one line, or the reason why there is none
