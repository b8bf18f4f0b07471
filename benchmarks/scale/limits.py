"""The figures that are promised, and whether they are kept."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.limits import Limit
from benchmarks.scale.meter import Cost
from benchmarks.scale.parts.burst import Burst
from benchmarks.scale.parts.idle import MOST_REQUESTS, Idle
from benchmarks.scale.parts.one_job import OneJob
from benchmarks.scale.parts.startup import MOST_BYTES, MOST_SECONDS, Figures

HEALTHY_CORES = 1.0  # gateway, etcd and operator together
SLOW_CORES = 2.0
REPORT_SHARE, REPORT_SECONDS = 0.99, 1.0  # from receipt at the gateway to the decision
ONSET_RATIO = 1.25  # a large job's slowdown is named as soon as a small one's, within what single runs differ by
DATABASE_MIB = 200.0
MANY_CORES = 2.0
MANY_AGENTS = 12_800
OPERATOR_MIB = 1024.0
EXCLUDED_SECONDS = 5.0
FENCED_SECONDS = 0.150


def of_start(start: Figures) -> list[Limit]:
    return [
        Limit(what=f"start with {start.pods} pods", measured=start.operator_seconds, most=MOST_SECONDS, unit="s"),
        Limit(what="memory of a pod", measured=start.pod_bytes, most=MOST_BYTES, unit="bytes"),
    ]


def of_idle(idle: Idle) -> list[Limit]:
    return [
        Limit(
            what="API requests while jobs wait", measured=idle.requests_per_second, most=MOST_REQUESTS, unit="a second"
        )
    ]


def of_one_job(one: OneJob) -> list[Limit]:
    well, slow = one.costs
    return [
        Limit(what=f"{well.what}: gateway, etcd, operator", measured=well.cores, most=HEALTHY_CORES, unit="cores"),
        Limit(what=f"{slow.what}: gateway, etcd, operator", measured=slow.cores, most=SLOW_CORES, unit="cores"),
        *(
            Limit(
                what=f"{cost.what}: reports used later than {REPORT_SECONDS:.0f} s after their receipt",
                measured=100 * (1 - cost.share_within(REPORT_SECONDS)),
                most=100 * (1 - REPORT_SHARE),
                unit="%",
            )
            for cost in one.costs
        ),
        Limit(
            what=f"onset to diagnosis: {one.many.pods} pods ({one.many.seconds:.1f} s) to {one.few.pods}"
            f" ({one.few.seconds:.1f} s)",
            measured=one.many.seconds / one.few.seconds,
            most=ONSET_RATIO,
        ),
        Limit(
            what=f"database after an hour's writes, slow ({one.hour.written_mib:.0f} MiB)",
            measured=one.hour.database_mib,
            most=DATABASE_MIB,
            unit="MiB",
        ),
    ]


def of_many_jobs(costs: Sequence[Cost]) -> list[Limit]:
    """Return the limits of the largest number of jobs. With fewer agents, less CPU is allowed."""
    most = costs[-1]
    share = min(1.0, most.agents / MANY_AGENTS)
    return [
        Limit(what=f"{most.what}: gateway, etcd, operator", measured=most.cores, most=share * MANY_CORES, unit="cores"),
        Limit(what=f"{most.what}: operator", measured=most.operator_mib, most=OPERATOR_MIB, unit="MiB"),
        Limit(
            what=f"{most.what}: API requests", measured=most.requests_per_second, most=MOST_REQUESTS, unit="a second"
        ),
        Limit(what=f"{most.what}: agents taken for lost that had spoken in time", measured=most.wrongly_lost, most=0.0),
    ]


def of_burst(burst: Burst) -> list[Limit]:
    nearly_all = burst.fenced[min(len(burst.fenced) - 1, int(0.99 * len(burst.fenced)))]
    return [
        Limit(
            what=f"{burst.lost} nodes lost at once in {burst.jobs} jobs: all exclusions durable",
            measured=burst.excluded[-1],
            most=EXCLUDED_SECONDS,
            unit="s",
        ),
        Limit(
            what=f"second witness to fence, 99 % of {len(burst.fenced)} nodes",
            measured=nearly_all,
            most=FENCED_SECONDS,
            unit="s",
        ),
    ]
