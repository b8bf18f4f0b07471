"""Define a check of links: the operator's order, each pod's part of it, and the results.

The order crosses the bus in the job's plan, once for all pods. Each agent derives its own pod's turns from it and
writes them into ``agent/links``; the executor (``agent/falcon_bench/links.py``) writes ``launch/links``. A training
process may have written that file instead: everything is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_core.wire.measurement.printed_check import Printed

MAX_TEXT: Final = 256
MOST_LINKS: Final = 4  # of a pod: a ring has two
MOST_BITS: Final = 1 << 62  # a second
NO_PORT: Final = 0  # the pod takes no part
PORT_COMES: Final = -1  # its executor starts

Known = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: not known
Port = Annotated[int, Meta(ge=-1, le=65535)]
Permille = Annotated[int, Meta(ge=0, le=1000)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class LinksOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to measure the links of a ring of pods. Each link is measured in both directions, one by one."""

    number: int  # of the check
    token: str  # of this round alone: a peer that does not know it is refused
    milliseconds: int  # of transfer in each direction
    ring: list[tuple[int, str, int]]  # replica, address and port of each pod that takes part
    machine_milliseconds: int = 0  # before the links, for which each machine computes; 0: it does not


class LinkTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One link as one of its two pods sees it."""

    turn: int  # the pass: 0, 1, 2
    peer: int  # the other pod's replica
    address: str
    port: int
    dials: bool  # the other pod accepts


class PodLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The file ``agent/links``: what this pod's executor measures. In a turn it has one peer at most."""

    number: int
    token: str
    own: int  # this pod's replica
    milliseconds: int
    turns: list[LinkTurn]
    machine_milliseconds: int = 0


class LinkReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One end's measurement of a link. A link counts as measured where both ends have measured it."""

    peer: Annotated[int, Meta(ge=0, le=1 << 32)]
    bits: Known = -1  # received a second, median of windows
    rtt_us: Known = -1  # there and back, the lower quartile
    receiving_permille: Permille = 0  # of the time that this end computed or waited for a CPU while it received
    sending_permille: Permille = 0  # likewise, while it sent
    held_permille: Annotated[int, Meta(ge=-1, le=1000)] = -1  # of its sending that the network held the bytes up
    why: Text = ""  # why it is not known; empty: it is


class LinksReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far a pod has come with its links."""

    port: Port = NO_PORT  # where it waits for its peers
    over: bool = False
    links: Annotated[list[LinkReport], Meta(max_length=MOST_LINKS)] = []
    why: Text = ""  # why it takes no part, or has ended without a result


class _Link(msgspec.Struct):
    peer: int = -1
    bits: float = -1.0
    rtt_us: float = -1.0
    receiving: float = 0.0
    sending: float = 0.0
    held: float = -1.0
    why: str = ""


class LinksPrinted(msgspec.Struct):
    """The files ``launch/links`` and ``launch/probe``: the port first, and in the end the links as well."""

    number: int = 0
    port: int = 0
    links: list[_Link] | None = None  # None: not measured yet
    why: str = ""
    machine: Printed | None = None  # how fast the machine computes; None: that was not to be measured


def read_links(number: int, printed: LinksPrinted | None, *, running: bool, error: str) -> LinksReport:
    """Return the progress of the measurement of the links.

    ``printed``: the executor's file; None where there is none that can be read. ``running``: the executor lives.
    """
    if printed is None or printed.number != number or not 0 < printed.port < 65536:
        why = error or "the executor has written no result"
        return LinksReport(PORT_COMES) if running else LinksReport(NO_PORT, True, why=why[:MAX_TEXT])
    if printed.links is None:
        over = not running
        return LinksReport(printed.port, over, why=(error or "it ended without a result")[:MAX_TEXT] if over else "")
    links = [_bounded(link) for link in printed.links[:MOST_LINKS] if 0 <= link.peer <= 1 << 32]
    return LinksReport(printed.port, True, links, printed.why[:MAX_TEXT])


def _bounded(link: _Link) -> LinkReport:
    receiving, sending, held = (min(1000, _whole(1000 * share)) for share in (link.receiving, link.sending, link.held))
    busy = max(0, receiving), max(0, sending)
    return LinkReport(link.peer, _whole(link.bits), _whole(link.rtt_us), *busy, held, link.why[:MAX_TEXT])


def _whole(value: float) -> int:
    return round(min(value, float(MOST_BITS))) if math.isfinite(value) and value >= 0 else -1


def turns_of(order: LinksOrder, passes: Sequence[Sequence[tuple[int, int]]], replica: int) -> list[LinkTurn]:
    """Return one pod's turns. ``passes``: disjoint pairs of replicas (``topology.passes``); the first dials."""
    places = {own: (address, port) for own, address, port in order.ring}
    found = []
    for turn, pairs in enumerate(passes):
        for first, second in pairs:
            if replica in (first, second):
                peer = second if replica == first else first
                address, port = places[peer]
                dials = replica == first
                found.append(LinkTurn(turn=turn, peer=peer, address=address, port=port, dials=dials))
    return found
