"""Check the layouts of a stored run: each older one is upgraded step by step, and a newer one is read or refused."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.api.trainingrun import TrainingRunSpec
from falcon_operator.intent.model import layout
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.layout import LAYOUTS, Layout, refusal, stamp, upgraded
from falcon_operator.intent.model.run import encode, read_run

OWN = LAYOUTS[-1].version


def rename(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "life"} | {"generation": spec.get("life", 0)}


def shift(spec: dict[str, Any]) -> dict[str, Any]:
    return spec | {"generation": spec.get("generation", 0) + 100}


THREE = (
    Layout(version=1, readable_from=1, release=""),
    Layout(version=2, readable_from=2, release="1.0.0", upgrade=rename),
    Layout(version=3, readable_from=2, release="1.0.0", upgrade=shift),
)


def test_each_layout_follows_the_one_before_and_has_an_upgrade_from_it() -> None:
    assert [each.version for each in LAYOUTS] == list(range(1, OWN + 1))
    assert all(each.upgrade is not None for each in LAYOUTS[1:])
    assert all(1 <= each.readable_from <= each.version for each in LAYOUTS)
    assert all(each.release for each in LAYOUTS if each.readable_from > 1), "a refusal names the release to run"
    oldest = [each.readable_from for each in LAYOUTS]
    assert oldest == sorted(oldest), "what cannot be read back is not readable again in the next layout"


@pytest.mark.parametrize(
    ("stored", "generation"),
    [
        ({"life": 4}, 104),
        ({"version": 1, "life": 4}, 104),
        ({"version": 2, "generation": 4}, 104),
        ({"version": 3, "generation": 4}, 4),
        ({"version": 4, "readableFrom": 2, "generation": 4, "added": True}, 4),
    ],
)
def test_a_run_of_each_version_is_read(
    stored: dict[str, Any], generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LAYOUTS", THREE)
    read = read_run({"metadata": {"name": "gpt2", "namespace": "ml"}, "spec": stored})
    assert (read.spec.generation, read.problems, read.refusal) == (generation, (), "")


def test_what_is_stored_names_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LAYOUTS", THREE)
    spec = TrainingJobSpec(replicas=1, template={"spec": {}})
    stored = encode(TrainingJob(metadata=ObjectMeta(name="gpt2", namespace="ml"), spec=spec), Intent())
    assert (stored.version, stored.readable_from, stored.readable_from_release) == (3, 2, "1.0.0")


def test_an_upgrade_alone_is_no_reason_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    job = TrainingJob(
        metadata=ObjectMeta(name="gpt2", namespace="ml"), spec=TrainingJobSpec(replicas=1, template={"spec": {}})
    )
    monkeypatch.setattr(layout, "LAYOUTS", THREE[:2])
    for stored in ({}, {"version": 2, "readableFrom": 2}, {"version": 3, "readableFrom": 2}):
        body = {"metadata": {"name": "gpt2", "namespace": "ml"}, "spec": {**stored, "phase": "Stop", "nodes": 0}}
        assert read_run(body).spec == encode(job, Intent())


def test_a_layout_without_a_way_back_is_refused_with_versions_and_remedy() -> None:
    newer = {"version": OWN + 3, "readableFrom": OWN + 1, "readableFromRelease": "7.1.0", "generation": 3}
    read = read_run({"metadata": {"name": "gpt2", "namespace": "ml"}, "spec": newer})
    assert read.spec == TrainingRunSpec(), "half of it would be worse than nothing"
    for words in (
        "TrainingRun ml/gpt2 ",
        f"spec.version is {OWN + 3}",
        f"operators of version {OWN + 1} or newer",
        f"has version {OWN}.",
        "Run operator release 7.1.0 or newer.",
        "kubectl delete trainingrun gpt2 -n ml",
    ):
        assert words in read.refusal


def test_a_layout_with_a_way_back_is_not_refused() -> None:
    assert refusal({"version": OWN + 3, "readableFrom": OWN}, "ml", "gpt2") == ""
    assert upgraded({"version": OWN + 3, "readableFrom": OWN, "added": 1}) == {"added": 1} | stamp()
