"""Names, placement, ownership of the pods, and the objects beside them."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.recovery.model.membership import Member, Replacement
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import PodSettings
from falcon_operator.manifests.pods import build_pod, pod_name, template_hash
from falcon_operator.manifests.service import build_secret, build_service

SETTINGS = PodSettings(agent_image="agent", gateways="gateway:7443")
MEMBER = Member(replica=2, pod_name="gpt2-2-abcde", first_rank=16)


def job(pod: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None) -> TrainingJob:
    template = {
        "metadata": metadata or {},
        "spec": {"containers": [{"name": "t", "image": "x", "command": ["python"]}], **(pod or {})},
    }
    spec = msgspec.convert({"replicas": 3, "procsPerReplica": 8, "template": template}, TrainingJobSpec)
    return TrainingJob(metadata=ObjectMeta(name="gpt2", namespace="ml", uid="u-1"), spec=spec)


def moved(node: str, pool: str = "spares") -> Replacement:
    return Replacement(
        replica=2,
        pod_name=MEMBER.pod_name,
        pool=pool,
        node=node,
        old_pod_name="gpt2-2-older",
        old_pod_uid="p",
        old_node="node-c",
        prepared=True,
        at=0.0,
    )


def node_fields(manifest: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    terms = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        [(field["operator"], field["values"]) for field in term["matchFields"]] for term in terms["nodeSelectorTerms"]
    ]


def test_a_name_derives_from_the_intent_alone() -> None:
    names = {pod_name(job(), replica, number) for replica in range(3) for number in range(200)}
    assert len(names) == 600
    assert pod_name(job(), 1, 7) == pod_name(job(), 1, 7)
    assert all(name.startswith("gpt2-") and len(name) == len("gpt2-0-xxxxx") for name in names)


def test_a_pod_knows_its_job_and_its_host() -> None:
    manifest = build_pod(job(metadata={"labels": {"queue": "q"}}), MEMBER, SETTINGS, excluded=[])
    meta, spec = manifest["metadata"], manifest["spec"]
    assert meta["labels"] == {
        "queue": "q",
        "falcon.dev/job": "gpt2",
        "falcon.dev/job-uid": "u-1",
        "falcon.dev/replica": "2",
        "falcon.dev/role": "trainer",
    }
    assert meta["annotations"] == {"falcon.dev/template-hash": template_hash(job(metadata={"labels": {"queue": "q"}}))}
    (owner,) = meta["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("u-1", True)
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("gpt2-2", "gpt2", "Never")
    assert "nodeName" not in spec
    assert "8" in spec["containers"][0]["command"]


def test_one_pod_of_a_job_a_node_beside_the_users_own_rules() -> None:
    users = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    manifest = build_pod(job({"affinity": users}), MEMBER, SETTINGS, excluded=[])
    rules = manifest["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rules[0] == {"topologyKey": "zone"}
    assert rules[1]["labelSelector"]["matchLabels"]["falcon.dev/job-uid"] == "u-1"
    assert "nodeAffinity" not in manifest["spec"]["affinity"]


def test_excluded_nodes_one_requirement_each_in_every_alternative() -> None:
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, {"matchExpressions": []}]
    users = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    manifest = build_pod(job({"affinity": users}), MEMBER, SETTINGS, excluded=["a", "b"])
    assert node_fields(manifest) == [[("NotIn", ["a"]), ("NotIn", ["b"])]] * 2


def test_a_replacement_is_pinned_to_its_spare_and_alone_tolerates_the_pool() -> None:
    manifest = build_pod(job(), MEMBER, SETTINGS, excluded=["node-c"], replacement=moved("spare-1"))
    assert node_fields(manifest) == [[("In", ["spare-1"]), ("NotIn", ["node-c"])]]
    assert manifest["spec"]["tolerations"] == [
        {"key": "falcon.dev/spare", "operator": "Equal", "value": "spares", "effect": "NoSchedule"}
    ]
    ordinary = build_pod(job(), MEMBER, SETTINGS, excluded=[])
    assert "tolerations" not in ordinary["spec"]


def test_a_pod_made_anew_returns_to_its_node_without_tolerating_the_pool() -> None:
    manifest = build_pod(job(), MEMBER, SETTINGS, excluded=[], replacement=moved("node-c", pool=""))
    assert node_fields(manifest) == [[("In", ["node-c"])]]
    assert "tolerations" not in manifest["spec"]


def test_the_template_is_not_touched() -> None:
    given = job({"affinity": None})
    before = msgspec.json.encode(given)
    build_pod(given, MEMBER, SETTINGS, excluded=["a"], replacement=moved("s"))
    assert msgspec.json.encode(given) == before


def test_the_service_gives_names_to_pods_that_are_not_ready() -> None:
    service = build_service(job())
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"falcon.dev/job-uid": "u-1", "falcon.dev/role": "trainer"}
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_the_secret_carries_the_agents_credentials() -> None:
    secret = build_secret(job(), {"ca.crt": b"ca", "tls.key": b"key"})
    assert secret["metadata"]["name"] == "gpt2-falcon-gateway"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert {name: base64.b64decode(data) for name, data in secret["data"].items()} == {
        "ca.crt": b"ca",
        "tls.key": b"key",
    }


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)  # as the CRD admits them
ENDINGS = ["", "-falcon", "-falcon-gateway", "-0", "-0-bcdfg", "-falcon-falcon"]


@given(NAMES, st.sampled_from(ENDINGS), st.sampled_from(ENDINGS), st.integers(0, 99), st.integers(0, 99))
def test_the_objects_of_two_jobs_never_have_one_name(
    stem: str, one: str, other: str, replica: int, number: int
) -> None:
    """Also where a job is called as another one's Secret or pod."""

    def objects(name: str) -> set[tuple[str, str]]:
        each = msgspec.structs.replace(job(), metadata=ObjectMeta(name=name, namespace="ml", uid=f"uid-of-{name}"))
        return {
            ("Service", build_service(each)["metadata"]["name"]),
            ("Secret", build_secret(each, {})["metadata"]["name"]),
            ("Pod", pod_name(each, replica, number)),
        }

    assert one == other or not objects(stem + one) & objects(stem + other)
