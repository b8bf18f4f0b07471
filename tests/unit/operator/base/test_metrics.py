"""Metrics: read off the last known status, without labels that outlive their job."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest

from falcon_operator.base.metrics import Metrics, Readings, job_figures
from falcon_operator.base.ports import BusState, Database


def body(uid: str = "u", **status: Any) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": status}


def samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


DEGRADED = body(
    state="Degraded",
    counters={"restarts": 2, "replacements": 1},
    diagnoses=[{"id": "j-1", "what": "fail-slow, computation", "cause": "CpuThrottled"}],
)


def test_a_jobs_figures() -> None:
    metrics = Metrics()
    metrics.job(("ns", "gpt2"), job_figures(DEGRADED))
    metrics.job(("ns", "other"), job_figures(body(uid="v")))
    metrics.iterations(("ns", "gpt2"), 0.612, 0.231)
    found = samples(metrics)
    assert found['falcon_jobs{state="Degraded"}'] == 1.0
    assert found['falcon_jobs{state="Pending"}'] == 1.0
    assert found['falcon_job_iteration_seconds{job="gpt2",namespace="ns"}'] == 0.612
    assert found['falcon_job_healthy_iteration_seconds{job="gpt2",namespace="ns"}'] == 0.231
    assert found['falcon_job_restarts_total{job="gpt2",namespace="ns"}'] == 2.0
    assert found['falcon_job_replacements_total{job="gpt2",namespace="ns"}'] == 1.0
    assert found['falcon_incidents_total{cause="CpuThrottled",class="",kind="fail-slow"}'] == 1.0


def test_the_newest_checkpoint_is_told_with_its_age_and_its_cost() -> None:
    metrics = Metrics()
    metrics.checkpoint(("ns", "gpt2"), (40, 1_700_000_000.5, 0.054))
    metrics.checkpoint(("ns", "old"), (7, 1_700_000_000.0, 0.0))
    metrics.restored(0.3)
    found = samples(metrics)
    assert found['falcon_job_checkpoint_step{job="gpt2",namespace="ns"}'] == 40.0
    assert found['falcon_job_checkpoint_saved_timestamp_seconds{job="gpt2",namespace="ns"}'] == 1_700_000_000.5
    assert found['falcon_job_checkpoint_save_seconds{job="gpt2",namespace="ns"}'] == 0.054
    assert 'falcon_job_checkpoint_save_seconds{job="old",namespace="ns"}' not in found, "its client says nothing"
    assert found["falcon_restore_seconds_count"] == 1.0
    metrics.checkpoint(("ns", "gpt2"), None)
    assert not [name for name in samples(metrics) if "gpt2" in name]


def test_a_diagnosis_is_counted_once_however_often_it_is_seen() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.job(("ns", "gpt2"), job_figures(DEGRADED))
    assert samples(metrics)['falcon_incidents_total{cause="CpuThrottled",class="",kind="fail-slow"}'] == 1.0


def test_a_job_that_is_gone_leaves_no_label_but_its_incidents_were() -> None:
    metrics = Metrics()
    metrics.job(("ns", "gpt2"), job_figures(DEGRADED))
    metrics.iterations(("ns", "gpt2"), 0.612, None)
    metrics.checkpoint(("ns", "gpt2"), (40, 1.0, 0.0))
    metrics.job(("ns", "gpt2"), None)
    found = samples(metrics)
    assert not [name for name in found if "gpt2" in name]
    assert found['falcon_incidents_total{cause="CpuThrottled",class="",kind="fail-slow"}'] == 1.0


def test_a_status_of_another_version_is_no_obstacle() -> None:
    odd = body(state=None, counters={"restarts": "two"}, diagnoses=[None, {"id": 1}])
    figures = job_figures(odd)
    assert (figures.state, figures.restarts) == ("Pending", 0)
    assert figures.diagnoses == (("1", "", "Unknown", ""),)


def test_pools_reconciles_and_the_leaders_readings() -> None:
    metrics = Metrics()
    metrics.pool("spares", 1, 2)
    metrics.reconciled("TrainingJob", 0.02, True)
    metrics.reconciled("TrainingJob", 0.02, False)
    metrics.event("Replacing")
    metrics.watch_interrupted("pods", "expired")
    metrics.reports_used([0.3, 2.0])
    metrics.leading = True
    bus = BusState(
        databases=(Database(endpoint="a:1", size_bytes=7, in_use_bytes=8, quota_bytes=9, revision=1),),
        full=True,
        healed=10,
        written_bytes=11,
    )
    metrics.readings = lambda: Readings(
        etcd_healthy=True,
        bus_healthy=False,
        gateways=2,
        gateways_known=3,
        gateway_streams=1,
        agents=3,
        refused_reports={("ml", "gpt2", "Malformed"): 4},
        queue_depth=5,
        fenced_nodes=6,
        bus=bus,
        certificates={"falcon-etcd-ca": 2e9},
    )
    found = samples(metrics)
    assert found['falcon_certificate_expires_timestamp_seconds{secret="falcon-etcd-ca"}'] == 2e9
    assert found['falcon_pool_ready_spares{pool="spares"}'] == 1.0
    assert found['falcon_pool_size{pool="spares"}'] == 2.0
    assert found['falcon_reconcile_seconds_count{kind="TrainingJob"}'] == 2.0
    assert found['falcon_reconcile_errors_total{kind="TrainingJob"}'] == 1.0
    assert found['falcon_events_total{reason="Replacing"}'] == 1.0
    assert found['falcon_watch_interruptions_total{reason="expired",resource="pods"}'] == 1.0
    assert found['falcon_report_age_seconds_bucket{le="1.0"}'] == 1.0
    assert found["falcon_report_age_seconds_count"] == 2.0
    assert found["falcon_leading"] == 1.0
    assert found["falcon_etcd_session_healthy"] == 1.0
    assert found["falcon_bus_healthy"] == 0.0
    assert found["falcon_gateways"] == 2.0
    assert found["falcon_gateways_known"] == 3.0
    assert found["falcon_gateways_streaming"] == 1.0
    assert found["falcon_agents"] == 3.0
    assert found['falcon_reports_refused_total{job="gpt2",namespace="ml",reason="Malformed"}'] == 4.0
    assert found["falcon_queue_depth"] == 5.0
    assert found["falcon_fenced_nodes"] == 6.0
    assert (found["falcon_bus_full"], found["falcon_bus_corrupt"]) == (1.0, 0.0)
    assert found['falcon_bus_database_bytes{endpoint="a:1"}'] == 7.0
    assert found['falcon_bus_database_used_bytes{endpoint="a:1"}'] == 8.0
    assert found['falcon_bus_quota_bytes{endpoint="a:1"}'] == 9.0
    assert (found["falcon_bus_healed_total"], found["falcon_bus_written_bytes_total"]) == (10.0, 11.0)
    metrics.pool("spares", None)
    assert 'falcon_pool_size{pool="spares"}' not in samples(metrics)
