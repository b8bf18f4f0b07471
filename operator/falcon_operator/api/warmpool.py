"""Define ``WarmPool``: spare nodes, their tests, and who may claim them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from falcon_operator.api.common import ApiStruct, Condition, LocalReference, ObjectMeta, Resources, Toleration
from falcon_operator.api.markers import cel, object_schema, schema

_NO_WHITE_SPACE = r"self.matches('^[^ \\t\\r\\n]+$')"

Namespace = Annotated[
    str,
    schema(
        cel(
            "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "spec.allowedNamespaces: not a namespace's name: use lower-case letters, digits and '-'; for all "
            "namespaces leave the list out",
        ),
        minLength=1,
        maxLength=63,
    ),
]
Image = Annotated[
    str,
    schema(
        cel(_NO_WHITE_SPACE, "spec.images: an image's name holds no white space: remove it"),
        minLength=1,
        maxLength=512,
    ),
]


class NodeCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A test of a node, and what it measured."""

    at: Annotated[str, schema(maxLength=64)]
    """When its result was read, RFC 3339."""

    outcome: Literal["Running", "Passed", "Slow", "Disturbed", "Failed"]
    """What it says of the node."""

    gflops: Annotated[str, schema(maxLength=32)] = ""
    """The matrix-multiplication rate of the CPUs, a decimal number of GFLOP/s."""

    scores: Annotated[
        dict[str, Annotated[str, schema(description="A decimal number, the higher the better.", maxLength=32)]],
        schema(maxProperties=32),
    ] = {}
    """Rates that the benchmark executor measured, decimal numbers by name."""

    message: Annotated[str, schema(maxLength=512)] = ""
    """What was wrong, if anything."""


