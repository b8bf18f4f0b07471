"""Simulate what agents report of a job's communicators: their members and their traffic.

Real agents report it of a slow rank, or on request (``recovery.detail_requests``). No code reads it of other ranks.

A healthy second of a transfer counts as a gigabyte: roles are exchanged by the bytes that cross a link, and the
scenario gives times. These hold with all ranks of a node at work, so each rank's sends count as its part of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from falcon_core.wire.reporting.messages import CommSignals, SentSignals
from falcon_core.wire.ring import Op
from falcon_sim.job.model import NORM_SECONDS, JobModel
from falcon_sim.job.records import DATA, EXPERT, PIPELINE, TENSOR, WORLD

_BYTES_A_SECOND = 1e9


class Traffic:
    """The communicators of a job's ranks. Ids are those of the records."""

    def __init__(self, model: JobModel) -> None:
        self._job = job = model.job
        self._stages, self._replicas, self._tensor = model.shape
        passes = 2 * job.microbatches
        self._seconds = {  # of an iteration's calls
            TENSOR: passes * job.tensor_seconds,
            EXPERT: passes * job.expert_seconds,
            DATA: job.reduce_seconds,
            WORLD: NORM_SECONDS,
        }

    def comms(self, rank: int, excess_ns: Mapping[int, Sequence[float]]) -> list[CommSignals]:
        """Return a rank's communicators, with the excess that it sees."""
        found = []
        for comm, (size, place) in self._seats(rank).items():
            is_pair = comm == PIPELINE
            parts = [] if is_pair else [round(part) for part in excess_ns.get(comm, ())]
            if size < 2:
                continue
            op = Op.ALL_TO_ALL if comm == EXPERT else Op.ALL_REDUCE
            carried = None if is_pair else round(self._seconds[comm] * _BYTES_A_SECOND)
            found.append(
                CommSignals(comm=comm, size=size, place=place, op=int(op), excess_ns=parts, link_bytes=carried)
            )
        return found

    def sends(self, rank: int, microbatches: int) -> list[SentSignals]:
        """Return the bytes that a rank sends to its neighbour stages, for this many micro-batches of its replica."""
        stage = rank // (self._replicas * self._tensor)
        seconds = microbatches * self._job.transfer_seconds / self._job.procs_per_node
        carried = round(seconds * _BYTES_A_SECOND)
        peers = [peer for peer in (stage - 1, stage + 1) if 0 <= peer < self._stages]
        return [SentSignals(comm=PIPELINE, peer=peer, bytes=carried) for peer in peers] if carried else []

    def _seats(self, rank: int) -> dict[int, tuple[int, int]]:
        """Return size and the rank's place, by communicator."""
        stage, rest = divmod(rank, self._replicas * self._tensor)
        replica, place = divmod(rest, self._tensor)
        degrees = self._job.parallelism
        return {
            TENSOR: (self._tensor, place),
            EXPERT: (degrees.expert if degrees.expert > 1 else 0, replica % degrees.expert),
            PIPELINE: (self._stages, stage),
            DATA: (self._replicas, replica),
            WORLD: (degrees.world, rank),
        }
