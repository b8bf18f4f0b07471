"""The code of commit a9e84fb, as ``evaluation.real_jobs.room`` plays with it.

It runs by itself, with that commit's ``falcon_core`` and ``falcon_agent`` on PYTHONPATH, whose classes have other
fields than those of this checkout: they are imported by name. The generator (``falcon_sim``) is this checkout's.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from evaluation.real_jobs import fields
from evaluation.real_jobs.outcome import Facts, Order, Said, Seen, said_of
from evaluation.real_jobs.worker import main

machine: Any = importlib.import_module("falcon_core.recovery.machine")
observation: Any = importlib.import_module("falcon_core.recovery.model.observation")
memory: Any = importlib.import_module("falcon_core.recovery.model.state")

_SIGNALS = (
    "iterations",
    "iteration_ns",
    "compute_ns",
    "wait_ns",
    "period_calls",
    "healthy_iteration_ns",
    "healthy_noise",
    "healthy_compute_ns",
    "onset",
    "comms",
    "comms_left_out",
)


class Baseline:
    """The recovery of that commit with its default policy. The replacements under way are part of its state."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._state = memory.RecoveryState()
        self._policy = observation.Policy(**fields.of_policy(facts))

    def look(self, seen: Seen) -> list[Order]:
        moves = [
            memory.Replacement(
                replica=replica,
                pod_name=pod.name,
                old_pod_name=seen.names[replica],
                old_pod_uid=seen.names[replica],
                old_node=f"node-{seen.roles[replica]}",
                aside=True,
                at=pod.asked_at,
            )
            for replica, pod in seen.prepared.items()
        ]
        state = msgspec.structs.replace(self._state, replacements=moves)
        self._state, actions = machine.step(state, self._observation(seen), self._policy)
        kinds = ("Prepare", "Switch", "Abandon", "Replace")
        return [Order(type(done).__name__, done.replica) for done in actions if type(done).__name__ in kinds]  # type: ignore[arg-type]

    def _observation(self, seen: Seen) -> Any:
        procs = self._facts.procs
        ranks = [
            observation.RankSeen(
                rank=sent.rank,
                replica=sent.rank // procs,
                process="Running",
                tracked=sent.tracking == "Tracking",
                fresh=True,
                **{name: getattr(sent, name) for name in _SIGNALS},
            )
            for sent in seen.sent
        ]
        asides = {
            pod.name: observation.AsideSeen(**fields.of_prepared(pod, seen.now)) for pod in seen.prepared.values()
        }
        return observation.Observation(
            **fields.of_moment(seen),
            members=[observation.MemberSeen(**member) for member in fields.of_members(seen)],
            ranks=ranks,
            asides=asides,
            spares=observation.Spares(**fields.of_spares(seen)),
        )

    def said(self) -> Said | None:
        return None if self._state.slow is None else said_of(self._state.slow)


if __name__ == "__main__":
    main(Baseline)
