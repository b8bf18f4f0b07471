"""Jobs in a stand-in for a service mesh: a proxy in each pod, through which the kernel redirects all of its TCP.

Rules as Istio's own, set by an init container with NET_ADMIN. Three ways in which a mesh comes into a pod: an admission
policy puts a native sidecar before Falcon's agent, the template has one after it, or a container that never ends.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import pytest

from dev.cluster.layout import POD_SUBNET
from dev.kubectl import Json, Kubectl, KubectlError, wait_for
from tests.e2e.jobs import RESTRICTED, SCRIPTS, SCRIPTS_DIR, TRAINER_IMAGE, Job, condition, training_job, with_script

Way = Literal["before the agent", "after the agent", "a container that never ends"]
PROXY, RULES = "mesh-proxy", "mesh-rules"
PROXY_USER = 1337
GATEWAY_PORT = 7443
STEPS, RANKS = 1000, 2
SPEC = {"checkpoint": {"memory": "64Mi", "copies": 1}}
MODEL = "remembering.py"
SCRIPT = "mesh_proxy.py"
POLICY = "mesh.example.com"
# Debian's iptables of this machine, in the pods' image of the same Debian.
HOST = "/host"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
EXCEPTIONS = f"""
set -e
nat() {{ {HOST}/sbin/xtables-nft-multi iptables -w -t nat "$@"; }}
nat -A OUTPUT -o lo -s 127.0.0.6/32 -j RETURN
nat -A OUTPUT -o lo -p tcp -m owner ! --uid-owner {PROXY_USER} -j RETURN
nat -A OUTPUT -p tcp -m owner --uid-owner {PROXY_USER} -j RETURN
nat -A OUTPUT -d 127.0.0.1/32 -j RETURN
"""
INBOUND = "nat -A PREROUTING -p tcp -j REDIRECT --to-ports 15006\n"
OUTBOUND = "nat -A OUTPUT -p tcp -j REDIRECT --to-ports 15001\n"
BETWEEN_PODS = f"nat -A OUTPUT -d {POD_SUBNET} -j RETURN\n"  # left out, as by excludeOutboundIPRanges


def _rules(*, between_pods: bool = True) -> Json:
    redirections = INBOUND + OUTBOUND if between_pods else BETWEEN_PODS + OUTBOUND
    return {
        "name": RULES,
        "image": TRAINER_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", EXCEPTIONS + redirections],
        "env": [
            {"name": "LD_LIBRARY_PATH", "value": f"{HOST}/lib"},
            {"name": "XTABLES_LIBDIR", "value": f"{HOST}/lib/xtables"},
        ],
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "volumeMounts": [
            {"name": "host-sbin", "mountPath": f"{HOST}/sbin", "readOnly": True},
            {"name": "host-lib", "mountPath": f"{HOST}/lib", "readOnly": True},
        ],
    }


def _proxy(*, native: bool) -> Json:
    ready = {"exec": {"command": ["sh", "-c", "grep -q ':3A99 ' /proc/net/tcp"]}, "periodSeconds": 1}  # 15001 is open
    return {
        "name": PROXY,
        "image": TRAINER_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", f"{SCRIPTS_DIR}/{SCRIPT}"],
        "securityContext": {**RESTRICTED, "runAsUser": PROXY_USER},
        "volumeMounts": [{"name": "mesh", "mountPath": SCRIPTS_DIR, "readOnly": True}],
        **({"restartPolicy": "Always", "startupProbe": {**ready, "failureThreshold": 60}} if native else {}),
    }


def _volumes() -> list[Json]:
    return [
        {"name": "mesh", "configMap": {"name": "mesh"}},
        {"name": "host-sbin", "hostPath": {"path": "/usr/sbin", "type": "Directory"}},
        {"name": "host-lib", "hostPath": {"path": LIBRARIES, "type": "Directory"}},
    ]


def _in_mesh(kubectl: Kubectl, manifest: Json, way: Way, *, between_pods: bool = True) -> Json:
    """Put a job into the mesh; where an admission policy brings the containers, the template has the volumes alone.

    ``between_pods``: what pods send each other goes through their proxies as well.
    """
    script = {"mesh_proxy.py": (SCRIPTS / SCRIPT).read_text()}
    kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mesh"}, "data": script})
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"] += _volumes()
    if way == "after the agent":
        pod["initContainers"] = [_rules(between_pods=between_pods), _proxy(native=True)]
    elif way == "a container that never ends":
        pod["initContainers"] = [_rules()]
        pod["containers"].append(_proxy(native=False))
        manifest["spec"]["container"] = "trainer"
    return manifest


def _injector(namespace: str) -> list[Json]:
    """Return an admission policy that puts the mesh's containers before all others, as an injecting webhook does."""
    patches = [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": _addition(container)}}
        for container in (_proxy(native=True), _rules())  # each before the one that was added last
    ]
    common = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": POLICY}}
    only = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    spec = {
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": only},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": patches,
    }
    return [
        {**common, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**common, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": POLICY}},
    ]


def _addition(container: Json) -> str:
    return f'[JSONPatch{{op: "add", path: "/spec/initContainers/0", value: {_cel(container)}}}]'


def _cel(value: Any) -> str:
    """Write JSON as an expression of CEL, whose maps and lists hold values of one type unless each is ``dyn``."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: dyn({_cel(each)})" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(f"dyn({_cel(each)})" for each in value) + "]"
    return json.dumps(value)


@contextlib.contextmanager
def _injecting(cluster: Kubectl, namespace: Kubectl) -> Iterator[None]:
    """Let each new pod of a namespace get the proxy as its first containers."""
    namespace.apply(*_injector(namespace.namespace))
    try:
        yield
    finally:
        for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
            cluster.run("delete", kind, POLICY)


def _carried(job: Job, pod: Json) -> set[tuple[str, int]]:
    """Return direction and port of each connection that a pod's proxy has passed on."""
    text = job.kubectl.run("logs", pod["metadata"]["name"], "-c", PROXY)
    lines = [json.loads(line) for line in text.splitlines()]
    return {(line["direction"], line["port"]) for line in lines if "port" in line and "error" not in line}


@pytest.mark.long  # a minute and more each
@pytest.mark.parametrize("way", get_args(Way))
def test_a_job_trains_recovers_and_ends_in_a_mesh(
    nodes: None,
    cluster: Kubectl,
    namespace: Kubectl,
    start: Callable[[Json], Job],
    torch_site_packages: str,
    way: Way,
) -> None:
    options = ("--steps", str(STEPS), "--every", "20")
    manifest = training_job("meshed", steps=STEPS, replicas=RANKS, python_path=torch_site_packages, spec=SPEC)
    manifest = with_script(namespace, manifest, MODEL, *options)
    with contextlib.ExitStack() as stack:
        if way == "before the agent":
            stack.enter_context(_injecting(cluster, namespace))
        job = start(_in_mesh(namespace, manifest, way))
        status = job.wait_training()
        assert status["summary"] == "all ranks train"
        assert condition(status, "Ready")["status"] == "True"
        pods = job.pod_uids()
        for pod in job.pods():
            assert ("outbound", GATEWAY_PORT) in _carried(job, pod), "the agent reports through the proxy"
        meeting = job.run()["masterPort"]
        first, second = sorted(job.pods(), key=lambda pod: pod["metadata"]["labels"]["falcon.dev/replica"])
        assert ("inbound", meeting) in _carried(job, first)
        assert ("outbound", meeting) in _carried(job, second)
        if way == "after the agent":
            with contextlib.suppress(KubectlError):  # the command ends with its container
                job.kubectl.run("exec", job.member(1)["podName"], "-c", PROXY, "--", "sh", "-c", "kill -INT 1")
            _wait_restarted(job, 1)
            assert job.pod_uids() == pods, "no node is blamed for a proxy that is started again"
        _check_recovery_and_end(job)


@pytest.mark.long
def test_an_older_pytorch_meets_at_once_where_the_mesh_leaves_out_what_pods_send_each_other(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    """PyTorch before 2.5 gives up where a proxy accepts a connection to rank 0 before rank 0 listens."""
    options = ("--steps", str(STEPS), "--every", "20")
    manifest = with_script(namespace, training_job("older", steps=STEPS, replicas=RANKS, spec=SPEC), MODEL, *options)
    job = start(_in_mesh(namespace, manifest, "after the agent", between_pods=False))
    status = job.wait_training()
    assert status["counters"]["restarts"] == 0, "the ranks met at their first try"
    for pod in job.pods():
        assert _carried(job, pod) == {("outbound", GATEWAY_PORT)}
    _check_recovery_and_end(job)


def _check_recovery_and_end(job: Job) -> None:
    """Kill a rank: the job restarts once for it. Then it ends, and its pods with it."""
    before = job.status()["counters"]["restarts"]
    job.wait("checkpoints have copies", lambda s: condition(s, "DegradedProtection").get("reason") == "Copied", 90)
    kill = f"kill -9 $(pgrep -f '^python3 {SCRIPTS_DIR}/{MODEL}')"
    job.kubectl.run("exec", job.member(1)["podName"], "-c", "trainer", "--", "sh", "-c", kill)
    _wait_restarted(job, before + 1)
    done = job.wait("the job has succeeded", lambda s: s.get("state") == "Succeeded", 240)
    assert done["counters"] == {"restarts": before + 1, "replacements": 0}
    wait_for("its pods have ended", lambda: all(map(_is_over, job.pods())), timeout_seconds=60)


def _wait_restarted(job: Job, restarts: int) -> None:
    job.wait(
        f"the ranks train again after {restarts} restarts",
        lambda s: s["state"] == "Running" and s["counters"]["restarts"] == restarts,
        60,
    )


def _is_over(pod: Json) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
