"""The agent beside a real DDP job: what it reports, its own death, the deaths of gateway and etcd."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np
import pytest

from falcon_agent.reporting.schedule import ReportSchedule
from falcon_core.signals.job.communicators import Seat, name_communicators
from falcon_core.signals.job.hang import Progress, explain_hang
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, Detection, RankSignals, Summary
from falcon_core.wire.ring import Op
from falcon_core.wire.whole_numbers import BRIEF_ITERATIONS
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import JOB, Pod, eventually
from tests.integration.gateway.gateways import Site

FOR_EVER = 1_000_000
pytestmark = pytest.mark.timeout(400)


async def trains_on(pod: Pod, iterations: int = 15) -> None:
    """Wait until each rank has done some more iterations from now."""
    await pod.trained(max(len(pod.ended_ns(rank)) for rank in range(pod.procs)) + iterations)


def tracked(summary: Summary, ranks: int) -> bool:
    return len(summary.ranks) == ranks and all(rank.tracking == "Tracking" for rank in summary.ranks)


def counts(summary: Summary) -> list[int]:
    return [rank.iterations for rank in summary.ranks]


@pytest.mark.alone
async def test_iteration_times_are_the_scripts_and_a_killed_agent_counts_nothing_twice(make_pod: MakePod) -> None:
    pod = make_pod(3)
    agent = pod.start_agent()
    pod.allow(60)
    pod.plan(1, "Run")
    await pod.trained(60)

    first = await pod.reported(
        "all that was trained", lambda summary: counts(summary) == pod.iterations_in_rings() != []
    )
    assert tracked(first, 3)
    assert (first.generation, first.pod_uid) == (1, pod.uid)
    for rank, in_ring in zip(first.ranks, pod.in_rings(), strict=True):
        newest = np.median(in_ring.iteration_ns[-BRIEF_ITERATIONS:])
        assert np.median(rank.iteration_ns[-BRIEF_ITERATIONS:]) == pytest.approx(newest, abs=1_000), "in microseconds"
        # An iteration begins elsewhere for the agent than for the script: the sums differ by less than an iteration.
        own = np.diff(pod.ended_ns(rank.rank))[-RECENT_ITERATIONS:]
        assert sum(in_ring.iteration_ns) == pytest.approx(int(own.sum()), abs=int(own.max()))
        assert (rank.lost_records, rank.holes) == (0, 0)
    assert await pod.alive()

    await pod.remembered(3)  # else the next agent would begin anew

    # The agent dies in the midst of training; the ranks train on, and its evidence outlives it.
    pids = pod.pids()
    pod.allow(FOR_EVER)
    await trains_on(pod)
    agent.kill()
    agent.wait()
    await eventually(pod.gone, "the agent's silence")
    await trains_on(pod)
    seen = pod.summary()
    assert seen is not None
    assert all(old <= new for old, new in zip(counts(first), counts(seen), strict=True))

    # The next agent reads on, to the same counts as a reader that never stopped.
    pod.start_agent()
    await eventually(pod.alive, "the new agent")
    await trains_on(pod)
    goal = max(len(pod.ended_ns(rank)) for rank in range(3)) + 10
    pod.allow(goal)
    await pod.trained(goal)
    again = await pod.reported("the same counts", lambda summary: counts(summary) == pod.iterations_in_rings())
    assert all(goal - 15 <= count <= goal for count in counts(again)), "every iteration after the period was known"
    assert pod.pids() == pids
    assert again.launch is not None
    assert again.launch.generation == 1


def is_quiet(report: Summary) -> bool:
    return all(rank.onset is None and not rank.detailed for rank in report.ranks)


def came_early(later: Summary, earlier: Summary) -> bool:
    """Check whether ``later`` came though the pod's moment to report had not come since ``earlier``."""
    schedule = ReportSchedule(JOB.uid)
    schedule.detail_due(earlier, asked=(), detection=Detection(), urgent=True, now=0.0)
    return not schedule.is_due(later.unix_ns)


