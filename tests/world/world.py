"""A small world for whole stories on a fake clock: an API server, a scheduler, nodes, launchers, agents, a bus.

It knows the wire formats and the API objects, and nothing of how the operator decides. Time moves only in ``tick``.
The operator can be made to crash at any of its mutating calls (``crash_at``): the call takes effect, the caller dies.
"""

from __future__ import annotations

from typing import Any

import msgspec

from falcon_operator.base.ports import Manifest
from tests.world.fakes import FakeBus, FakeKube
from tests.world.launching import Launching
from tests.world.reporting import Reporting
from tests.world.state import Crash, Node, Pod

__all__ = ["Crash", "Node", "Pod", "World"]
replace = msgspec.structs.replace


class World(Launching, Reporting):
    """The API server's contents, the bus, and the machines."""

    def __init__(self, *, replicas: int = 3, spares: int = 1, spec: dict[str, Any] | None = None) -> None:
        super().__init__(replicas=replicas, spares=spares, spec=spec)
        self.kube = FakeKube(self)
        self.bus = FakeBus(self)

    def edit_spec(self, **fields: Any) -> None:
        assert self.job is not None
        self._version += 1
        meta = replace(
            self.job.metadata, resource_version=str(self._version), generation=self.job.metadata.generation + 1
        )
        self.job = replace(self.job, metadata=meta, spec=replace(self.job.spec, **fields))

    def end_rank(
        self, rank: int, *, signal: int | None = None, exit_code: int | None = None, last_words: str = ""
    ) -> None:
        pod = self.pod_of(rank)
        self._end(pod, rank, signal=signal, exit_code=exit_code)
        pod.ranks[rank] = replace(pod.ranks[rank], last_words=last_words)
        if exit_code != 0:
            self.broken_at = self.clock.seconds + 0.05  # the peers' collectives break

    def terminate(self, rank: int) -> None:
        """Send SIGTERM to the launcher of a rank's pod; its ranks that still run save, and exit with 0."""
        pod = self.pod_of(rank)
        pod.signalled_at = self.clock.seconds
        running = [number for number, process in pod.ranks.items() if process.state == "Running"]
        for number in running:
            self._end(pod, number, exit_code=0)
        if running:
            pod.state = "Stopping"

    def kill_node(self, name: str) -> None:
        node = self.nodes[name]
        node.dead = True
        if any(pod.node == name and pod.state == "Running" for pod in self.pods.values()):
            self.broken_at = self.clock.seconds + 0.05

    def stop_bus(self) -> None:
        self.bus_up_since = None

    def start_bus(self) -> None:
        self.bus_up_since = self.clock.monotonic()

    def tick(self, seconds: float = 0.1) -> None:
        self.clock.seconds += seconds
        for pod in list(self.pods.values()):
            self._place(pod)
            self._remove(pod)
        for pod in self.pods.values():
            self._launch(pod)
            self._fail_at_start(pod)
            self._smoke(pod)
        self._break()
        self._train(seconds)
        for pod in self.pods.values():
            self._report(pod)

    def new_pod(self, manifest: Manifest, uid: str) -> Pod:
        made = Pod(manifest, uid, self.clock.seconds)
        made.gates = self.gates
        return made

    def mutate(self) -> None:
        """Count a mutating call; the call with the number ``crash_at`` is the operator's last."""
        self.calls += 1
        if self.crash_at == self.calls:
            raise Crash
