"""Check that the operator refuses a definition of TrainingRun that would drop what it stores."""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated, Any

import msgspec
import pytest

from dev.crd.definition import definition
from dev.crd.schema import schema_of
from dev.crd.trainingrun import TRAINING_RUN
from falcon_core.recovery.model.failure import StopIncident
from falcon_operator.api.common import ANNOTATION_STORED_FIELDS
from falcon_operator.api.markers import opaque
from falcon_operator.api.stored_fields import dropped_fields, fields_hash
from falcon_operator.base.ports import NotFound, Rejected, Unavailable
from falcon_operator.runtime import definition_check
from falcon_operator.runtime.definition_check import DefinitionError, check, require_current

OPEN = {"x-kubernetes-preserve-unknown-fields": True}


class Part(msgspec.Struct, rename="camel"):
    pod_name: str = ""


class Whole(msgspec.Struct, rename="camel"):
    name: str = ""
    part: Part | None = None
    parts: list[Part] = []
    by_name: dict[str, Part] = {}
    memory: Annotated[Part, opaque()] = msgspec.field(default_factory=Part)
    past: Annotated[list[Part], opaque()] = []


def without(*path: str) -> dict[str, Any]:
    """Return the schema of Whole without the keyword or the field at this path."""
    schema = schema_of(Whole)
    node = schema
    for step in path[:-1]:
        node = node[step]
    del node[path[-1]]
    return schema


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        (schema_of(Whole), []),
        ({"type": "object", **OPEN}, []),
        (without("properties", "name"), ["name"]),
        (without("properties", "part", "properties", "podName"), ["part.podName"]),
        (without("properties", "parts", "items", "properties", "podName"), ["parts[].podName"]),
        (without("properties", "byName", "additionalProperties"), ["byName{}.podName"]),
        (without("properties", "memory", "x-kubernetes-preserve-unknown-fields"), ["memory.*"]),
        (without("properties", "past", "items", "x-kubernetes-preserve-unknown-fields"), ["past.*"]),
    ],
)
def test_a_field_that_a_definition_drops_is_found(schema: dict[str, Any], lost: list[str]) -> None:
    assert dropped_fields(Whole, schema) == lost


def test_a_field_more_changes_the_hash() -> None:
    more = msgspec.defstruct("More", [("weight", float, 0.0)], bases=(Whole,), rename="camel")
    assert fields_hash(more) != fields_hash(Whole)


def older() -> dict[str, Any]:
    """Return a definition as it was before the operator stored the pods' numbers."""
    crd = deepcopy(definition(TRAINING_RUN))
    crd["metadata"]["annotations"] = {ANNOTATION_STORED_FIELDS: "0"}
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["members"]["items"]["properties"]["number"]
    return crd


def newer() -> dict[str, Any]:
    crd = deepcopy(definition(TRAINING_RUN))
    crd["metadata"]["annotations"] = {ANNOTATION_STORED_FIELDS: "0"}
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["shards"] = {"type": "integer"}
    return crd


def test_a_newer_definition_is_taken() -> None:
    check(definition(TRAINING_RUN))
    check(newer())


def test_an_older_definition_is_refused_with_the_command() -> None:
    with pytest.raises(DefinitionError) as refused:
        check(older())
    assert str(refused.value).startswith(
        "CustomResourceDefinition trainingruns.falcon.dev is older than this operator, and the API server would drop"
        " spec.members[].number: apply the definition of this release: kubectl apply --server-side"
    )


def test_the_definition_with_a_schema_of_the_memory_is_refused() -> None:
    """A field that a later version adds to the memory would be lost in it."""
    crd = older()
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    # The state itself has no schema any more: its slowdowns are of several types.
    spec["properties"]["recovery"] = schema_of(StopIncident)
    with pytest.raises(DefinitionError, match=r"spec\.recovery\.\*"):
        check(crd)


class Server:
    """A transport with prepared answers."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []

    async def call(self, method: str, path: str) -> bytes:
        self.paths.append(f"{method} {path}")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.json.encode(answer)


async def test_the_operator_waits_for_the_api_server_and_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_check, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(definition_check, "MISSING_SECONDS", 0.0)
    server = Server(Unavailable("no answer"), NotFound("not found"), definition(TRAINING_RUN))
    await require_current(server)  # type: ignore[arg-type]
    wanted = "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingruns.falcon.dev"
    assert server.paths == [wanted] * 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Rejected("forbidden", transient=True), "as the chart's ClusterRole does"),
        (older(), "is older than this operator"),
    ],
)
async def test_what_does_not_pass_by_itself_ends_the_operator(answer: dict[str, Any] | Exception, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        await require_current(Server(answer))  # type: ignore[arg-type]
