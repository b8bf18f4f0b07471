"""A node whose link was slow before the job's first iteration: the other group of its kind shows it, then a pause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job
from tests.e2e.pipelines import MANY, stages

RATE = "40mbit"  # 3 MB of gradients take 0.6 s
NODE = "node-b"


@pytest.mark.long  # two minutes; tests/integration/agent shows it without a cluster
def test_a_link_that_was_slow_before_the_first_iteration_is_named(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    faults.link(NODE, RATE)
    manifest = stages(namespace, "unwell", MANY)
    manifest["spec"] |= {"preflight": {"mode": "Off"}, "detection": {"pauseBudget": "20%"}}
    job = start(manifest)
    named = job.wait("the link is named", lambda s: job.diagnoses(s), 240)
    (note,) = job.diagnoses(named)
    text = job.kubectl.run("describe", "trainingjob", job.name)
    print(text[text.index("Diagnoses") :] if "Diagnoses" in text else text)
    assert note["cause"] == "SlowLink"
    assert note["node"] == NODE
    assert note["why"].endswith("takes longer than in the other group of its kind")
    assert "from the first iteration of generation 1" in note["since"]
    assert "x the healthy time from the start: the link of node-b is slow" in named["summary"]
    paused = job.wait("training goes on", lambda s: s.get("pauses"), 60)
    assert paused["pauses"]["count"] == 1
    assert paused["counters"] == {"restarts": 0, "replacements": 0}
