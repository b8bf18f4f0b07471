"""What a job's owner reads of the anomaly service's verdicts, and that no repair follows from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from falcon_core.wire.verdicts import OF_THE_JOB, Verdict
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.base.metrics import Metrics as Exported
from falcon_operator.base.metrics import job_figures
from falcon_operator.base.ports import JobFindings
from falcon_operator.base.time_format import unix_seconds
from falcon_operator.job.reconciler import JobReconciler
from tests.world.running import operator, reasons, run, trained
from tests.world.world import World

HOT = Verdict(
    kind="differs",
    rank=2,
    metric="cpu",
    lasted=180,
    value=0.31,
    peers=0.97,
    own=0.96,
    peers_score=4.0,
    own_score=3.0,
    detectors=["peers", "profile"],
    also=["threads"],
)


class Service:
    """What the operator holds of the anomaly service's answer."""

    def __init__(self, *verdicts: Verdict, generation: int = 1) -> None:
        self.answer: JobFindings | None = JobFindings(generation=generation, verdicts=verdicts)

    def operator(self, world: World) -> JobReconciler:
        return operator(world, findings=lambda _: self.answer)


def noted(world: World, cause: str) -> DiagnosisStatus | None:
    return next((note for note in world.status.diagnoses if note.cause == cause), None)


async def described(service: Service, cause: str) -> tuple[World, DiagnosisStatus]:
    """Return a job that trains, and its diagnosis of that cause."""
    world = World()
    await trained(world)
    await run(world, service.operator, lambda w: noted(w, cause))
    note = noted(world, cause)
    assert note is not None
    return world, note


def past(world: World, seconds: float) -> Callable[[World], bool]:
    end = world.clock.seconds + seconds
    return lambda w: w.clock.seconds >= end


async def test_a_verdict_is_evidence_in_the_slowdown_of_the_same_rank_and_of_no_other() -> None:
    said = "the anomaly service says so, too: cpu of rank 2 is unlike that of the other ranks at the same time"
    for slow in (2, 1):
        world, service = World(), Service(HOT)
        await trained(world)
        world.node_of(slow).slow = 3.0
        await run(
            world, service.operator, lambda w, slow=slow: any(_is_slow(note, slow) for note in w.status.diagnoses)
        )
        (incident,) = (note for note in world.status.diagnoses if _is_slow(note, slow))
        assert (said in incident.evidence) == (slow == 2)
        assert world.generation == 1, "nothing is done sooner"


def _is_slow(note: DiagnosisStatus, rank: int) -> bool:
    return note.rank == rank and note.what.startswith("fail-slow")


async def test_a_rank_that_differs_is_named_with_its_node_figures_and_event_and_costs_no_repair() -> None:
    world, note = await described(Service(HOT), "RankDiffers")
    assert (note.what, note.rank, note.metric) == ("anomaly, a rank differs from its peers", 2, "cpu")
    assert note.node == world.pod_of(2).node
    assert "cpu of rank 2 is unlike that of the other ranks at the same time" in note.why
    assert "cpu 0.31; the other ranks' median 0.97 (4.0x what healthy windows show); before 0.96" in note.evidence
    assert "also unlike: threads; found by peers, profile" in note.evidence
    assert abs(world.clock.unix() - unix_seconds(note.since) - 180) < 5
    assert "rank 2: a rank differs from its peers" in world.status.summary
    assert reasons(world).count("RankDiffers") == 1
    assert world.status.state == "Running"
    assert (world.generation, world.status.counters.restarts) == (1, 0)


async def test_a_shown_verdict_stays_as_it_is_while_the_service_repeats_it_with_other_figures() -> None:
    service = Service(HOT)
    world, note = await described(service, "RankDiffers")
    louder = Verdict(kind="differs", rank=1, metric="rss", lasted=30, peers_score=9.0)
    moved = Verdict(kind="differs", rank=2, metric="cpu", lasted=600, value=0.2, peers_score=5.0)
    service.answer = JobFindings(generation=1, verdicts=(louder, moved))
    await run(world, service.operator, past(world, 40))
    assert noted(world, "RankDiffers") == note
    service.answer = JobFindings(generation=1, verdicts=(louder,))
    await run(world, service.operator, lambda w: (now := noted(w, "RankDiffers")) is not None and now.rank == 1)
    assert reasons(world).count("RankDiffers") == 1, "the same diagnosis, of another rank"


