"""Processes, nodes, agents, the operator and the bus die; training goes on, and nothing happens twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.install import SYSTEM_NAMESPACE
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.bus import bus_keys, etcd_pod, gateway_pods
from tests.e2e.jobs import Job, condition, layout_job, training_job, with_script

MANY = 100_000
SCRIPT = "train_gpt.py"


def _last_step(job: Job) -> int:
    return int(job.steps()[-1]["step"])


def _replaced(status: Json) -> bool:
    """Check whether the status, which is written after the run, shows that the job trains after a replacement."""
    return status["state"] == "Running" and status.get("counters", {}).get("replacements", 0) > 0


def _advances(job: Job, by: int = 5, timeout_seconds: float = 30) -> None:
    begun = _last_step(job)
    wait_for(
        f"{by} more steps",
        lambda: _last_step(job) >= begun + by,
        timeout_seconds=timeout_seconds,
        last_seen=lambda: f"from step {begun} to {_last_step(job)}; {job.status().get('summary')}",
    )


def test_a_killed_rank_is_restarted_in_its_pod(nodes: None, start: Callable[[Json], Job], checkpoints: str) -> None:
    job = start(training_job("killed", steps=MANY, checkpoints=checkpoints))
    job.wait_training()
    before = job.pod_uids()
    generation = job.generation()
    victim = job.member(1)
    killed_at = time.time()
    assert faults.send_signal(victim["node"], f"python3 /opt/examples/{SCRIPT}", signal.SIGKILL, victim["podUid"]) >= 1
    job.wait(
        "the next generation trains",
        lambda s: job.generation() > generation and s["state"] == "Running",
        60,
    )
    resumed_at = wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=30)
    print(f"a rank killed: the ranks train again after {resumed_at - killed_at:.1f} s")
    assert job.pod_uids() == before
    note = job.diagnoses()[0]
    assert (note["rank"], note["cause"], note["severity"]) == (1, "ProcessKilled", "SEV2")


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


@pytest.mark.long  # test_copies loses a node, too
def test_a_killed_node_is_replaced_by_the_spare(nodes: None, start: Callable[[Json], Job], checkpoints: str) -> None:
    job = start(training_job("lost", steps=MANY, checkpoints=checkpoints, spec={"warmPoolRef": {"name": "spares"}}))
    job.wait_training()
    victim = job.member(2)
    faults.kill(victim["node"])
    after = job.wait(
        "training goes on without the node",
        lambda s: _replaced(s) and victim["node"] not in job.nodes(),
        120,
    )
    _advances(job)
    assert job.diagnoses(after)[0]["cause"] == "NodeLost"
    assert after["counters"]["replacements"] == 1


def test_an_agent_that_dies_alone_is_reported_and_training_is_untouched(
    nodes: None, start: Callable[[Json], Job]
) -> None:
    job = start(training_job("agent", steps=MANY))
    job.wait_training()
    before = job.generation()
    member = job.member(1)
    # Stopped, not killed: the kubelet would restart it before anyone missed it.
    assert faults.send_signal(member["node"], "python3 -m falcon_agent", signal.SIGSTOP, member["podUid"]) == 1
    job.wait("AgentLost", lambda s: condition(s, "AgentLost").get("status") == "True", 30)
    _advances(job)
    faults.send_signal(member["node"], "python3 -m falcon_agent", signal.SIGCONT, member["podUid"])
    job.wait("the agent is back", lambda s: condition(s, "AgentLost").get("status") == "False", 30)
    assert faults.send_signal(member["node"], "python3 -m falcon_agent", signal.SIGKILL, member["podUid"]) == 1
    _advances(job, by=20)
    assert job.generation() == before
    assert job.diagnoses() == []


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


def test_etcd_restarted_and_then_emptied_is_never_noticed_by_training(
    nodes: None, start: Callable[[Json], Job], system: Kubectl
) -> None:
    job = start(training_job("bus", steps=MANY))
    job.wait_training()
    generation = job.generation()
    # The pod's volume goes with the pod: killing the process restarts etcd, deleting the pod loses its data.
    for lose_data in (False, True):
        if lose_data:
            system.run("delete", "pod", etcd_pod(system)["metadata"]["name"], "--grace-period=0", "--force")
        else:
            restart_etcd(system)
        _advances(job, by=10)
        resumed_after = job.status()["iterations"]["count"]
        job.wait("reporting resumes", lambda s, n=resumed_after: s["iterations"]["count"] > n + 5, 90)  # type: ignore[misc]
        assert job.generation() == generation
        assert job.diagnoses() == []


def restart_etcd(system: Kubectl) -> None:
    """Kill the etcd process of the pod; its container restarts over the same volume."""

    def restarts() -> int:
        statuses = etcd_pod(system)["status"].get("containerStatuses", [])
        return sum(int(status["restartCount"]) for status in statuses)

    before = restarts()
    node = etcd_pod(system)["spec"]["nodeName"]
    assert faults.send_signal(node, "etcd --name", signal.SIGKILL) == 1
    wait_for("etcd's container is restarted", lambda: restarts() > before, timeout_seconds=30)


def test_gateways_die_one_by_one_and_then_together_and_training_never_notices(
    nodes: None, start: Callable[[Json], Job], system: Kubectl
) -> None:
    job = start(training_job("door", steps=MANY))
    job.wait_training()
    generation, uids = job.generation(), job.pod_uids()
    wait_for("two gateways serve", lambda: len(gateway_pods(system)) == 2, timeout_seconds=90)
    first, second = gateway_pods(system)
    for lost in ([first], [second], None):
        names = [pod["metadata"]["name"] for pod in (gateway_pods(system) if lost is None else lost)]
        system.run("delete", "pod", *names, "--grace-period=0", "--force")
        _advances(job, by=10)
        resumed_after = job.status()["iterations"]["count"]
        job.wait("reporting resumes", lambda s, n=resumed_after: s["iterations"]["count"] > n + 5, 90)  # type: ignore[misc]
        wait_for("two gateways serve", lambda: len(gateway_pods(system)) == 2, timeout_seconds=90)
    assert (job.generation(), job.pod_uids()) == (generation, uids)
    assert job.diagnoses() == []


# What a job's pod may not do with its certificate: report for another job, or speak to etcd.
INTRUDER = """
import asyncio, socket, ssl, sys
from falcon_agent.settings import load_settings
from falcon_gateway import AgentClient, Pod, Refused, Tls

settings = load_settings()
folder = settings.gateway_tls_dir
files = {"ca": folder / "ca.crt", "cert": folder / "tls.crt", "key": folder / "tls.key"}

async def as_another_job():
    client = AgentClient(settings.gateways, Tls(**files), Pod("other", "job", settings.pod_uid), print)
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
