"""Jobs are of one kind where namespace, image, command and layout are equal, however their spec is written."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.job_kind import PATTERN, kind_of


def spec(**more: Any) -> dict[str, Any]:
    trainer = {"name": "t", "image": "trainer:1", "command": ["python", "t.py"], "args": ["--size", "7"]}
    return {"replicas": 2, "template": {"spec": {"containers": [trainer]}}, **more}


def with_trainer(**changed: Any) -> dict[str, Any]:
    found = spec()
    found["template"]["spec"]["containers"][0] |= changed
    return found


BASE = kind_of("team", spec())


@pytest.mark.parametrize(
    "other",
    [
        spec(replicas=3),
        spec(procsPerReplica=2),
        spec(parallelism={"pipeline": 2}),
        with_trainer(image="trainer:2"),
        with_trainer(command=["python", "other.py"]),
        with_trainer(args=["--size 7"]),
    ],
)
def test_another_image_command_or_layout_is_another_kind(other: dict[str, Any]) -> None:
    assert kind_of("team", other) != BASE
    assert kind_of("team", other).partition(".")[0] == BASE.partition(".")[0], "of the same namespace"


def test_another_namespace_is_another_kind() -> None:
    assert kind_of("other", spec()).partition(".")[0] != BASE.partition(".")[0]


@pytest.mark.parametrize(
    "same",
    [
        spec(procsPerReplica=1, parallelism={"tensor": 1, "context": 1, "expert": 1, "pipeline": 1}, container=None),
        spec(container="t", suspend=True, anomalies={"onNaN": "Restart"}),
        with_trainer(env=[{"name": "SEED", "value": "3"}], resources={"limits": {"cpu": "4"}}),
    ],
)
def test_defaults_and_what_does_not_change_the_run_are_the_same_kind(same: dict[str, Any]) -> None:
    assert kind_of("team", same) == BASE


def test_the_container_that_trains_counts() -> None:
    several = spec(container="t")
    several["template"]["spec"]["containers"].insert(0, {"name": "logs", "image": "logger:1"})
    assert kind_of("team", several) == BASE


@pytest.mark.parametrize("odd", [{}, {"template": 7}, {"template": {"spec": {"containers": [7]}}}, {"parallelism": []}])
def test_an_odd_spec_has_a_kind(odd: dict[str, Any]) -> None:
    assert PATTERN.fullmatch(kind_of("team", odd))
