"""What Falcon's containers ask for: by themselves, by the chart's figures and by the job's."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api.common import Resources
from falcon_operator.manifests.injected import AGENT, INSTALL, resources
from falcon_operator.manifests.qos import is_guaranteed
from falcon_operator.manifests.validation import problems
from tests.unit.operator.manifests.test_validation import job

WHOLE = {"cpu": "4", "memory": "8Gi"}
NOTHING = Resources()
Figures = tuple[dict[str, Any], dict[str, Any]]  # requests, limits


def pod(**trainer: Any) -> dict[str, Any]:
    return {"containers": [{"name": "t", "resources": trainer}]}


def agent(spec: dict[str, Any], platform: Resources = NOTHING, own: Resources = NOTHING, store: int = 0) -> Figures:
    found = resources(spec, AGENT, platform, own, store)
    return found.get("requests", {}), found.get("limits", {})


def test_by_themselves_they_have_no_limit_on_cpu() -> None:
    assert agent(pod()) == ({"cpu": "20m", "memory": "96Mi"}, {"memory": "384Mi"})
    assert resources(pod(), INSTALL, NOTHING, NOTHING) == {
        "requests": {"cpu": "10m", "memory": "16Mi"},
        "limits": {"memory": "64Mi"},
    }


def test_a_job_s_figure_comes_before_the_platform_s_and_memory_for_checkpoints_is_added() -> None:
    platform = Resources(requests={"cpu": "50m"}, limits={"memory": "512Mi", "cpu": 1})
    own = Resources(limits={"memory": "1Gi"})
    assert agent(pod(), platform) == ({"cpu": "50m", "memory": "96Mi"}, {"memory": "512Mi", "cpu": "1000m"})
    assert agent(pod(), platform, own, 64 << 20) == (
        {"cpu": "50m", "memory": "160Mi"},
        {"memory": "1088Mi", "cpu": "1000m"},
    )


@pytest.mark.parametrize(
    ("platform", "own", "memory"),
    [
        (NOTHING, Resources(requests={"memory": "1Gi"}), ("1024Mi", "1024Mi")),
        (NOTHING, Resources(limits={"memory": "80Mi"}), ("80Mi", "80Mi")),
        (Resources(requests={"memory": "1Gi"}), Resources(limits={"memory": "512Mi"}), ("512Mi", "512Mi")),
        (Resources(limits={"memory": "512Mi"}), Resources(requests={"memory": "1Gi"}), ("1024Mi", "1024Mi")),
        (Resources(limits={"memory": "512Mi"}, requests={"memory": "1Gi"}), NOTHING, ("512Mi", "512Mi")),
    ],
)
def test_a_figure_of_lower_rank_gives_way(platform: Resources, own: Resources, memory: tuple[str, str]) -> None:
    """A request above its limit would be refused."""
    requests, limits = agent(pod(), platform, own)
    assert (requests["memory"], limits["memory"]) == memory


@pytest.mark.parametrize(
    ("platform", "own", "cpu"),
    [
        (NOTHING, NOTHING, "250m"),
        (Resources(requests={"cpu": "20m"}), NOTHING, "250m"),
        (Resources(limits={"cpu": "300m"}), NOTHING, "300m"),
        (NOTHING, Resources(requests={"cpu": "400m"}), "400m"),
    ],
)
def test_a_guaranteed_pod_stays_guaranteed_whoever_sets_a_figure(platform: Resources, own: Resources, cpu: str) -> None:
    spec = pod(limits=WHOLE)
    found = resources(spec, AGENT, platform, own, 1 << 30)
    assert found["requests"] == found["limits"] == {"cpu": cpu, "memory": "1408Mi"}
    assert is_guaranteed({**spec, "initContainers": [{"name": "a", "resources": found}]})


def test_a_pod_whose_files_are_limited_gets_room_for_falcon_s() -> None:
    """The kubelet compares all that a pod writes with the sum of its containers' limits."""
    assert agent(pod(limits={"ephemeral-storage": "10Gi"}))[1]["ephemeral-storage"] == "256Mi"
    assert "ephemeral-storage" not in agent(pod(requests={"ephemeral-storage": "10Gi"}))[1]


def test_where_the_pod_as_a_whole_has_resources_only_the_job_s_figures_count() -> None:
    spec = {**pod(), "resources": {"limits": WHOLE}}
    assert agent(spec, Resources(limits={"cpu": 1})) == ({}, {})
    assert agent(spec, NOTHING, Resources(limits={"memory": "1Gi"})) == ({}, {"memory": "1Gi"})


def injected(requests: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    return {"injected": {"agent": {"resources": {"requests": requests, "limits": limits}}}}


@pytest.mark.parametrize(
    ("requests", "limits", "field", "remedy"),
    [
        ({"cpu": "2"}, {"cpu": "1"}, "requests.cpu", "lower it, or raise the limit"),
        ({}, {"memory": "8Mi"}, "limits.memory", "set it to 96Mi or more, or remove it"),
        ({}, {"cpu": "1m"}, "limits.cpu", "set it to 50m or more, or remove it"),
        ({"cpu": "100m"}, {"cpu": "200m"}, "requests.cpu", "set it to 200m, or remove it"),
    ],
)
def test_figures_with_which_no_job_runs_well_are_named(
    requests: dict[str, Any], limits: dict[str, Any], field: str, remedy: str
) -> None:
    guaranteed = {"resources": {"limits": WHOLE}}
    (found,) = problems(job(trainer=guaranteed, **injected(requests, limits)))
    assert (found.field, found.remedy) == (f"spec.injected.agent.resources.{field}", remedy)


def test_figures_that_fit_raise_no_problem() -> None:
    assert problems(job(**injected({"cpu": "100m"}, {"cpu": "200m", "memory": "96Mi"}))) == []
    guaranteed = {"resources": {"limits": WHOLE}}
    assert problems(job(trainer=guaranteed, **injected({"cpu": "0.2"}, {"cpu": "200m"}))) == []
