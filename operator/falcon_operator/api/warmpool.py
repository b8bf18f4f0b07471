"""Define ``WarmPool``: spare nodes, their tests, and who may claim them."""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_operator.api.common import ApiStruct, Condition, LocalReference, ObjectMeta, Resources, Toleration


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A test of a node, and what it measured."""

    at: str
    outcome: Literal["Running", "Passed", "Slow", "Disturbed", "Failed"]
    gflops: str = ""  # decimal
    scores: dict[str, str] = {}  # decimal rates of the executor, by name
    message: str = ""


class NodeChecks(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The newest tests of a node, the oldest first."""

    node: str
    uid: str = ""  # of the Node: a new machine of the same name has no history
    checks: list[NodeCheck] = []


class BurnInSpec(ApiStruct, frozen=True, kw_only=True):
    """The test of a pool's nodes. The test runs in the operator's namespace."""

    seconds: int = 5
    image: str = ""  # the training image, in which the executor tests the devices; empty: the agent's own test alone
    runtime_class_name: str = ""
    image_pull_secrets: list[LocalReference] = []  # in the operator's namespace
    tolerations: list[Toleration] = []  # in addition to tolerations of Falcon's own taints
    resources: Resources = Resources()  # cpu and memory have a default where neither request nor limit is given


class ClaimLimits(ApiStruct, frozen=True, kw_only=True):
    """How many spares of a pool tenants may take: what a job reports of its nodes must not empty the pool."""

    per_job: int = 64  # held at the same time
    per_namespace: int = 256  # held at the same time by all its jobs
    per_hour: int = 64  # claimed within an hour by all jobs of a namespace


class WarmPoolSpec(ApiStruct, frozen=True, kw_only=True):
    """Nodes kept free for replacement; cluster scope."""

    node_selector: dict[str, str]
    size: int = 1
    allowed_namespaces: list[str] = []  # empty: all
    claims: ClaimLimits = ClaimLimits()
    images: list[str] = []  # pulled ahead on every spare
    burn_in: BurnInSpec = BurnInSpec()


class SpareStatus(ApiStruct, frozen=True, kw_only=True):
    """A node of the pool."""

    node: str
    state: Literal["Testing", "Ready", "Claimed", "Failed", "Unavailable"]
    claimed_by: str = ""  # namespace/name/uid/generation of the replacement that holds it
    gemm_gflops: str = ""  # decimal; the node's burn-in score
    message: str = ""
    since: str = ""
    slow_tests: int = 0  # slow tests in a row
    next_test: str = ""  # while Testing: the next test begins no earlier; empty: at once
    images: str = ""  # of spec.images, how many its test has pulled: "1/2"


class NamespaceClaims(ApiStruct, frozen=True, kw_only=True):
    """The claims that a namespace's jobs have made of late."""

    namespace: str
    at: list[str] = []  # oldest first; older ones than an hour go with the next claim


class WarmPoolStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    ready: str = ""  # "1/1"
    spares: list[SpareStatus] = []
    recent_claims: list[NamespaceClaims] = []  # by namespace
    checks: list[NodeChecks] = []  # the node that was tested last comes last
    conditions: list[Condition] = []


class WarmPool(ApiStruct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: WarmPoolSpec
    status: WarmPoolStatus = WarmPoolStatus()
