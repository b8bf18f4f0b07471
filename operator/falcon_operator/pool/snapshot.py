"""Define what one look at a pool sees, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from falcon_core.errors.judge import platform_judge
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus
from falcon_operator.base.effects import CreatePod, Effect
from falcon_operator.base.ports import OF_THE_IMAGE, NodeView, Occupant, PodView, RunAs
from falcon_operator.intent.model.node_troubles import grave_troubles
from falcon_operator.manifests.burn_in import build_burn_in_pod


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's own settings that a burn-in pod or a spare needs."""

    namespace: str  # the operator's
    agent_image: str
    image_pull_policy: str
    spare_annotations: Mapping[str, str] = {}  # for autoscalers, as of ``base.spare_annotations``
    error_overrides: str = ""  # as of ``manifests.instrument.PodSettings``
    run_as: RunAs = OF_THE_IMAGE  # of the test's containers


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One pool and its surroundings at one moment. ``live_jobs`` was read after ``pool`` and ``nodes``."""

    pool: WarmPool
    nodes: Mapping[str, NodeView]
    burn_ins: list[PodView] = []  # the pool's own tests, and its tests of nodes that jobs have left
    occupants: dict[str, list[Occupant]] = {}  # pods by node: the pool's spares, and as many other nodes as are needed
    live_jobs: frozenset[str] = frozenset()  # uids of jobs that are not over
    refused: str = ""  # the API server's answer to the last test's pod that it did not accept
    settings: PoolSettings
    now: float  # unix seconds

    @cached_property
    def troubled(self) -> Mapping[str, str]:
        """Return the nodes whose hardware is in grave trouble by their own report, with the trouble in words."""
        return grave_troubles(self.nodes, platform_judge(self.settings.error_overrides))

    def start_test(self, name: str, node: str, purpose: str, images: Sequence[str] = ()) -> CreatePod:
        """Return the effect that starts the pool's test of a node; ``images`` are pulled before it."""
        return CreatePod(
            build_burn_in_pod(
                name=name,
                namespace=self.settings.namespace,
                node=node,
                pool=self.pool,
                purpose=purpose,
                agent_image=self.settings.agent_image,
                image_pull_policy=self.settings.image_pull_policy,
                images=images,
                run_as=self.settings.run_as,
            )
        )


class PoolDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The status to write first, and the effects that it asks for."""

    status: WarmPoolStatus
    effects: list[Effect]
    again_seconds: float | None
