"""Build and split the keys of the bus in etcd.

The operator writes, and gateways read, under ``/falcon/v1/<namespace>/<job>/<job uid>/``::

    announce                   the job's pods: the agents that a gateway serves
    commands/plan              the operator's desired state for every pod of the job
    commands/detail            the ranks of which the operator wants to know more
    commands/peers             who keeps copies of whose checkpoints (``wire.saves.peers``)
    commands/imports           what standbys in pods without a replica import (``wire.launcher.imports``)
    commands/microbatches      how many micro-batches each rank is to compute
    commands/probe             where the ranks are to stand still, and what is measured then
    (``wire.measurement.probe``)

Gateways write, and the operator reads::

    /falcon/reports/v1/<gateway>/<namespace>/<job>/<job uid>/<part>    the job's pods at this gateway
    /falcon/gateways/<gateway>                                         its addresses, under its lease

``/falcon/leader`` holds the leader's epoch; every command transaction compares it. What the values are is in
``gateway/proto/gateway.proto``.

Names cannot contain a slash (Kubernetes forbids it), so a key splits without ambiguity.
"""

from __future__ import annotations

from typing import NamedTuple

ROOT = "/falcon/v1/"
REPORTS = "/falcon/reports/v1/"
GATEWAYS = "/falcon/gateways/"
LEADER_KEY = "/falcon/leader"
PLAN, DETAIL, MICROBATCHES, PEERS, IMPORTS = "plan", "detail", "microbatches", "peers", "imports"
PROBE = "probe"  # these are the commands' names


class JobKey(NamedTuple):
    """A job's identity on the bus; the uid sets a job apart from its namesake that was deleted."""

    namespace: str
    name: str
    uid: str

    @property
    def prefix(self) -> str:
        return f"{ROOT}{self.namespace}/{self.name}/{self.uid}/"

    @property
    def announce(self) -> str:
        return f"{self.prefix}announce"

    @property
    def plan(self) -> str:
        return self.command(PLAN)

    @property
    def detail(self) -> str:
        return self.command(DETAIL)

    @property
    def microbatches(self) -> str:
        return self.command(MICROBATCHES)

    @property
    def probe(self) -> str:
        return self.command(PROBE)

    def command(self, name: str) -> str:
        return f"{self.prefix}commands/{name}"

    def reports(self, gateway: str) -> str:
        """Return the prefix under which a gateway writes of this job."""
        return f"{REPORTS}{gateway}/{self.namespace}/{self.name}/{self.uid}/"


def job_of(key: str) -> JobKey | None:
    """Return the job to which a key under ``ROOT`` or ``REPORTS`` belongs; None for any other key."""
    parts = key.split("/")
    if key.startswith(ROOT) and len(parts) > 6:
        return JobKey(*parts[3:6])
    if key.startswith(REPORTS) and len(parts) > 8:
        return JobKey(*parts[5:8])
    return None


def gateway_of(key: str) -> str:
    """Return the gateway to which a key under ``REPORTS`` or ``GATEWAYS`` belongs; "" for any other key."""
    for prefix in (REPORTS, GATEWAYS):
        if key.startswith(prefix):
            return key.removeprefix(prefix).partition("/")[0]
    return ""
