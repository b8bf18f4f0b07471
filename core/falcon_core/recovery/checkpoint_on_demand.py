"""Order a checkpoint before a planned restart, or before a process reaches a limit, so that no step is done again.

Training goes on until all ranks have saved, and the restart waits for that. This needs a script that asks in each step
whether a checkpoint is wanted (``falcon_torch.Checkpoint.wanted``). It also needs checkpoints that outlive their pods,
because a pod that is left takes its memory along. The restart waits ``SAVE_SECONDS`` at most.

A forecast that a process reaches a limit is no reason for a restart. It is one for checkpoints: from ``AHEAD_SECONDS``
before the expected end on, the ranks are asked for another one each time that an answer is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.times import SAVE_SECONDS
from falcon_core.wire.saves.checkpoint import Held, newest_of_all

URGENT_SECONDS: Final = 10.0  # where a pod may be ended at any moment
AGAIN_SECONDS: Final = 180.0  # after it an answer is too old for another restart of the same generation
AHEAD_SECONDS: Final = 600.0  # before the forecast end of a process; forecasts may be off by a tenth of hours
replace = msgspec.structs.replace


class Demand(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The newest checkpoint that was asked for. Times are unix seconds."""

    number: int = 0  # of this demand in the job's life; 0: none yet
    generation: int = 0  # that was asked
    asked_at: float = 0.0
    before: int = 0  # newest step that all ranks held then
    saved: int = 0  # the step that all ranks saved for it; 0: none yet
    given_up: bool = False  # no rank is to save for it any more
    ahead: bool = False  # asked for because of a forecast, and not for a restart


def wait(
    state: Demand,
    held: Sequence[Held],
    ranks: int,
    *,
    generation: int,
    now: float,
    urgent: bool = False,
    ahead: bool = False,
) -> tuple[Demand, bool]:
    """Ask for a checkpoint, where one can be had, before a planned restart that could begin now.

    Args:
        state: what was asked before.
        held: what the ranks hold in the memory of their pods.
        ranks: of the job.
        generation: of the ranks that train.
        now: unix seconds.
        urgent: a pod may be ended at any moment.
        ahead: a process is forecast to end soon, and nothing restarts yet.

    Returns:
        The state, and whether the restart has to wait.
    """
    # Each restart asks again. An older answer would be of another plan, and its step may be far behind.
    is_old = state.generation != generation or now - state.asked_at > AGAIN_SECONDS
    # What was saved because of a forecast is older than this restart. What is still awaited serves both.
    for_restart = state.ahead and not ahead
    if is_old or (for_restart and bool(state.saved or state.given_up)):
        return _asked(state, held, ranks, generation=generation, now=now, ahead=ahead)
    if state.saved or state.given_up:
        return state, False
    if for_restart:
        state = replace(state, ahead=False, asked_at=now)  # the restart has its own time to wait
    # The checkpoint counts when every rank holds it where it outlives the restart.
    safe = newest_of_all([each for each in held if each.in_folder], ranks)
    if safe is not None and safe.step > state.before:
        return replace(state, saved=safe.step), False
    # A checkpoint saves work, but waiting for it costs time as well: past this limit the restart goes on without it.
    if now - state.asked_at > (URGENT_SECONDS if urgent else SAVE_SECONDS):
        return replace(state, given_up=True), False
    return state, True


def _asked(
    state: Demand, held: Sequence[Held], ranks: int, *, generation: int, now: float, ahead: bool
) -> tuple[Demand, bool]:
    """Return what ``wait`` does where it asks: no restart waits for ranks that would not answer."""
    newest = newest_of_all(held, ranks)
    if newest is None or not can_answer(held, ranks):
        return state, False
    return Demand(number=state.number + 1, generation=generation, asked_at=now, before=newest.step, ahead=ahead), True


def can_answer(held: Sequence[Held], ranks: int) -> bool:
    """Check whether all ranks ask for Falcon's wish, and have copied a checkpoint to a folder before.

    Args:
        held: what the ranks hold in the memory of their pods.
        ranks: of the job.
    """
    listening = {each.rank for each in held if each.listens}
    copied = {each.rank for each in held if each.in_folder}
    return all(rank in listening and rank in copied for rank in range(ranks))


def wanted(state: Demand, generation: int) -> int:
    """Return the number of the checkpoint that the generation's ranks are to save; 0: none.

    Ranks that have saved stand still for a restart for as long as they are asked. A forecast has none.
    """
    over = state.given_up or (state.ahead and bool(state.saved))
    return 0 if state.generation != generation or over else state.number
