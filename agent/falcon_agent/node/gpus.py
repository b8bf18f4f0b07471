"""Find what is wrong with the node's GPUs, from two or more readings. Pure; ``nvml`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from falcon_agent.node.problems import Seen

# Bits of nvmlDeviceGetCurrentClocksEventReasons.
HW_SLOWDOWN = 0x08
HW_THERMAL = 0x40
POWER_BRAKE = 0x80
_BUSY_PERCENT = 50  # a GPU that idles lowers its PCIe generation to save power


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a GPU; None: unknown, or nothing that this kind of GPU has."""

    name: str  # its PCI address, as Xid messages name it
    lost: bool = False
    uncorrected: int | None = None  # ECC errors since the driver was loaded
    remap_pending: bool | None = None  # a row of its memory is replaced at the next reset
    remap_failed: bool | None = None
    slowed: int | None = None  # reasons, as bits
    lanes: tuple[int, int] | None = None  # of PCIe: in use, and possible here
    generation: tuple[int, int] | None = None  # likewise
    busy_percent: int | None = None
    corrected: int | None = None  # ECC errors since the driver was loaded
    memory_bytes: int | None = None  # in use
    clock_mhz: int | None = None  # of the multiprocessors
    degrees: int | None = None  # Celsius
    milliwatts: int | None = None
    links: Mapping[int, bool] = {}  # by the NVLink's number: is it active
    link_recoveries: Mapping[int, int] = {}


class Gpus:
    """The GPUs over time. What may be a glitch counts when two readings in a row show it."""

    def __init__(self) -> None:
        self._last: dict[str, Gpu] = {}
        self._active: dict[str, set[int]] = {}  # NVLinks that were active since the start
        self._suspected: set[tuple[str, str]] = set()

    def feed(self, gpus: Iterable[Gpu], at: float) -> list[Seen]:
        """Judge a reading. Return what is wrong with it."""
        seen: list[Seen] = []
        suspected: set[tuple[str, str]] = set()
        for gpu in gpus:
            before = self._last.get(gpu.name)
            found = [*_now(gpu), *(_since(before, gpu) if before is not None else ())]
            seen += (Seen(kind, f"GPU {gpu.name}: {text}", at) for kind, text in found)
            for kind, text in (*_suspicions(gpu), *self._links(gpu)):
                suspected.add((gpu.name, text))
                # A suspicion counts when two readings in a row have it.
                if (gpu.name, text) in self._suspected:
                    seen.append(Seen(kind, f"GPU {gpu.name}: {text}", at))
            self._last[gpu.name] = gpu
        self._suspected = suspected
        return seen

    def _links(self, gpu: Gpu) -> Iterator[tuple[str, str]]:
        active = self._active.setdefault(gpu.name, set())
        active |= {link for link, up in gpu.links.items() if up}
        for link in sorted(link for link in active if gpu.links.get(link) is False):
            yield "NvlinkError", f"NVLink {link} is inactive"


def _now(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Judge a single reading."""
    if gpu.lost:
        yield "GpuLost", "NVML: GPU is lost"
    if gpu.remap_failed:
        yield "EccError", "a row of its memory could not be replaced"
    elif gpu.remap_pending:
        yield "CorrectedEccError", "a row of its memory is replaced at the next reset"


def _since(before: Gpu, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Judge the counters that have grown; one that has fallen starts from 0."""
    if before.uncorrected is not None and gpu.uncorrected is not None and gpu.uncorrected > before.uncorrected:
        grown = gpu.uncorrected - before.uncorrected
        # With a spare row at hand the error is contained: NVIDIA's catalogue lets the other processes go on (Xid 94).
        contained = gpu.remap_pending and not gpu.remap_failed
        yield "CorrectedEccError" if contained else "EccError", f"uncorrected ECC errors grew by {grown}"
    for link, count in gpu.link_recoveries.items():
        if count > before.link_recoveries.get(link, count):
            yield "HardwareWarning", f"NVLink {link} recovered from errors"


def _suspicions(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Judge what a short moment may show without a fault."""
    # One bit field may show several reasons; the most telling one is named.
    slowed = gpu.slowed or 0
    if slowed & HW_THERMAL:
        yield "GpuOverheated", "the hardware slows it down: too hot"
    elif slowed & POWER_BRAKE:
        yield "HardwareWarning", "the hardware slows it down: power brake"
    elif slowed & HW_SLOWDOWN:
        yield "HardwareWarning", "the hardware slows it down"
    if gpu.lanes is not None and gpu.lanes[0] < gpu.lanes[1]:
        yield "PcieDegraded", f"{gpu.lanes[0]} of {gpu.lanes[1]} PCIe lanes are in use"
    # An idle GPU lowers its link's generation to save power.
    busy = gpu.busy_percent is not None and gpu.busy_percent >= _BUSY_PERCENT
    if busy and gpu.generation is not None and gpu.generation[0] < gpu.generation[1]:
        yield "PcieDegraded", f"PCIe generation {gpu.generation[0]} instead of {gpu.generation[1]} under load"
