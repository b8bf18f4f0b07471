"""Keys of the bus split into what they were made from."""

from __future__ import annotations

import pytest

from falcon_core.wire.keys import GATEWAYS, LEADER_KEY, REPORTS, ROOT, JobKey, gateway_of, job_of

JOB = JobKey("ns", "job", "uid")


@pytest.mark.parametrize(
    "key", [JOB.announce, JOB.plan, JOB.detail, f"{JOB.reports('g')}hot", f"{JOB.reports('g')}s0001"]
)
def test_a_jobs_key_names_its_job(key: str) -> None:
    assert job_of(key) == JOB


@pytest.mark.parametrize("key", [f"{JOB.reports('g')}hot", f"{GATEWAYS}g"])
def test_a_gateways_key_names_the_gateway(key: str) -> None:
    assert gateway_of(key) == "g"


@pytest.mark.parametrize("key", [LEADER_KEY, f"{GATEWAYS}g", f"{ROOT}ns/job", f"{REPORTS}g/ns/job", "/falcon/else", ""])
def test_other_keys_name_no_job(key: str) -> None:
    assert job_of(key) is None


@pytest.mark.parametrize("key", [LEADER_KEY, JOB.announce, "/falcon/else", ""])
def test_other_keys_name_no_gateway(key: str) -> None:
    assert gateway_of(key) == ""
