"""A job with memory for checkpoints: its pods, what is refused, and the condition that says which step is held."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.wire.saves.checkpoint import Held
from falcon_operator.manifests.instrument import instrument
from falcon_operator.manifests.validation import problems
from falcon_operator.status.checkpoints import TYPE
from tests.unit.operator.manifests.test_instrument import SETTINGS, SPEC, by_name, identity
from tests.unit.operator.manifests.test_validation import job
from tests.world.running import shown_after, trained
from tests.world.world import World

GIB = 1 << 30
replace = msgspec.structs.replace
MEMORY = {"checkpoint": {"memory": "8Gi"}}
LIMITED = {"resources": {"limits": {"memory": "8Gi"}}}


def test_the_pod_gets_a_volume_that_counts_as_the_agents_memory() -> None:
    spec = instrument(SPEC, identity({"checkpoint_bytes": 8 * GIB + 1}), SETTINGS)
    trainer, agent = by_name(spec["containers"])["trainer"], by_name(spec["initContainers"])["falcon-agent"]
    size = str(8 * GIB + 1)
    volume = {"name": "falcon-checkpoint", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    assert by_name(spec["volumes"])["falcon-checkpoint"] == volume
    for container in (trainer, agent):
        assert {"name": "falcon-checkpoint", "mountPath": "/falcon/checkpoint"} in container["volumeMounts"]
    assert by_name(trainer["env"])["FALCON_CHECKPOINT_DIR"]["value"] == "/falcon/checkpoint"
    assert agent["resources"]["limits"]["memory"] == f"{384 + 8 * 1024 + 1}Mi"
    assert agent["resources"]["requests"]["memory"] == f"{96 + 8 * 1024 + 1}Mi"
    assert trainer["resources"] == SPEC["containers"][0]["resources"], "the trainer's own stay"


def test_a_folder_keeps_an_older_checkpoint_where_the_job_may_go_back_to_it() -> None:
    kept = replace(identity({"checkpoint_bytes": GIB}), keeps_older=True)
    for each, named in ((kept, True), (identity({"checkpoint_bytes": GIB}), False), (identity(), False)):
        trainer = by_name(instrument(SPEC, each, SETTINGS)["containers"])["trainer"]
        assert ("FALCON_CHECKPOINT_KEEP_OLDER" in str(trainer.get("env", []))) == named


def test_a_job_without_is_rendered_without_a_trace() -> None:
    plain = str(instrument(SPEC, identity(), SETTINGS))
    assert "checkpoint" not in plain.lower()


@pytest.mark.parametrize(
    ("spec", "pod", "words"),
    [
        ({"checkpoint": {"memory": "7Mi"}}, {}, "7Mi is too little for two buffers for each of the pod's 1 ranks"),
        ({"checkpoint": {"memory": "63Mi"}, "procsPerReplica": 8}, {}, "at least 64Mi"),
        ({"checkpoint": {"memory": "8 GB"}}, {}, "'8 GB' is not a quantity: write one, such as 8Gi"),
        (MEMORY, LIMITED, "does not fit into the pod's limit of 8Gi"),
        ({**MEMORY, "mitigation": {"mode": "Off"}}, {}, "set spec.mitigation.mode to Observe"),
    ],
)
def test_memory_that_cannot_be_used_is_refused(spec: dict[str, Any], pod: dict[str, Any], words: str) -> None:
    (problem,) = problems(job(pod, **spec))
    assert problem.field == "spec.checkpoint.memory"
    assert words in str(problem)


@pytest.mark.parametrize("spec", [{}, MEMORY, {"checkpoint": {"memory": "64Mi"}, "procsPerReplica": 8}])
def test_memory_that_suffices_is_accepted(spec: dict[str, Any]) -> None:
    assert problems(job(**spec)) == []


@pytest.mark.parametrize(
    ("held", "status", "reason", "words"),
    [
        ([], "False", "NoneYet", "let the training script save with falcon_torch.Checkpoint"),
        (
            [Held(0, 40, 0), Held(2, 40, 0)],
            "False",
            "Incomplete",
            "2 of 3 ranks hold checkpoints in memory; none in rank 1",
        ),
        ([Held(0, 40, 0), Held(1, 20, 0), Held(2, 40, 0)], "False", "Incomplete", "no step is common to all ranks"),
        (
            [Held(rank, step, 3_723_000) for rank in range(3) for step in (20, 40)],
            "True",
            "Held",
            "all 3 ranks hold step 40 in memory, saved at 01:02:03",
        ),
        ([Held(rank, 40, (1 << 63) - 1) for rank in range(3)], "True", "Held", "step 40 in memory, saved at"),
        (
            [
                *(Held(rank, 20, 0, saving_us=9_000_000) for rank in range(3)),
                *(Held(rank, 40, 3_723_000, saving_us=50_000 + rank * 1000) for rank in range(3)),
            ],
            "True",
            "Held",
            "saved at 01:02:03; training waited 52 ms for the save",
        ),
        (
            [Held(0, 40, 0, replicated=True), Held(1, 40, 0, replicated=True)],
            "True",
            "HeldByReplicas",
            "step 40 is in memory; pods without it get it from pods that hold the same state",
        ),
        ([Held(9, 80, 0)], "False", "NoneYet", "no rank has saved"),
    ],
)
async def test_the_condition_names_the_step_that_all_hold(
    held: list[Held], status: str, reason: str, words: str
) -> None:
    world = World(spec=MEMORY)
    world.held = held
    await trained(world)
    found = await shown_after(world, TYPE)
    assert found is not None
    assert (found.status, found.reason) == (status, reason)
    assert words in found.message


async def test_a_job_without_has_no_such_condition() -> None:
    world = World()
    await trained(world)
    assert await shown_after(world, TYPE) is None
