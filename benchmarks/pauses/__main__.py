"""Ranks that stand still to be measured: for how long beyond the measurement itself, and that training stays the same.

    make shim gateway torch-venv && python -m benchmarks.pauses --check    # five pauses, two minutes
    make shim gateway torch-venv && python -m benchmarks.pauses --full     # fifty, into RESULTS.md

As root: each of the four pods has a network of its own. Launchers, agents, gateway, etcd and PyTorch (a ring over all
ranks, Gloo) are real; the program is in the operator's place. In each pause all machines compute for half a second, and
all four links are measured in both directions. The same job then trains without a pause, and its losses are compared
as exact numbers. SHIM_OUT, GATEWAY_OUT and FALCON_CACHE say where ``make`` put what it built. Ends with exit code 1
where a limit is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.limits import Limit, table
from benchmarks.results import provenance, put
from falcon_core.recovery.preflight.link_test import TRANSFER_MS
from falcon_core.recovery.probe.probe_controller import LEAD_SECONDS, MACHINE_MS
from falcon_core.topology.passes import ring_passes
from tests.integration.agent.networks import Network, machines, why_not
from tests.integration.agent.ringing import ByHand, Ring
from tests.integration.gateway.gateways import running_site

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
PODS: Final = 4
CHECKED: Final = 5
FULL: Final = 50
MOST_SECONDS: Final = 3.0  # from the order until the last rank goes on, beyond the measurement's own time
FIRST_STEPS: Final = 40  # the agents know their ranks' iterations by then
BETWEEN_STEPS: Final = 4
OWN_SECONDS: Final = (MACHINE_MS + 2 * TRANSFER_MS * len(ring_passes(range(PODS)))) / 1e3  # both directions in turn


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the pauses."""

    beyond: list[float]  # seconds of each pause, from the order to the last rank that goes on, less OWN_SECONDS
    held: list[float]  # seconds for which ranks stood still
    losses: list[list[str]]  # exact, by rank


async def paused(folder: Path, pauses: int) -> Found:
    """Train, with so many pauses."""
    beyond, held = [], []
    async with _training(folder) as (ring, network):
        await ring.trained(FIRST_STEPS)
        by_hand = ByHand(ring, network.addresses)
        for number in range(pauses):
            reported = await by_hand.prepared()
            began = time.monotonic()
            by_hand.hold(
                reported,
                lead_seconds=LEAD_SECONDS,
                deadline_seconds=20.0,
                milliseconds=TRANSFER_MS,
                machine_milliseconds=MACHINE_MS,
            )
            reports = await by_hand.released()
            beyond.append(time.monotonic() - began - OWN_SECONDS)
            held.append(max(report.held_ms for report in reports) / 1e3)
            print(f"{number + 1}/{pauses}: {beyond[-1]:.2f} s beyond, {held[-1]:.2f} s stood", flush=True)
            await ring.trained(len(ring.steps()) + BETWEEN_STEPS)
        await ring.finish()
        return Found(beyond=beyond, held=held, losses=_losses(ring))


async def undisturbed(folder: Path, steps: int) -> list[list[str]]:
    """Train so many steps without a pause; return the losses by rank."""
    async with _training(folder) as (ring, _):
        for goal in range(0, steps + FIRST_STEPS, FIRST_STEPS):  # a wait for all of them would lose its patience
            await ring.trained(min(goal, steps))
        await ring.finish()
        return _losses(ring)


@contextlib.asynccontextmanager
async def _training(folder: Path) -> AsyncIterator[tuple[Ring, Network]]:
    """Yield a ring that has begun to train, and its network."""
    with machines(PODS) as network, contextlib.ExitStack() as ends:
        site = ends.enter_context(running_site(folder / "site"))
        (gateway,) = site.gateways
        async with site.leader(gateway) as stream:
            ring = Ring(folder, site, stream, network)
            ends.callback(ring.stop)
            ring.start()
            yield ring, network


def _losses(ring: Ring) -> list[list[str]]:
    return [[step.loss for step in ring.steps(rank)] for rank in range(PODS)]


def differing(found: Found, reference: list[list[str]]) -> tuple[int, int]:
    """Count the losses that are compared, and those that differ."""
    pairs = [
        pair for mine, other in zip(found.losses, reference, strict=True) for pair in zip(mine, other, strict=False)
    ]
    return len(pairs), sum(one != other for one, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="five pauses; nothing is written (default)")
    parser.add_argument("--full", action="store_true", help="fifty, into RESULTS.md")
    asked = parser.parse_args()
    if why := why_not():
        sys.exit(f"benchmarks.pauses: {why}")
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(paused(Path(folder) / "paused", FULL if asked.full else CHECKED))
        reference = asyncio.run(undisturbed(Path(folder) / "undisturbed", len(found.losses[0])))
    compared, differ = differing(found, reference)
    count = len(found.beyond)
    limits = [
        Limit(
            what=f"order to the last rank that goes on, beyond the {OWN_SECONDS:.1f} s of measuring: median of {count}",
            measured=statistics.median(found.beyond),
            most=MOST_SECONDS,
            unit="s",
        ),
        Limit(what=f"likewise, the longest of {count}", measured=max(found.beyond), most=MOST_SECONDS, unit="s"),
        Limit(what=f"losses of {compared} that differ from a job without a pause", measured=differ, most=0),
    ]
    stood = f"Ranks stood still for {statistics.median(found.held):.2f} s (median; longest {max(found.held):.2f} s).\n"
    figures = f"{table(limits)}\n{stood}"
    print(figures)
    if asked.full:
        put(RESULTS, f"{figures}\n{provenance()}")
    return 0 if all(limit.kept for limit in limits) and compared else 1


if __name__ == "__main__":
    sys.exit(main())
