"""Compare the CPU speed of all machines during a restart, in a fifth of a second (the smoke test).

A restart leaves no time for a check that takes seconds, yet it is the moment at which a sick machine shows. A rank may
have been killed, or have lost its peers, because its machine hardly computes any more. TRANSOM (§IV-A) checks before
each start. Here the size of the check follows from the failure:

- none, if the program is at fault;
- the smoke test after other failures;
- the full check (``machine_test``) on evidence of hardware, or when the failure comes back.

The smoke test runs while the pods' answers are gathered and the ranks start, and no rank waits for it. So short a test
is inexact. Only a machine that does less than half of what its peers do is suspected. It counts as sick only if a
second test confirms that, and then a restart in place (SEV2) becomes a replacement (SEV1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.model import Cause
from falcon_core.recovery.model.failure import StopIncident
from falcon_core.recovery.model.membership import Membership
from falcon_core.recovery.preflight.machine_test import MOST_NAMED, Found, Machine, counted_after, judge

SICK_FACTOR: Final = 2.0  # the others' median to the machine's own rate, in its best tenth of a second
ROUNDS: Final = 2  # in a row, before a machine is sick
LATE_SECONDS: Final = 5.0  # beyond it, a pod has no result: its launcher gives a test as long
HOLD_SECONDS: Final = 2.0  # that a start waits for the second test of a machine that is suspected
Size = Literal["None", "Smoke", "Full"]
replace = msgspec.structs.replace


class Smoke(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The newest smoke test of a job's machines. Times are unix seconds."""

    number: int = 0  # of the newest round; 0: none yet
    generation: int = 0  # the generation during whose start it runs
    asked_at: float = 0.0  # 0: no round is open
    rounds: int = 0  # of that generation
    found: list[Found] = []  # by the newest round that is over: MOST_NAMED, the worst first


def size_of(stop: StopIncident | None, judge_: Judge) -> Size:
    """Return which check a failure asks for before the restart. ``None`` also where nothing has failed."""
    if stop is None or stop.fault.error or stop.fault.cause is Cause.OUT_OF_MEMORY:
        return "None"  # an error of the program's own, or memory that a container used up
    kind = judge_.get(stop.fault.error_class)
    if stop.recurrences > 0 or (kind is not None and kind.blames_hardware):
        return "Full"
    if kind is not None and not (kind.consequence or kind.vague):
        return "None"
    early = stop.fault.cause is Cause.PROCESS_FAILED and kind is None and not stop.iterations
    return "None" if early else "Smoke"  # an exit code alone, before anything was computed, is the program's


def is_due(state: Smoke, stop: StopIncident | None, membership: Membership, judge_: Judge) -> bool:
    """Check whether the machines are to be tested during the start of the generation that is being gathered."""
    new = membership.phase == "Stop" and state.generation < membership.generation
    return new and size_of(stop, judge_) == "Smoke"


def begin_round(state: Smoke, generation: int, now: float) -> Smoke:
    """Order a test of every machine during the start of the generation."""
    again = state.generation == generation
    return Smoke(
        number=state.number + 1,
        generation=generation,
        asked_at=now,
        rounds=state.rounds + 1 if again else 1,
        found=state.found if again else [],
    )


def step(state: Smoke, machines: Sequence[Machine], *, waits_since: float | None, now: float) -> Smoke:
    """Judge the open round when all have answered, or are too late.

    ``waits_since``: since when they might have answered; None: processes of the generation before still end. Where a
    machine is suspected, the next round begins at once; otherwise the result stands in ``found``.
    """
    late = waits_since is not None and abs(now - waits_since) > LATE_SECONDS  # by the clock of another leader
    if not late and any(machine.report is None for machine in machines):
        return state
    before = {each.node: each for each in state.found}
    found = [counted_after(before.get(each.node), each) for each in judge(machines, SICK_FACTOR)[:MOST_NAMED]]
    ended = replace(state, asked_at=0.0, found=found)
    certain = all(each.is_certain for each in found)
    return ended if certain or state.rounds >= ROUNDS else begin_round(ended, state.generation, now)


def sick(state: Smoke) -> list[Found]:
    """Return the machines that two tests in a row have found slow, or one to compute wrongly; the worst first."""
    return [each for each in state.found if each.is_certain and not state.asked_at]


def holds(state: Smoke, now: float) -> bool:
    """Check whether a start waits for a round: only for the round that confirms a suspicion, and not for long."""
    return state.asked_at > 0 and state.rounds > 1 and abs(now - state.asked_at) < HOLD_SECONDS
