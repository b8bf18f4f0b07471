"""The judgement about evictions: what it reads, how long it refuses what nobody has noted, and what it cannot read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from falcon_core.errors.judge import platform_judge
from falcon_operator.base.ports import NotFound, Rejected, Unavailable
from falcon_operator.runtime import evictions
from falcon_operator.runtime.evictions import NOTED_SECONDS, SAME_DRAIN_SECONDS, Evictions
from falcon_operator.runtime.webhook import _review, answer
from tests.unit.operator.fake_clock import FakeClock

TEMPLATE = {"spec": {"containers": [{"name": "t", "image": "x", "command": ["t"]}]}}


def a_pod(**status: Any) -> dict[str, Any]:
    owner = {"apiVersion": "falcon.dev/v1alpha1", "kind": "TrainingJob", "name": "gpt2", "uid": "u", "controller": True}
    labels = {"falcon.dev/job": "gpt2", "falcon.dev/job-uid": "u", "falcon.dev/role": "trainer"}
    running = {"name": "t", "ready": True, "state": {"running": {}}}
    return {
        "metadata": {"name": "p", "namespace": "ml", "uid": "pod-uid", "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": "w1"},
        "status": {"phase": "Running", "containerStatuses": [running], **status},
    }


class Stored:
    """The API server's contents, by path."""

    def __init__(self) -> None:
        job = {
            "metadata": {"name": "gpt2", "namespace": "ml", "uid": "u"},
            "spec": {"replicas": 1, "template": TEMPLATE},
        }
        ready = [{"type": "Ready", "status": "True"}]
        api = "/apis/falcon.dev/v1alpha1/namespaces/ml"
        self.objects: dict[str, Any] = {
            "/api/v1/namespaces/ml/pods/p": a_pod(),
            "/api/v1/nodes/w1": {
                "metadata": {"name": "w1"}, "spec": {"unschedulable": True}, "status": {"conditions": ready},
            },
            f"{api}/trainingjobs/gpt2": job,
        }  # fmt: skip
        self.error: Exception | None = None
        self.stalls = False

    async def call(self, method: str, path: str) -> bytes:
        assert method == "GET"
        if self.error is not None:
            raise self.error
        if self.stalls:
            await asyncio.sleep(60)
        if path not in self.objects:
            raise NotFound(path)
        return json.dumps(self.objects[path]).encode()


class Bench:
    def __init__(self) -> None:
        self.stored, self.clock = Stored(), FakeClock()
        self.lives = True
        self.counted: list[str] = []
        judge = platform_judge("")
        http: Any = self.stored
        self.judged = Evictions(http, lambda: self.lives, ("spot",), judge, self.clock, self.counted.append)

    async def refusal(self) -> str:
        return await self.judged.refusal("ml", "p")


async def test_a_move_that_no_operator_has_noted_in_time_holds_up_nothing() -> None:
    bench = Bench()
    assert "is about to leave node w1" in await bench.refusal()
    bench.clock.advance(NOTED_SECONDS - 1)
    assert await bench.refusal()
    bench.clock.advance(2)
    assert await bench.refusal() == ""
    assert bench.counted == ["Refused", "Refused", "Admitted"]


async def test_a_drain_that_was_given_up_leaves_the_next_one_its_time() -> None:
    bench = Bench()
    assert await bench.refusal()
    bench.clock.advance(SAME_DRAIN_SECONDS + 1)
    assert await bench.refusal(), "hours later, another drain"
    bench.clock.advance(NOTED_SECONDS + 1)
    assert await bench.refusal() == ""


async def test_a_dry_run_starts_no_clock() -> None:
    bench = Bench()
    assert await bench.judged.refusal("ml", "p", dry_run=True)
    bench.clock.advance(NOTED_SECONDS + 1)
    assert await bench.refusal()


async def test_without_an_operator_nothing_is_read() -> None:
    bench = Bench()
    bench.lives, bench.stored.error = False, Unavailable("no API server")
    assert await bench.refusal() == ""
    assert bench.counted == ["Admitted"]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/api/v1/nodes/w1", {"spec": {}}),
        ("/api/v1/namespaces/ml/pods/p", a_pod(phase="Pending")),
        ("/api/v1/namespaces/ml/pods/p", a_pod(containerStatuses=[{"name": "t", "ready": False}])),
        ("/api/v1/namespaces/ml/pods/p", {**a_pod(), "metadata": {"name": "p", "namespace": "ml", "uid": "x"}}),
    ],
    ids=["in use", "pending", "not ready", "another workload's"],
)
async def test_what_moves_nobody_is_admitted(path: str, change: dict[str, Any]) -> None:
    bench = Bench()
    bench.stored.objects[path] = {**bench.stored.objects[path], **change}
    assert await bench.refusal() == ""


@pytest.mark.parametrize("error", [None, Unavailable("no API server"), Rejected("no right"), ValueError("?")])
async def test_what_cannot_be_read_is_admitted_in_time(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    bench = Bench()
    monkeypatch.setattr(evictions, "ANSWER_SECONDS", 0.05)
    bench.stored.stalls = error is None
    bench.stored.error = error
    assert await bench.refusal() == ""
    assert bench.counted == ["Unknown"]


def test_a_refusal_reads_as_that_of_a_budget() -> None:
    request = {"uid": "7", "namespace": "ml", "name": "p", "operation": "CREATE"}
    asked = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    review = _review.decode(json.dumps(asked))
    refused = answer(review, "wait")["response"]
    assert (refused["uid"], refused["allowed"], refused["status"]["code"]) == ("7", False, 429)
    assert answer(review, "")["response"] == {"uid": "7", "allowed": True}
