"""What a job's owner reads of ranks of which something runs out, or that print numbers that are none."""

from __future__ import annotations

from collections.abc import Callable

from falcon_core.wire.reporting.anomalies import Anomaly
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.base.metrics import Metrics as Exported
from falcon_operator.base.metrics import job_figures
from falcon_operator.base.time_format import unix_seconds
from tests.world.running import operator, reasons, run, trained
from tests.world.world import World

GIB = 1 << 30


def noted(world: World, cause: str) -> DiagnosisStatus | None:
    return next((note for note in world.status.diagnoses if note.cause == cause), None)


async def shown(world: World, cause: str) -> DiagnosisStatus:
    """Wait until there is a diagnosis of that cause."""
    await run(world, operator, lambda w: noted(w, cause))
    note = noted(world, cause)
    assert note is not None
    return note


def leak(at: float, kind: str = "Memory", metric: str = "", limit: int = 64 * GIB) -> Callable[[float], list[Anomaly]]:
    """Return what an agent says of a resource that reaches its limit when the world's clock shows ``at``."""

    def odd(now: float) -> list[Anomaly]:
        left = max(0, round(at - now))
        anomaly = Anomaly(
            kind, -1, metric, lasted=3000, used=limit // 2, limit=limit, left=left, earliest=left // 2, latest=2 * left
        )
        return [anomaly]

    return odd


async def test_a_leak_is_forecast_with_iteration_range_node_and_event_and_costs_no_repair() -> None:
    world = World()
    await trained(world)
    world.node_of(2).odd = leak(world.clock.seconds + 7800)
    note = await shown(world, "RunsOut")
    assert note.forecast is not None
    assert (note.what, note.rank, note.node) == ("anomaly, memory runs out", 2, world.pod_of(2).node)
    assert note.why.startswith("rank 2 reaches its memory limit of 64 GiB at about iteration ")
    assert "in 2 h 10 min (1 h 5 min to 4 h 20 min)" in note.why
    assert "in use 32 GiB of 64 GiB, growing steadily for 50 min" in note.evidence
    assert note.forecast.resource == "Memory"
    assert abs(unix_seconds(note.forecast.at) - world.clock.unix() - 7800) <= 30
    assert "rank 2: memory runs out at about " in world.status.summary
    assert world.status.state == "Running"
    assert reasons(world).count("RunsOut") == 1
    assert world.generation == 1
    assert world.status.counters.restarts == 0


async def test_a_forecast_is_written_again_only_when_a_tenth_of_the_time_has_passed() -> None:
    world = World()
    await trained(world)
    world.node_of(1).odd = leak(world.clock.seconds + 1000)
    await run(world, operator, lambda w: noted(w, "RunsOut"))
    written: set[str] = set()

    def later(w: World) -> bool:
        note = noted(w, "RunsOut")
        assert note is not None
        assert note.forecast is not None
        written.add(note.why)
        return w.clock.seconds > began + 400

    began = world.clock.seconds
    await run(world, operator, later, seconds=500)
    assert 3 <= len(written) <= 7
    assert reasons(world).count("RunsOut") == 1


async def test_a_forecast_goes_when_its_cause_does_and_an_event_says_so() -> None:
    world = World()
    await trained(world)
    world.node_of(0).odd = leak(world.clock.seconds + 3600, "Disk", "/data", limit=10 * GIB)
    await run(world, operator, lambda w: noted(w, "RunsOut"))
    assert "reaches the end of the 10 GiB at /data" in world.status.diagnoses[0].why
    world.node_of(0).odd = lambda _seconds: []
    await run(world, operator, lambda w: not w.status.diagnoses)
    assert reasons(world).count("AnomalyOver") == 1
    assert "memory" not in world.status.summary


async def test_ranks_that_leak_alike_are_one_diagnosis_of_the_first_to_end() -> None:
    world = World()
    await trained(world)
    for rank in range(3):
        world.node_of(rank).odd = leak(world.clock.seconds + 9000 - 2000 * rank)
    await run(world, operator, lambda w: (note := noted(w, "RunsOut")) is not None and "alike" in note.where)
    (note,) = world.status.diagnoses
    assert note.rank == 2
    assert note.where.endswith("others alike: rank 0, rank 1")


async def test_a_loss_that_is_nan_is_named_with_rank_line_and_iteration() -> None:
    world = World()
    await trained(world)
    line = "step 41: loss nan"
    world.node_of(1).odd = lambda _seconds: [Anomaly("NotFinite", 1, "loss", lasted=3, iteration=41, text=line)]
    note = await shown(world, "NotFinite")
    assert note.why.startswith("rank 1 printed loss that is NaN or infinite at iteration 41")
    assert line in note.evidence
    assert note.forecast is None
    assert "NotFinite" in reasons(world)
    since = note.since
    later = world.clock.seconds + 60
    await run(world, operator, lambda w: w.clock.seconds > later, seconds=90)
    assert [each.since for each in world.status.diagnoses] == [since]
    assert world.status.counters.restarts == 0


