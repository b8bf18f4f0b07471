"""Define a pod's network figures: segments sent again, and congestion and errors of RDMA adapters."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Rate = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: unknown


class NetworkCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the pod's network, or the adapter's driver, began; None is unknown, never zero."""

    sent: int | None = None  # TCP segments
    again: int | None = None  # of them, those that were sent again
    congested: int | None = None  # congestion notices (CNPs) by which an RDMA adapter was made to send slower
    faulty: int | None = None  # packets out of order, with a wrong number, or without an answer in time


class NetworkSignals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rates of the newest seconds, and while training was healthy; -1: unknown."""

    again_ppm: Rate = -1  # TCP segments sent again, of a million that were sent
    healthy_again_ppm: Rate = -1
    congested_a_second: Rate = -1
    healthy_congested_a_second: Rate = -1
    faulty_a_second: Rate = -1
    healthy_faulty_a_second: Rate = -1
