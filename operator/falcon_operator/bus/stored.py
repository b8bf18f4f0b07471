"""Keep what the watch shows of etcd's content: the operator's own values, and the names of the reports' keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from falcon_core.wire.keys import REPORTS, ROOT, JobKey, gateway_of, job_of
from falcon_etcd import KeyValue


class Stored:
    """The keys under ``ROOT`` with their values, and those under ``REPORTS`` without."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._reports: set[str] = set()

    def relist(self, kvs: Iterable[KeyValue]) -> None:
        """Replace all that was known."""
        self._values.clear()
        self._reports.clear()
        for kv in kvs:
            self.put(kv.key, kv.value)

    def put(self, key: str, value: bytes) -> None:
        if key.startswith(ROOT):
            self._values[key] = value
        elif key.startswith(REPORTS):
            self._reports.add(key)

    def delete(self, key: str) -> None:
        self._values.pop(key, None)
        self._reports.discard(key)

    def delete_prefix(self, prefix: str) -> None:
        self._values = {key: value for key, value in self._values.items() if not key.startswith(prefix)}
        self._reports = {key for key in self._reports if not key.startswith(prefix)}

    def holds(self, key: str) -> bool:
        """Check whether the operator's key exists, whatever its value."""
        return key in self._values

    def lacks(self, wanted: Mapping[str, bytes]) -> list[str]:
        """Return the keys, in the order of ``wanted``, whose values etcd does not hold."""
        return [key for key, value in wanted.items() if self._values.get(key) != value]

    def jobs(self) -> frozenset[JobKey]:
        """Return the jobs that have any key."""
        found = (job_of(key) for key in (*self._values, *self._reports))
        return frozenset(job for job in found if job is not None)

    def gateways(self) -> frozenset[str]:
        """Return the gateways that have left any report."""
        return frozenset(map(gateway_of, self._reports))