async def test_another_number_of_the_same_rank_takes_the_place_of_what_has_healed() -> None:
    world = World()
    await trained(world)
    world.node_of(1).odd = lambda _seconds: [Anomaly("NotFinite", 1, "loss", lasted=3, iteration=10, text="loss nan")]
    await run(world, operator, lambda w: noted(w, "NotFinite"))
    norm = Anomaly("NotFinite", 1, "gradNorm", lasted=3, iteration=900, text="grad norm inf")
    world.node_of(1).odd = lambda _seconds: [norm]
    await run(world, operator, lambda w: (note := noted(w, "NotFinite")) is not None and note.metric == "gradNorm")
    note = noted(world, "NotFinite")
    assert note is not None
    assert "gradNorm" in note.why
    assert "900" in note.why


async def test_another_volume_of_the_same_rank_takes_the_place_of_what_was_emptied() -> None:
    world = World()
    await trained(world)
    ends = world.clock.seconds + 3600
    world.node_of(0).odd = leak(ends, "Disk", "/data", limit=100 * GIB)
    await run(world, operator, lambda w: noted(w, "RunsOut"))
    world.node_of(0).odd = leak(ends, "Disk", "/checkpoints", limit=10 * GIB)
    await run(world, operator, lambda w: "10 GiB at /checkpoints" in w.status.diagnoses[0].why)


async def test_the_summary_names_the_most_urgent() -> None:
    world = World()
    await trained(world)
    memory, disk = leak(world.clock.seconds + 40_000), leak(world.clock.seconds + 600, "Disk", "/data")
    world.node_of(0).odd = lambda now: [*memory(now), *disk(now)]
    await run(world, operator, lambda w: "rank 0: a disk fills at about " in w.status.summary)
    nan = Anomaly("NotFinite", 0, "loss", lasted=3, iteration=10, text="loss nan")
    world.node_of(0).odd = lambda now: [*memory(now), *disk(now), nan]
    await run(world, operator, lambda w: "rank 0: a number is NaN or infinite" in w.status.summary)


async def test_an_agent_speaks_of_its_own_ranks_alone() -> None:
    world = World()
    await trained(world)
    world.node_of(1).odd = lambda _seconds: [
        Anomaly("NotFinite", 1 << 40, "loss", lasted=99, text="loss nan"),
        Anomaly("NotFinite", 0, "loss", lasted=98, text="loss nan"),
        Anomaly("NotFinite", 1, "loss", lasted=3, text="loss nan"),
    ]
    note = await shown(world, "NotFinite")
    assert note.rank == 1
    assert "alike" not in note.where


async def test_a_kind_of_a_newer_agent_and_hostile_names_do_no_harm() -> None:
    world = World()
    await trained(world)
    world.node_of(0).odd = lambda _seconds: [
        Anomaly("Soul", 0, "x", left=5, latest=9),
        Anomaly("Disk", -1, "/a\x1b[31m\n{0}{limit}" + "x" * 90, lasted=1 << 32, limit=1, left=1 << 32, latest=1 << 32),
        *[Anomaly("Memory", rank, left=9, latest=9) for rank in range(40)],
    ]
    await run(world, operator, lambda w: len(w.status.diagnoses) == 2)
    assert not any("\x1b" in note.why for note in world.status.diagnoses)
    assert world.status.state == "Running"


async def test_a_new_operator_keeps_what_is_shown_until_it_hears_the_agents() -> None:
    world = World()
    await trained(world)
    world.node_of(2).odd = leak(world.clock.seconds + 7800)
    await run(world, operator, lambda w: noted(w, "RunsOut"))
    world.received.clear()  # another operator has heard nothing yet
    world.stop_bus()
    later = world.clock.seconds + 5
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert noted(world, "RunsOut") is not None
    assert "AnomalyOver" not in reasons(world)


async def test_a_scrape_has_the_time_at_which_each_resource_runs_out() -> None:
    world = World()
    await trained(world)
    world.node_of(2).odd = leak(world.clock.seconds + 7800)
    note = await shown(world, "RunsOut")
    assert note.forecast is not None
    exported = Exported()
    body = {"status": {"diagnoses": [{"id": note.id, "forecast": {"resource": "Memory", "at": note.forecast.at}}]}}
    exported.job(("ml", "gpt2"), job_figures(body))
    labels = {"namespace": "ml", "job": "gpt2", "resource": "Memory"}
    value = exported.registry.get_sample_value("falcon_job_runs_out_timestamp_seconds", labels)
    assert value == unix_seconds(note.forecast.at)
    exported.job(("ml", "gpt2"), job_figures({"status": {"diagnoses": [{"forecast": {"resource": 7, "at": "x"}}, 3]}}))
    assert exported.registry.get_sample_value("falcon_job_runs_out_timestamp_seconds", labels) is None