async def test_several_ranks_of_one_kind_are_one_diagnosis_of_the_farthest() -> None:
    verdicts = [Verdict(kind="silent", rank=rank, metric="cpu", lasted=60, own_score=rank + 1.0) for rank in range(3)]
    _, note = await described(Service(*verdicts), "SeriesEnded")
    assert note.rank == 2
    assert note.where.endswith("others alike: rank 0, rank 1")


async def test_a_loss_is_the_jobs_and_names_no_rank_and_no_node() -> None:
    spike = Verdict(kind="loss-spike", rank=OF_THE_JOB, metric="loss", lasted=120, value=9.2, own=2.1, own_score=6.0)
    world, note = await described(Service(spike), "LossSpike")
    assert (note.rank, note.node, note.where) == (None, "", "all ranks")
    assert "loss of the job has risen" in note.why
    assert world.status.summary.endswith("; the loss spikes")


async def test_a_verdict_that_is_gone_goes_and_an_event_says_so() -> None:
    service = Service(HOT)
    world, _ = await described(service, "RankDiffers")
    service.answer = JobFindings()  # the service speaks of it no more, or does not answer
    await run(world, service.operator, lambda w: not w.status.diagnoses)
    assert reasons(world).count("AnomalyOver") == 1
    assert world.status.state == "Running"


async def test_a_new_operator_keeps_what_is_shown_until_the_service_has_answered() -> None:
    service = Service(HOT)
    world, note = await described(service, "RankDiffers")
    service.answer = None
    await run(world, service.operator, past(world, 40))
    assert noted(world, "RankDiffers") == note
    assert "AnomalyOver" not in reasons(world)


async def test_a_verdict_on_an_earlier_generation_is_not_shown_until_the_service_answers() -> None:
    service = Service(HOT)
    world, _ = await described(service, "RankDiffers")
    service.answer = None
    world.end_rank(1, exit_code=1)
    await run(world, service.operator, lambda w: w.generation == 2 and w.status.state == "Running")
    assert noted(world, "RankDiffers") is None


@pytest.mark.parametrize(
    "verdicts",
    [
        Service(HOT, generation=2),
        Service(Verdict(kind="differs", rank=4096, metric="cpu")),
        Service(Verdict(kind="of-a-later-service", rank=0)),
    ],
    ids=["another generation", "no such rank", "an unknown kind"],
)
async def test_what_does_not_fit_the_job_is_not_shown(verdicts: Service) -> None:
    world = World()
    await trained(world)
    await run(world, verdicts.operator, past(world, 40))
    assert world.status.diagnoses == []


async def test_secrets_and_control_characters_of_a_name_are_not_shown() -> None:
    name = "api_key=sk-0123456789abcdef0123456789\x1b[31m"
    _, note = await described(Service(Verdict(kind="differs", rank=0, metric=name, lasted=60)), "RankDiffers")
    shown = f"{note.why} {note.evidence} {note.metric}"
    assert "0123456789abcdef" not in shown
    assert "\x1b" not in shown


def test_metrics_count_open_anomalies_by_cause_alone() -> None:
    exported = Exported()
    body = {
        "metadata": {"uid": "u"},
        "status": {"diagnoses": [{"id": "a", "cause": "RankDiffers", "what": "anomaly, x"}]},
    }
    exported.job(("team", "gpt2"), job_figures(body))
    labels = {"namespace": "team", "job": "gpt2", "cause": "RankDiffers"}
    assert exported.registry.get_sample_value("falcon_job_anomalies", labels) == 1.0
    exported.job(("team", "gpt2"), None)
    assert exported.registry.get_sample_value("falcon_job_anomalies", labels) is None


async def test_without_a_service_there_is_none() -> None:
    world = World()
    await trained(world)
    await run(world, operator, past(world, 30))
    assert world.status.diagnoses == []
