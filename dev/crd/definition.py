"""Put the frame of a CustomResourceDefinition around the schema of a kind, and write it as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from dev.crd.schema import Schema
from falcon_operator.api.common import ANNOTATION_STORED_FIELDS, GROUP, VERSION

FOLDER = Path(__file__).resolve().parents[2] / "crds"


class Column(msgspec.Struct, frozen=True):
    """A column that ``kubectl get`` prints."""

    name: str
    type: str
    path: str
    description: str = ""
    wide: bool = False  # printed by ``kubectl get -o wide`` only


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of the group, and how it is listed."""

    name: str
    scope: str = "Namespaced"
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...]
    has_status: bool = True
    schema: Schema
    stored_fields: str = ""  # the hash of the fields that the operator stores in it (``stored_fields``)
    header: str  # the comment at the file's beginning

    @property
    def plural(self) -> str:
        return f"{self.name.lower()}s"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.plural}.{GROUP}.yaml"


AGE = Column("Age", "date", ".metadata.creationTimestamp")


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of the kind."""
    annotations = {"annotations": {ANNOTATION_STORED_FIELDS: kind.stored_fields}} if kind.stored_fields else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}", **annotations},
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "conversion": {"strategy": "None"},
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                **({"shortNames": [*kind.short_names]} if kind.short_names else {}),
                "categories": ["falcon"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if kind.has_status else {}),
                    "additionalPrinterColumns": [*map(_column, (*kind.columns, AGE))],
                    "schema": {"openAPIV3Schema": kind.schema},
                }
            ],
        },
    }


def render(kind: Kind) -> str:
    """Return the text of the kind's file."""
    body = yaml.dump(definition(kind), Dumper=_Plain, sort_keys=False, width=118, allow_unicode=True)
    return kind.header + body


class _Plain(yaml.SafeDumper):
    """Write each value out, also where several places share it: aliases make a schema hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _column(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        **({"priority": 1} if column.wide else {}),
        "jsonPath": column.path,
        **({"description": column.description} if column.description else {}),
    }
