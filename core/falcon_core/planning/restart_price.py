"""Compute the price of an action that restarts every process: a standstill, and work that is done again.

The price has two parts. The **standstill**, from the stop of the old processes to the first iteration of the new ones,
can be seen and is measured. The **work since the last checkpoint** is known where the ranks say when they saved
(``unsaved_seconds``). Then the price falls to the standstill with each checkpoint and grows until the next, and a rule
that acts when the loss has reached the price acts right behind a checkpoint. If a script saves by its own means, it
cannot be seen. Each generation counts its iterations from 1, whatever step the script resumes from, and only the script
knows that step. Two facts hold nevertheless:

- A generation begins at a checkpoint. So never more is redone than the generation has trained.
- Where the interval between two checkpoints is declared (``spec.checkpoint.intervalSeconds``), the last checkpoint is
  the generation's start until the first interval is over. After that the phase is not known, because slow iterations
  and the writing itself move it, and half an interval is lost in the mean.

Where no interval is declared, all that the generation has trained is taken for lost, up to
``UNDECLARED_AT_MOST_SECONDS``. A pause that recurs is not taken for a checkpoint: an evaluation pauses all ranks in the
same way and saves nothing, so the price would come out too low; a checkpoint that is written in the background makes no
pause at all.

A configured price (``overheadSeconds``) is the owner's word for the whole. Other knowledge may raise it. A measurement
never lowers it, because only the standstill is measured.
"""

from __future__ import annotations

import math

import msgspec

from falcon_core.planning.errors import InvalidInputError

# Half of three hours, the longest interval that is published for a large run (BLOOM, TRANSOM's introduction).
UNDECLARED_AT_MOST_SECONDS = 5400.0


class RestartPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of restarting every process."""

    seconds: float  # the whole
    redo_seconds: float = 0.0  # of it, for the work since the last checkpoint; 0: part of a configured price, or none


def redo_seconds(
    trained_seconds: float, *, interval_seconds: float | None, unsaved_seconds: float | None = None
) -> float:
    """Return the work that a restart now throws away, or an estimate of it [s of training at healthy speed].

    ``trained_seconds``: what the generation has trained, at healthy speed. ``interval_seconds``: the declared time
    between two checkpoints. ``unsaved_seconds``: what was trained since the newest checkpoint from which the restart
    can begin; None: not known. Raises InvalidInputError for a negative time, or an interval that is not positive.
    """
    if not trained_seconds >= 0:
        raise InvalidInputError(f"{trained_seconds} s of training")
    if unsaved_seconds is not None:
        if not unsaved_seconds >= 0:
            raise InvalidInputError(f"{unsaved_seconds} s of training since the last checkpoint")
        return min(trained_seconds, unsaved_seconds)
    if interval_seconds is None:
        return min(trained_seconds, UNDECLARED_AT_MOST_SECONDS)
    if not 0 < interval_seconds < math.inf:
        raise InvalidInputError(f"{interval_seconds} s between two checkpoints")
    # Until the first interval is over, no checkpoint can exist. Later the phase is not known, and half an interval is
    # the mean.
    return trained_seconds if trained_seconds < interval_seconds else interval_seconds / 2


def restart_price(
    *,
    configured_seconds: float | None,
    measured_seconds: float | None,
    default_seconds: float,
    trained_seconds: float,
    interval_seconds: float | None,
    unsaved_seconds: float | None = None,
) -> RestartPrice:
    """Compute the price of restarting every process now.

    ``configured_seconds``: the whole, as the job's owner has declared it. ``measured_seconds``: the standstill, learned
    from earlier restarts; until then ``default_seconds``. The other three as in ``redo_seconds``, and its errors.
    """
    redo = redo_seconds(trained_seconds, interval_seconds=interval_seconds, unsaved_seconds=unsaved_seconds)
    if configured_seconds is None:
        standstill = default_seconds if measured_seconds is None else measured_seconds
        return RestartPrice(seconds=standstill + redo, redo_seconds=redo)
    standstill = min(default_seconds, configured_seconds) if measured_seconds is None else measured_seconds
    redo = redo if interval_seconds is not None or unsaved_seconds is not None else 0.0
    if standstill + redo <= configured_seconds:
        return RestartPrice(seconds=configured_seconds)
    return RestartPrice(seconds=standstill + redo, redo_seconds=redo)
