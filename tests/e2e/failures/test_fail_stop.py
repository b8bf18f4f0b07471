"""A program's own errors, an agent that dies with its rank, an operator killed while it replaces a slow node."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.install import SYSTEM_NAMESPACE
from dev.kubectl import Json, Kubectl
from tests.e2e.bus import bus_keys
from tests.e2e.jobs import Job, condition, layout_job, training_job, with_script

MANY = 100_000
SCRIPT = "train_gpt.py"


def _replaced(status: Json) -> bool:
    """Check whether the status, which is written after the run, shows that the job trains after a replacement."""
    return status["state"] == "Running" and status.get("counters", {}).get("replacements", 0) > 0


@pytest.mark.long  # test_output shows the words of a rank that raised
def test_an_exception_is_told_as_its_own_ranks(nodes: None, namespace: Kubectl, start: Callable[[Json], Job]) -> None:
    """The ranks of its tensor, pipeline and data groups end a moment later with broken connections."""
    job = start(layout_job(namespace, "raises", "--fail", "raise", "--rank", "5"))
    job.wait("all ranks were restarted", lambda s: s.get("counters", {}).get("restarts") == 1, 240)
    job.wait_training()
    (note,) = job.diagnoses()
    assert (note["cause"], note["rank"], note["severity"]) == ("ProcessFailed", 5, "SEV2")
    assert "ValueError: a batch of 64 features, expected 65 (layout.py:" in note["why"]


def test_an_error_of_the_program_fails_the_job_at_once_with_its_last_words(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    options = ("--import", "no_such_module")
    job = start(with_script(namespace, training_job("bug", steps=MANY, replicas=2), "failing.py", *options))
    status = job.wait("the job has failed", lambda s: s.get("state") == "Failed", 120)
    assert status["counters"]["restarts"] <= 1, "one more where the first look saw one node alone"
    message = condition(status, "Failed")["message"]
    assert "ModuleNotFoundError: No module named 'no_such_module' (failing.py:" in message
    assert "no restart mends that" in message


@pytest.mark.long  # unit operator/test_stories_stop tells them apart
def test_an_agent_that_dies_with_its_rank_is_no_lost_node(nodes: None, start: Callable[[Json], Job]) -> None:
    """The peers break off their collectives, and the agent is silent, as if the node were dead: its kubelet speaks."""
    job = start(training_job("both", steps=MANY, spec={"warmPoolRef": {"name": "spares"}}))
    job.wait_training()
    victim = job.member(1)
    for process in ("python3 -m falcon_agent", f"python3 /opt/examples/{SCRIPT}"):
        assert faults.send_signal(victim["node"], process, signal.SIGKILL, victim["podUid"]) >= 1
    job.wait("all ranks were restarted", lambda s: s.get("counters", {}).get("restarts", 0) >= 1, 60)
    job.wait_training()
    status = job.status()
    assert status["counters"] == {"restarts": 1, "replacements": 0}
    assert victim["node"] in job.nodes()
    assert job.diagnoses(status)[0]["cause"] != "NodeLost"


@pytest.mark.long  # two minutes; unit operator/test_crashes crashes after any call
def test_the_operator_killed_in_a_replacement_finishes_it_once(
    nodes: None, start: Callable[[Json], Job], system: Kubectl, checkpoints: str
) -> None:
    job = start(training_job("once", steps=MANY, checkpoints=checkpoints, spec={"warmPoolRef": {"name": "spares"}}))
    job.wait_settled()
    victim = job.member(0)
    faults.slow(victim["node"], 1 / 3)
    job.wait("the replacement has begun", lambda s: s.get("state") == "Recovering", 90)
    system.run("delete", "pod", "-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force")
    after = job.wait(
        "the replacement is finished",
        lambda s: _replaced(s) and victim["node"] not in job.nodes(),
        150,
    )
    assert after["counters"]["replacements"] == 1
    pods = [pod["metadata"]["name"] for pod in job.pods() if not pod["metadata"].get("deletionTimestamp")]
    assert sorted(pods) == sorted(member["podName"] for member in job.members())


# What a job's pod may not do with its certificate: report for another job, or speak to etcd.
INTRUDER = """
import asyncio, socket, ssl, sys
from pathlib import Path
from falcon_agent.settings import load_settings
from falcon_gateway import AgentClient, Pod, Refused, Tls

settings = load_settings()
folder = Path(settings.config.gateway_tls_dir)
files = {"ca": folder / "ca.crt", "cert": folder / "tls.crt", "key": folder / "tls.key"}

async def as_another_job():
    client = AgentClient(settings.config.gateways, Tls(**files), Pod("other", "job", settings.pod_uid), print)
    client.report(b"x")
    try:
        await asyncio.wait_for(client.run(), 30)
    except Refused as error:
        print("refused by the gateway:", error)

def to_etcd(host):
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["cert"], files["key"])
    with socket.create_connection((host, 2379), timeout=10) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host) as secured:
                secured.sendall(b"GET /version HTTP/1.0\\r\\n\\r\\n")
                if not secured.recv(1):
                    print("refused by etcd")
        except (ssl.SSLError, ConnectionError):
            print("refused by etcd")

asyncio.run(as_another_job())
to_etcd(sys.argv[1])
"""


def test_a_jobs_certificate_opens_neither_another_job_nor_etcd(
    nodes: None, start: Callable[[Json], Job], system: Kubectl
) -> None:
    ours = start(training_job("ours", steps=MANY, replicas=1))
    ours.wait("it trains", lambda s: s.get("state") == "Running", 90)
    etcd = f"falcon-etcd.{SYSTEM_NAMESPACE}.svc"
    agent = (ours.member(0)["podName"], "-c", "falcon-agent", "--", "python3", "-c", INTRUDER, etcd)
    said = ours.kubectl.run("exec", *agent).splitlines()
    assert said[0].startswith("refused by the gateway: ")
    assert said[-1] == "refused by etcd"
    assert bus_keys(system, "/falcon/v1/other/") == []
    assert not [key for key in bus_keys(system, "/falcon/reports/v1/") if "/other/" in key]