class NodeChecks(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The newest tests of a node, the oldest first."""

    node: Annotated[str, schema(maxLength=253)]
    """Name of the node."""

    uid: Annotated[str, schema(maxLength=64)] = ""
    """The Node's uid. A new machine of the same name has no history."""

    checks: Annotated[list[NodeCheck], schema(list_type="atomic", maxItems=6)] = []
    """The tests, oldest first."""


class BurnInSpec(ApiStruct, frozen=True, kw_only=True):
    """The test of a pool's nodes. The test runs in the operator's namespace."""

    seconds: Annotated[int, schema(minimum=1, maximum=3600)] = 5
    """Length of the test, seconds. Default 5."""

    image: Annotated[
        str,
        schema(
            cel(_NO_WHITE_SPACE, "spec.burnIn.image: an image's name holds no white space: remove it"),
            minLength=1,
            maxLength=512,
        ),
    ] = ""
    """The image that jobs train with, or another one with python3 (3.6 or newer). After the test of CPUs, memory and
    disk, a container of this image with spec.burnIn.resources runs Falcon's benchmark executor for spec.burnIn.seconds,
    if this release brings it; otherwise it is started and ends. Default: none, only the former test."""

    runtime_class_name: Annotated[str, schema(maxLength=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] = ""
    """RuntimeClass of the test's pod, such as nvidia. Default: the cluster's."""

    image_pull_secrets: Annotated[list[LocalReference], schema(list_type="map", keys=["name"], maxItems=16)] = []
    """Secrets of Falcon's own namespace for the registries of spec.images and spec.burnIn.image. Default: none."""

    tolerations: Annotated[list[Toleration], schema(list_type="atomic", maxItems=32)] = []
    """Taints of the nodes that the test tolerates. Falcon's own taints are always tolerated, and those named like a
    device of spec.burnIn.resources, such as nvidia.com/gpu. A node with any other NoSchedule or NoExecute taint does
    not join the pool: the taint's owner keeps it from ordinary pods. Default: none."""

    resources: Annotated[Resources, schema(default=None)] = Resources()
    """What the test asks for and may use. Where neither a request nor a limit is given: cpu 1 and memory 512Mi, as
    request and limit, so that the test gets the CPU that it uses. It runs one thread for each CPU of its limit, without
    limit for each CPU of the node, and needs 8Mi for each thread."""


@object_schema(
    cel(
        "!has(self.perJob) || !has(self.perNamespace) || self.perJob <= self.perNamespace",
        "spec.claims.perJob is larger than spec.claims.perNamespace, which would be reached first: lower "
        "perJob or raise perNamespace",
        ".perJob",
    )
)
class ClaimLimits(ApiStruct, frozen=True, kw_only=True):
    """How many spares of a pool tenants may take: what a job reports of its nodes must not empty the pool."""

    per_job: Annotated[int, schema(minimum=1, maximum=4096)] = 64
    """Spares that a job may hold at the same time. Default 64."""

    per_namespace: Annotated[int, schema(minimum=1, maximum=4096)] = 256
    """Spares that all jobs of a namespace may hold at the same time. Default 256."""

    per_hour: Annotated[int, schema(minimum=1, maximum=1024)] = 64
    """Spares that all jobs of a namespace may claim within an hour. Default 64."""


class WarmPoolSpec(ApiStruct, frozen=True, kw_only=True):
    """Nodes kept free for replacement; cluster scope."""

    node_selector: Annotated[dict[str, Annotated[str, schema(maxLength=63)]], schema(minProperties=1, maxProperties=16)]
    """Labels of the nodes that the pool may keep; all must match. Two pools should not select the same node."""

    size: Annotated[int, schema(minimum=0, maximum=4096)] = 1
    """Nodes to keep free, of those selected. A spare that was taken is made up for as long as the selector finds nodes.
    0 releases all. Default 1."""

    allowed_namespaces: Annotated[list[Namespace], schema(list_type="set", maxItems=256)] = []
    """Namespaces whose jobs may take a spare. Default: all."""

    claims: ClaimLimits = ClaimLimits()
    """How many spares tenants may take, so that no job and no namespace can empty the pool for the others. A job over a
    limit goes to any other free node, or waits; its status names the limit."""

    images: Annotated[list[Image], schema(list_type="set", maxItems=32)] = []
    """Images that are pulled onto every spare ahead of need. Default: none."""

    burn_in: BurnInSpec = BurnInSpec()
    """The test that a node passes before it counts as ready, and that a node passes which a job has left for being
    slow. It multiplies matrices on all CPUs that it may use, copies memory and writes a file."""


class SpareStatus(ApiStruct, frozen=True, kw_only=True):
    """A node of the pool."""

    node: Annotated[str, schema(maxLength=253)]
    """Name of the node."""

    state: Literal["Testing", "Ready", "Claimed", "Failed", "Unavailable"]
    """Testing, Ready, Claimed (a replacement holds it), Failed (its test) or Unavailable (NotReady, cordoned, fenced,
    with a taint that the test does not tolerate, or used by other pods)."""

    claimed_by: Annotated[str, schema(maxLength=512)] = ""
    """namespace/name/uid/generation of the replacement that holds it."""

    gemm_gflops: Annotated[str, schema(maxLength=32)] = ""
    """The test's matrix-multiplication rate, a decimal number of GFLOP/s."""

    message: Annotated[str, schema(maxLength=4096)] = ""
    """What is wrong with it, if anything."""

    since: Annotated[str, schema(maxLength=64)] = ""
    """Since when it is in this state, or its test was asked for, RFC 3339."""

    slow_tests: int = 0
    """Tests in a row in which the node was slower than its peers. After the second it is Failed."""

    next_test: Annotated[str, schema(maxLength=64)] = ""
    """When its next test begins at the earliest, RFC 3339; absent when it may begin at once."""

    images: Annotated[str, schema(maxLength=32)] = ""
    """Of spec.images, how many its newest test has pulled, such as 1/2."""


class NamespaceClaims(ApiStruct, frozen=True, kw_only=True):
    """The claims that a namespace's jobs have made of late."""

    namespace: Annotated[str, schema(maxLength=63)]
    """The namespace whose jobs made the claims."""

    at: Annotated[list[Annotated[str, schema(maxLength=64)]], schema(list_type="atomic", maxItems=1024)] = []
    """When each claim was made, RFC 3339, oldest first."""


class WarmPoolStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: Annotated[int, schema(format="int64")] = 0
    """The metadata.generation that this status answers to."""

    ready: Annotated[str, schema(maxLength=32)] = ""
    """Spares that are ready and free, over the pool's size, such as 1/1."""

    spares: Annotated[list[SpareStatus], schema(list_type="map", keys=["node"], maxItems=4096)] = []
    """The nodes of the pool."""

    recent_claims: Annotated[list[NamespaceClaims], schema(list_type="map", keys=["namespace"], maxItems=4096)] = []
    """The claims of the last hour, by namespace; spec.claims.perHour limits them."""

    checks: Annotated[list[NodeChecks], schema(list_type="map", keys=["node"], maxItems=256)] = []
    """The newest tests of each node that was a spare, five of each and the newest one that passed; the node that was
    tested last comes last. A later test is compared with the fastest of them. If a machine is meant to be slower from
    now on, remove its entry (kubectl edit --subresource=status)."""

    conditions: Annotated[list[Condition], schema(list_type="map", keys=["type"], maxItems=32)] = []
    """Ready (size spares are ready and free)."""


@object_schema(
    cel(
        "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name becomes a taint's value: use at most 63 lower-case letters, digits and '-', beginning "
        "and ending with a letter or digit",
        ".metadata.name",
    )
)
class WarmPool(ApiStruct, frozen=True, kw_only=True):
    """Nodes kept free, tested and with images pulled, so that a job that loses a node goes on within seconds. A spare
    carries the taint falcon.dev/spare (NoSchedule), which only a replacement pod tolerates."""

    metadata: ObjectMeta

    spec: WarmPoolSpec
    """The pool as the platform engineer wants it."""

    status: WarmPoolStatus = WarmPoolStatus()
    """What Falcon knows of the pool; written by the operator alone."""
