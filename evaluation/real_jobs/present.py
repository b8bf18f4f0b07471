"""The code of this checkout, as ``evaluation.real_jobs.room`` plays with it."""

from __future__ import annotations

from evaluation.real_jobs import fields
from evaluation.real_jobs.outcome import Facts, Order, Said, Seen, said_of
from evaluation.real_jobs.worker import main
from falcon_core.recovery import Look, machine
from falcon_core.recovery.model.actions import Abandon, Prepare, Replace, Switch
from falcon_core.recovery.model.observation import LauncherSeen, MemberSeen, Observation, PreparedSeen, RankSeen, Spares
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import RecoveryState


class Present:
    """The recovery of this checkout with its default policy."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._state = RecoveryState()
        self._policy = Policy(**fields.of_policy(facts))

    def look(self, seen: Seen) -> list[Order]:
        step = machine.step(self._state, Look(self._observation(seen), self._policy))
        self._state = step.state
        return [
            Order(type(command).__name__, command.replica)  # type: ignore[arg-type]
            for command in step.commands
            if isinstance(command, Prepare | Switch | Abandon | Replace)
        ]

    def _observation(self, seen: Seen) -> Observation:
        procs = self._facts.procs
        return Observation(
            **fields.of_moment(seen),
            members=[
                MemberSeen(**member, launcher=LauncherSeen(acknowledged=True)) for member in fields.of_members(seen)
            ],
            ranks=[
                RankSeen(rank=sent.rank, replica=sent.rank // procs, process="Running", sent=sent, fresh=True)
                for sent in seen.sent
            ],
            prepared={
                replica: PreparedSeen(**fields.of_prepared(pod, seen.now), waited_seconds=seen.now - pod.asked_at)
                for replica, pod in seen.prepared.items()
            },
            spares=Spares(**fields.of_spares(seen)),
        )

    def said(self) -> Said | None:
        return None if self._state.leader is None else said_of(self._state.leader, self._state.further)


if __name__ == "__main__":
    main(Present)
