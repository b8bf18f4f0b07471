"""Keys of the bus in etcd.

Under ``/falcon/v1/<namespace>/<job>/<job uid>/``::

    reports/<pod uid>/summary  the pod's newest report, overwritten, without lease: evidence outlives its agent
    reports/<pod uid>/alive    under the agent's lease (``times.LIVENESS_TTL_SECONDS``)
    commands/plan              the operator's desired state for every pod of the job
    commands/detail            the ranks of which the operator wants to know more

``/falcon/leader`` holds the leader's epoch; every command transaction compares it.

Names cannot contain a slash (Kubernetes forbids it), so a key splits without ambiguity.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ROOT = "/falcon/v1/"
LEADER_KEY = "/falcon/leader"


class JobKey(NamedTuple):
    """A job's identity on the bus; the uid sets a job apart from its namesake that was deleted."""

    namespace: str
    name: str
    uid: str

    @property
    def prefix(self) -> str:
        return f"{ROOT}{self.namespace}/{self.name}/{self.uid}/"

    @property
    def reports(self) -> str:
        return f"{self.prefix}reports/"

    @property
    def commands(self) -> str:
        return f"{self.prefix}commands/"

    @property
    def plan(self) -> str:
        return f"{self.commands}plan"

    @property
    def detail(self) -> str:
        return f"{self.commands}detail"

    def summary(self, pod_uid: str) -> str:
        return f"{self.reports}{pod_uid}/summary"

    def alive(self, pod_uid: str) -> str:
        return f"{self.reports}{pod_uid}/alive"


class ReportKey(NamedTuple):
    """A parsed key under ``reports/``."""

    job: JobKey
    pod_uid: str
    leaf: Literal["summary", "alive"]


def parse_report(key: str) -> ReportKey | None:
    """Split a report's key; None for any other key (a newer version's, a command)."""
    if not key.startswith(ROOT):
        return None
    parts = key[len(ROOT) :].split("/")
    if len(parts) != 6 or parts[3] != "reports":
        return None
    namespace, name, uid, _, pod_uid, leaf = parts
    if leaf == "summary":
        return ReportKey(JobKey(namespace, name, uid), pod_uid, "summary")
    if leaf == "alive":
        return ReportKey(JobKey(namespace, name, uid), pod_uid, "alive")
    return None
