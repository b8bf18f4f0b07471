"""Keep what gateways and etcd must know of the jobs: the pods of each job, and its commands.

It reaches a gateway by two ways, by a stream and by etcd. So each announcement and each command has a revision: the
leader's epoch in the upper half, a count in the lower half. The higher revision holds, whichever way it came.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from falcon_core.wire.keys import JobKey
from falcon_gateway import Announce, Desired, Publish

_COUNT_BITS = 32


class Wanted:
    """The announcements and commands of one leadership.

    ``desired`` repeats them to every gateway; ``values`` are what etcd shall hold.
    """

    def __init__(self) -> None:
        self.desired = Desired()
        self._announced: dict[JobKey, Announce] = {}
        self._commands: dict[str, Publish] = {}  # by key in etcd
        self._values: dict[str, bytes] = {}
        self._epoch = 0
        self._count = 0

    @property
    def values(self) -> Mapping[str, bytes]:
        """Return the values by key, each job's announcement before its commands."""
        return self._values

    def announce(self, key: JobKey, pod_uids: Collection[str], procs_per_replica: int, epoch: int) -> bool:
        """Announce a job's pods; return whether that is news. Commands of a job are published after this."""
        self._renumber(epoch)
        known = self._announced.get(key)
        # The order of pods means nothing, so it must not make an announcement new.
        uids = sorted(pod_uids)
        if known is not None and (list(known.pod_uids), known.procs_per_replica) == (uids, procs_per_replica):
            return False
        self._announce(
            key,
            Announce(
                namespace=key.namespace,
                job=key.name,
                job_uid=key.uid,
                pod_uids=uids,
                procs_per_replica=procs_per_replica,
                revision=self._next(),
            ),
        )
        return True

    def publish(self, key: JobKey, name: str, payload: bytes, epoch: int) -> bool:
        """Publish a command to all pods of a job; return whether that is news."""
        self._renumber(epoch)
        known = self._commands.get(key.command(name))
        if known is not None and known.payload == payload:
            return False
        self._publish(key.command(name), Publish(job_uid=key.uid, name=name, revision=self._next(), payload=payload))
        return True

    def published(self, key: JobKey, name: str) -> bool:
        """Check whether this leadership has published a command of this name."""
        return key.command(name) in self._commands

    def withdraw(self, key: JobKey) -> None:
        """Forget a job and its commands, also one that another leader announced."""
        self._announced.pop(key, None)
        for stored in [stored for stored in self._values if stored.startswith(key.prefix)]:
            del self._values[stored]
            self._commands.pop(stored, None)
        self.desired.withdraw(key.uid)

    def _renumber(self, epoch: int) -> None:
        """Give everything a revision of the present epoch, which may grow within a leadership."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        # Gateways follow the higher revision, so that what an earlier epoch said would lose against a stalled
        # leader's words.
        for key, announce in list(self._announced.items()):
            fresh = Announce()
            fresh.CopyFrom(announce)
            fresh.revision = self._next()
            self._announce(key, fresh)
        for stored, publish in list(self._commands.items()):
            again = Publish()
            again.CopyFrom(publish)
            again.revision = self._next()
            self._publish(stored, again)

    def _next(self) -> int:
        self._count += 1
        return self._epoch << _COUNT_BITS | self._count

    def _announce(self, key: JobKey, announce: Announce) -> None:
        self._announced[key] = announce
        self._values[key.announce] = announce.SerializeToString()
        self.desired.announce(announce)

    def _publish(self, stored: str, publish: Publish) -> None:
        self._commands[stored] = publish
        self._values[stored] = publish.SerializeToString()
        self.desired.publish(publish)
