"""Events: about the right object, in the right namespace, recorded once."""

from __future__ import annotations

import pytest

from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.api.warmpool import WarmPool, WarmPoolSpec
from falcon_operator.cluster.recorder import build_event

JOB = TrainingJob(metadata=ObjectMeta(name="j", namespace="ns", uid="u"), spec=TrainingJobSpec(replicas=1, template={}))
POOL = WarmPool(metadata=ObjectMeta(name="spares", uid="p"), spec=WarmPoolSpec(node_selector={"a": "b"}))


def event(regarding: TrainingJob | WarmPool, note: str = "n", now: float = 1795176000.5) -> dict[str, object]:
    return build_event(regarding, "Warning", "Slow", note, instance="op-a", now=now)


def test_an_event_recorded_twice_is_one_event_and_another_note_is_another_event() -> None:
    assert event(JOB)["metadata"] == event(JOB, now=1795177000.0)["metadata"]
    assert event(JOB)["metadata"] != event(JOB, note="other")["metadata"]


@pytest.mark.parametrize(
    ("regarding", "kind", "namespace"), [(JOB, "TrainingJob", "ns"), (POOL, "WarmPool", "default")]
)
def test_an_event_stands_beside_its_object(regarding: TrainingJob | WarmPool, kind: str, namespace: str) -> None:
    built = build_event(regarding, "Normal", "R", "n", instance="op-a", now=1795176000.5)
    assert built["metadata"]["namespace"] == namespace
    assert built["involvedObject"]["kind"] == kind
    assert built["involvedObject"]["namespace"] == regarding.metadata.namespace
    assert built["lastTimestamp"] == "2026-11-20T12:00:00Z"


def test_a_long_note_is_cut_within_the_limit_and_between_characters() -> None:
    message = event(JOB, note="ü" * 1000)["message"]
    assert isinstance(message, str)
    assert len(message.encode()) <= 1024
    assert message.endswith("…")
    assert event(JOB, note="ü" * 512)["message"] == "ü" * 512
