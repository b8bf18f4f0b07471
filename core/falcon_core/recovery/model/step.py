"""Hold what one look at a job decides: the state to store, the commands to carry out, and the events to report."""

from __future__ import annotations

import msgspec

from falcon_core.recovery.model.actions import Command, Restart, Swap, Switch
from falcon_core.recovery.model.events import Event
from falcon_core.recovery.model.state import RecoveryState


class Step(msgspec.Struct, frozen=True):
    """The state after a look, the commands that the look gives, and the events that it finds.

    ``positions``: for each event, how many of the commands were decided before the event; 0 unless ``then`` says more.
    """

    state: RecoveryState
    commands: list[Command] = []
    events: list[Event] = []
    positions: list[int] = []

    def __post_init__(self) -> None:
        missing = len(self.events) - len(self.positions)
        if missing:
            msgspec.structs.force_setattr(self, "positions", [*self.positions, *[0] * missing])

    @property
    def is_empty(self) -> bool:
        """Check whether the look gives no command and finds no event; its state may have changed."""
        return not self.commands and not self.events

    @property
    def is_planned_restart(self) -> bool:
        """Check whether all ranks restart though none has failed, so that they can save a checkpoint before."""
        return self.state.stop is None and any(isinstance(each, Restart | Switch | Swap) for each in self.commands)

    def then(self, later: Step) -> Step:
        """Return this step and a later one of the same look as one. The state is the later one's."""
        return Step(
            later.state,
            [*self.commands, *later.commands],
            [*self.events, *later.events],
            [*self.positions, *(len(self.commands) + position for position in later.positions)],
        )

    def in_order(self) -> list[Command | Event]:
        """Return the commands and the events in the order in which the ladders decided them."""
        found: list[Command | Event] = []
        for number, command in enumerate(self.commands):
            found += self._events_at(number)
            found.append(command)
        return [*found, *self._events_at(len(self.commands))]

    def _events_at(self, position: int) -> list[Event]:
        return [event for event, at in zip(self.events, self.positions, strict=True) if at == position]