@pytest.mark.slow  # unit agent/reporting/test_schedule shows when a healthy pod reports
@pytest.mark.alone
async def test_a_healthy_pod_says_little(make_pod: MakePod) -> None:
    """A busy machine slows the ranks now and then. The pod reports that at once: such reports are not judged here."""
    pod = make_pod(3)
    pod.start_agent()
    pod.allow(FOR_EVER)
    pod.plan(1, "Run")
    earlier = await pod.reported("tracked ranks", lambda summary: tracked(summary, 3))
    judged = 0
    while judged < 3:
        later = await pod.reported("the next report", lambda summary, old=earlier: summary.sequence > old.sequence)
        entry = pod.entry()
        assert entry is not None
        if is_quiet(earlier) and is_quiet(later) and later.sequence == earlier.sequence + 1:
            judged += 1
            assert not came_early(later, earlier)
            assert len(entry.payload) <= 64 * (3 + 1)
        earlier = later
    await trains_on(pod)


@pytest.mark.slow  # tests/e2e/failures/test_hang_and_link names it on the cluster
async def test_a_stopped_rank_is_behind_in_the_reported_counts(make_pod: MakePod) -> None:
    """The rank is stopped between two iterations; the other ranks go on into the next iteration's first all-reduce."""
    pod = make_pod(3)
    pod.start_agent()
    pod.allow(60)
    pod.plan(1, "Run")
    await pod.reported("60 iterations", lambda summary: tracked(summary, 3) and min(counts(summary)) >= 40)
    await pod.trained(60)
    stopped = pod.pids()[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        pod.allow(FOR_EVER)

        def waits(rank: RankSignals) -> bool:
            return any(comm.entered is not None and comm.entered > (comm.finished or 0) for comm in rank.comms)

        report = await pod.reported(
            "the others wait", lambda summary: [waits(rank) for rank in summary.ranks] == [True, False, True]
        )
    finally:
        os.kill(stopped, signal.SIGCONT)
    seats = [
        Seat(rank=rank.rank, comm=comm.comm, size=comm.size, place=comm.place)
        for rank in report.ranks
        for comm in rank.comms
    ]
    names = name_communicators(seats, 3)
    progress = [
        Progress(
            rank=rank.rank, comm=names[rank.rank, comm.comm].name, entered=comm.entered or 0, finished=comm.finished
        )
        for rank in report.ranks
        for comm in rank.comms
    ]
    hang = explain_hang(progress, {named.name: named.members for named in names.values()})[0]
    assert (hang.kind, hang.ranks, hang.waiting) == ("NeverArrived", (1,), 2)
    assert {comm.op for rank in report.ranks for comm in rank.comms} == {Op.ALL_REDUCE}
    await trains_on(pod)


@pytest.mark.slow  # tests/e2e/failures/test_fail_stop kills both on the cluster
async def test_training_never_notices_that_etcd_and_gateway_die_and_reports_resume(
    make_pod: MakePod, site: Site
) -> None:
    pod = make_pod(2)
    (gateway,) = site.gateways
    agent = pod.start_agent()
    pod.allow(FOR_EVER)
    pod.plan(1, "Run")
    await pod.reported("tracked ranks", lambda summary: tracked(summary, 2))
    pids = pod.pids()

    async def reports_go_on(what: str) -> None:
        await trains_on(pod)
        done = min(len(pod.ended_ns(rank)) for rank in range(2))
        await pod.reported(what, lambda summary: min(counts(summary), default=0) > done)
        assert await pod.alive()

    site.etcd.kill()
    await reports_go_on("iterations from while etcd is away")

    await gateway.end(by=signal.SIGKILL)
    await trains_on(pod)
    gateway.start()
    await reports_go_on("iterations from after the gateway's death")

    # The data are lost, too: neither agent nor gateway holds anything that only etcd had.
    await gateway.end(by=signal.SIGKILL)
    site.etcd.wipe()
    site.etcd.start()
    gateway.start()
    await reports_go_on("iterations from after the loss of all data")
    later = pod.summary()
    assert later is not None
    assert later.launch is not None
    assert later.launch.state == "Running"
    assert agent.poll() is None, "the agent itself lived on"
    assert pod.pids() == pids


async def test_an_agent_that_the_gateway_refuses_says_so_and_tracks_on(make_pod: MakePod) -> None:
    """It stays for as long as training does: whoever repairs the certificate finds everything in place."""
    pod = make_pod(1)
    agent = pod.start_agent(namespace="elsewhere")
    said = await pod.logged("the gateway refuses this agent; trying again")
    assert "certificate" in said["error"]
    assert agent.poll() is None
    assert pod.summary() is None


async def test_an_agent_without_a_gateway_says_why(make_pod: MakePod, site: Site) -> None:
    (gateway,) = site.gateways
    await gateway.end()
    pod = make_pod(1)
    pod.start_agent()
    said = await pod.logged("no gateway takes this pod's reports; trying on")
    assert gateway.agents in said["error"]
    gateway.start()
    assert (await pod.logged("connected"))["gateway"] == gateway.name
    await eventually(pod.alive, "the agent's sign of life")

    pod.publish(b'{"epoch": "of another release"}')
    await pod.logged("a command that cannot be read is ignored: are operator and agent of one release?")
    pod.plan(1, "Stop")
    await pod.reported("the plan after it", lambda summary: summary.generation == 1)


async def test_a_ranks_death_is_reported_at_once_and_the_next_generation_is_followed(make_pod: MakePod) -> None:
    pod = make_pod(2)
    pod.start_agent()
    pod.allow(FOR_EVER)
    pod.plan(1, "Run")
    await pod.reported("tracked ranks", lambda summary: tracked(summary, 2))

    status = pod.launcher.status()
    assert status is not None
    os.kill(status.ranks[1].pid, signal.SIGKILL)

    def names_the_kill(summary: Summary) -> bool:
        return summary.launch is not None and any(rank.signal == signal.SIGKILL for rank in summary.launch.ranks)

    dead = await pod.reported("the rank's death", names_the_kill)
    assert dead.launch is not None
    killed = next(rank for rank in dead.launch.ranks if rank.signal == signal.SIGKILL)
    assert (killed.rank, killed.exit_code, killed.core_dumped, killed.oom_killed) == (1, None, False, False)

    # Who waited for whom shows in the calls that each had begun when it ended.
    ended = await pod.reported(
        "both ends, with their counts",
        lambda s: (
            s.launch is not None
            and {rank.state for rank in s.launch.ranks} == {"Exited"}
            and all(rank.comms for rank in s.ranks)
        ),
    )
    begun = {rank.rank: [comm.entered for comm in rank.comms] for rank in ended.ranks}
    assert None not in (*begun[0], *begun[1])
    assert sum(map(int, filter(None, begun[0]))) >= sum(map(int, filter(None, begun[1])))

    pod.plan(2, "Stop")
    stopped = await pod.reported(
        "the acknowledgement", lambda summary: summary.launch is not None and summary.launch.dead_below == 2
    )
    assert stopped.launch is not None
    assert stopped.launch.state == "Stopped"
    stopped_ns = time.time_ns()
    pod.plan(2, "Run")
    second = await pod.reported(
        "the second generation", lambda summary: summary.generation == 2 and tracked(summary, 2)
    )
    # A busy machine may slow the second generation down, too: an onset is the first generation's only if it is older.
    assert [rank.rank for rank in second.ranks if rank.onset and rank.onset.unix_ns < stopped_ns] == []
    pod.plan(2, "Finish", exit_code=5)
    assert await asyncio.to_thread(pod.launcher.process.wait, 20) == 5
    assert pod.agent is not None
    pod.agent.terminate()
    assert await asyncio.to_thread(pod.agent.wait, 20) == 0
    await eventually(pod.gone, "the agent's silence")
    assert pod.summary() is not None, "evidence outlives its agent"
