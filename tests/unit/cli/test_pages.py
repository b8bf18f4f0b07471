"""The plugin's pages, made from what the operator really stores in the stories of its own tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from falcon_operator.intent.model.intent import HISTORY
from falcon_operator.intent.model.layout import LAYOUTS
from kubectl_falcon.explain import explain
from kubectl_falcon.objects import KEPT_INCIDENTS, job_of, run_of
from kubectl_falcon.timeline import timeline
from kubectl_falcon.timeline_plot import draw
from kubectl_falcon.timeline_text import picture
from kubectl_falcon.top import row, table
from tests.unit.cli import stories


async def test_a_slow_rank_is_explained_on_a_page() -> None:
    story = stories.Story(await stories.slow())
    page = explain(story.job, story.run, story.events, now=story.now, width=80)
    assert max(len(line) for line in page.splitlines()) <= 80
    assert page.startswith("TrainingJob ml/gpt2: Degraded")
    words = " ".join(page.split())
    for part in (
        "650 ms now, healthy 250 ms (2.6x)",
        "Why CPU throttling",
        "Next the node is replaced when",
        "on node-c",
    ):
        assert part in words
    assert "Conditions" not in page


async def test_what_was_done_and_what_it_cost_is_on_the_page() -> None:
    world = await stories.replaced()
    (closed,) = world.intent.history
    assert closed.slow is not None
    assert closed.cost_seconds is not None
    story = stories.Story(world)
    words = " ".join(explain(story.job, story.run, story.events, now=story.now, width=100).split())
    assert "replaced by spare-1; all ranks restarted" in words
    lost, cost = closed.slow.loss.seconds, closed.cost_seconds
    assert f"{lost:.0f} s lost in slow iterations, and {cost:.1f} s for the restart" in words
    assert 15 < lost < 20
    assert "Evicted node-c since" in words


async def test_a_job_that_is_well_gets_a_short_page() -> None:
    story = stories.Story(await stories.healthy())
    page = explain(story.job, story.run, story.events, now=story.now, width=100)
    assert "Diagnosis" not in page
    assert "Conditions" not in page


async def test_a_rank_that_was_lost_while_the_others_go_on_is_on_the_page_and_in_the_table() -> None:
    story = stories.Story(await stories.without_a_rank())
    words = " ".join(explain(story.job, story.run, story.events, now=story.now, width=100).split())
    assert "Size 2 of 3 ranks since " in words
    assert "Lost rank 1 on node-b at " in words
    assert "ago): killed by SIGKILL" in words
    assert "Elastic False" not in words, "it is among the fields"
    line = table([row(story.job, story.run, story.now)], namespaces=False, width=None).splitlines()[1]
    assert " 2/3 " in line
    assert "2 of 3 ranks train; waits for a new process of rank 1" in line


async def test_the_picture_shows_the_slowdown_the_standstill_and_the_actions(tmp_path: Path) -> None:
    story = stories.Story(await stories.replaced())
    shown = timeline(story.job, story.run, story.events, now=story.now)
    assert [(each.microseconds, each.measured) for each in shown.stretches] == [
        (250_000.0, False),
        (650_000.0, True),
        (250_000.0, True),
        (250_000.0, False),
    ]
    assert len(shown.stills) == 1
    text = picture(shown, 80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(sign in text for sign in "█░×▲1")
    draw(shown, tmp_path / "story.png")
    assert (tmp_path / "story.png").read_bytes().startswith(b"\x89PNG")


async def test_top_puts_the_greatest_loss_first() -> None:
    world = await stories.replaced()
    (closed,) = world.intent.history
    assert closed.slow is not None
    both = [stories.Story(await stories.killed()), stories.Story(world)]
    rows = [row(story.job, story.run, story.now) for story in both]
    assert rows[1].lost_seconds == pytest.approx(closed.slow.loss.seconds + (closed.cost_seconds or 0.0))
    assert rows[0].lost_seconds == pytest.approx(both[0].run.incidents[0].lost_seconds)
    lines = table(rows, namespaces=False, width=None).splitlines()
    assert f"{rows[1].lost_seconds:.0f} s" in lines[1]
    assert f"{rows[0].lost_seconds:.1f} s" in lines[2]


def test_what_cannot_be_read_counts_as_empty() -> None:
    job = job_of({"metadata": {"name": 3}, "spec": [], "status": {"conditions": "x", "diagnoses": [4]}})
    assert (job.name, job.conditions, job.diagnoses) == ("", (), ())
    assert "not seen by the operator yet" in explain(job, run_of({"spec": None}), (), now=0.0, width=80)


def test_open_slowdowns_are_read_from_each_layout_of_a_run() -> None:
    stored = json.loads((Path(__file__).resolve().parents[2] / "data" / "trainingruns" / "two_nodes.json").read_text())
    expected = run_of(stored).incidents
    assert [(each.kind, each.healthy_us is not None) for each in expected] == [("slow", True)] * 2
    for layout in LAYOUTS[1:]:
        assert layout.upgrade is not None
        stored["spec"] = layout.upgrade(stored["spec"])
        assert run_of(stored).incidents == expected


def test_the_plugin_knows_how_many_incidents_a_run_keeps() -> None:
    assert KEPT_INCIDENTS == HISTORY
