"""Report what a rank's shim does not see, from its ring's header."""

from __future__ import annotations

from typing import Final

from falcon_core.wire.reporting.messages import Sight
from falcon_core.wire.ring import DeviceTimes, Full, NoDeviceTimes, RingStatus

_REASONS: Final[dict[NoDeviceTimes, Sight]] = {
    NoDeviceTimes.NO_DRIVER: "NoDriver",
    NoDeviceTimes.OLD_DRIVER: "OldDriver",
    NoDeviceTimes.NO_THREAD: "NoThread",
    NoDeviceTimes.FAULTS: "DriverFails",
}


def sight(status: RingStatus | None) -> Sight:
    """Return what is seen of a rank. None, and rings of earlier shims, say nothing and count as all."""
    if status is None:
        return "Full"
    if status.full & Full.COMMUNICATORS:
        return "CommunicatorsFull"
    if status.full & Full.COUNTERS:
        return "CountersFull"
    return _REASONS.get(status.device_reason, "Full") if status.device_times == DeviceTimes.OFF else "Full"
