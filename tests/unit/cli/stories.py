"""Objects as a cluster would store them: the stories of the operator's own tests, on a fake clock, written as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.time_format import timestamp
from kubectl_falcon.objects import Event, Job, Run, events_of, job_of, run_of
from tests.stories.lifecycle.test_rank_groups import lose, meet
from tests.world.running import operator, run, state, trained
from tests.world.world import World

Body = dict[str, Any]


def job_body(world: World) -> Body:
    """Return the TrainingJob with its status, decoded from JSON."""
    assert world.job is not None
    return as_stored(world.job, created=world.job.status.start_time)


def as_stored(job: TrainingJob, *, created: str) -> Body:
    meta = {"name": job.metadata.name, "namespace": job.metadata.namespace, "creationTimestamp": created}
    spec, status = json.loads(msgspec.json.encode(job.spec)), json.loads(msgspec.json.encode(job.status))
    return {"kind": "TrainingJob", "metadata": meta, "spec": spec, "status": status}


def run_body(world: World) -> Body:
    """Return the TrainingRun, decoded from JSON."""
    stored: Body = json.loads(msgspec.json.encode(world.trainingrun))
    return stored


def events_body(world: World) -> Body:
    """Return the Events; the fake clock's present stands for the time of each, which the world does not keep."""
    stamp = timestamp(world.clock.unix())
    items = [
        {"reason": reason, "message": note, "type": "Normal", "lastTimestamp": stamp, "count": 1}
        for reason, note in world.events
    ]
    return {"items": items}


class Story:
    """A story's objects as the plugin reads them, and the time at which it was looked at."""

    def __init__(self, world: World) -> None:
        self.job: Job = job_of(job_body(world))
        self.run: Run = run_of(run_body(world))
        self.events: tuple[Event, ...] = events_of(events_body(world))
        self.now = world.clock.unix()


async def without_a_rank() -> World:
    """Return a job whose ranks go on without one of them."""
    world = World(replicas=3, spares=0)
    await trained(world)
    meet(world)
    lose(world)
    await run(world, operator, lambda w: w.status.ready == "2/3")
    return world


async def healthy() -> World:
    world = World()
    await trained(world)
    return world


async def slow() -> World:
    """Play a rank that is throttled, named, and not replaced yet."""
    world = await healthy()
    node = world.node_of(2)
    node.slow, node.throttled = 3.0, 0.7
    await run(world, operator, state("Degraded"))
    return world


async def replaced() -> World:
    """Play the same rank until its node is replaced and fenced."""
    world = await slow()
    await run(world, operator, lambda w: "fenced" in w.status.diagnoses[0].result, seconds=90)
    return world


async def killed() -> World:
    """Play a rank that was killed, and the restart."""
    world = await healthy()
    world.end_rank(1, signal=9)
    await run(world, operator, lambda w: w.status.diagnoses and w.status.diagnoses[0].state == "Resolved")
    return world
