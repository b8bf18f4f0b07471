"""Refuse to run where the cluster's definition of TrainingRun is older than the operator.

An older definition drops fields that this operator stores, without an error. The operator would decide from half of
what it remembers (ADR 124). A newer definition is taken: it keeps the fields of the versions next to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog

from falcon_operator.api.common import ANNOTATION_STORED_FIELDS, GROUP, VERSION
from falcon_operator.api.stored_fields import dropped_fields, fields_hash
from falcon_operator.api.trainingrun import TrainingRunSpec
from falcon_operator.base.ports import NotFound, Rejected
from falcon_operator.cluster.transport import Transport, path_of

NAME = f"trainingruns.{GROUP}"
REMEDY = (
    f"apply the definition of this release: kubectl apply --server-side --force-conflicts -f crds/{NAME}.yaml,"
    " or helm upgrade with crds.enabled=true"
)
RETRY_SECONDS = 1.0  # between two tries while the API server does not answer
MISSING_SECONDS = 5.0  # between two tries while the definition does not exist
MOST_NAMED = 5  # fields that the message names
log = structlog.get_logger(__name__)


class DefinitionError(Exception):
    """The error of a definition that the operator cannot work with; the message names it and the remedy."""


async def require_current(transport: Transport) -> None:
    """Wait until the API server has the definition, and check it.

    Raises:
        DefinitionError: where the definition may not be read, or drops fields.
    """
    path = path_of("apiextensions.k8s.io/v1", "customresourcedefinitions", name=NAME)
    while True:
        try:
            check(msgspec.json.decode(await transport.call("GET", path)))
            return
        except NotFound:
            # The definitions may still be applied: a user can install the operator before them.
            log.warning("waiting", what=f"CustomResourceDefinition {NAME}, which does not exist", remedy=REMEDY)
            await asyncio.sleep(MISSING_SECONDS)
        except Rejected as error:
            raise DefinitionError(
                f"CustomResourceDefinition {NAME} cannot be read ({error}): allow the operator's service account to get"
                " it, as the chart's ClusterRole does"
            ) from error
        except OSError as error:
            log.warning("definition not read yet", name=NAME, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)


def check(crd: dict[str, Any]) -> None:
    """Check that a definition keeps all fields that the operator stores.

    Raises:
        DefinitionError: names the fields that would be lost.
    """
    annotations = crd["metadata"].get("annotations") or {}
    if annotations.get(ANNOTATION_STORED_FIELDS) == fields_hash(TrainingRunSpec):
        return
    # Another hash alone is no loss: a newer definition may have more fields, and keeps all of these.
    lost = dropped_fields(TrainingRunSpec, _spec_schema(crd))
    if lost:
        more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
        raise DefinitionError(
            f"CustomResourceDefinition {NAME} is older than this operator, and the API server would drop"
            f" {', '.join(f'spec.{field}' for field in lost[:MOST_NAMED])}{more}: {REMEDY}"
        )
    log.info("the definition is of another version and keeps all fields", name=NAME)


def _spec_schema(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of ``.spec`` in the version that the operator uses; empty where there is none."""
    for version in crd["spec"]["versions"]:
        if version["name"] == VERSION:
            schema = version["schema"]["openAPIV3Schema"]
            return dict(schema.get("properties", {}).get("spec", {}))
    return {}
