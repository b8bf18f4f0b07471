"""Check on a real API server that it keeps every field of a TrainingRun, also where the definition has no schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.api.apiserver import ApiServer

RUNS = sorted((Path(__file__).resolve().parents[2] / "data" / "trainingruns").glob("*.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_run_of_the_previous_version_is_kept_unchanged(api: ApiServer, path: Path) -> None:
    run = json.loads(path.read_text())
    name = path.stem.replace("_", "-")
    run["metadata"] = {"name": name, "namespace": "default"}
    run["spec"]["recovery"]["fieldOfANewerVersion"] = {"deep": [{"down": None}]}
    api.ok("kubectl", "create", "-f", "-", stdin=json.dumps(run))
    assert json.loads(api.ok("kubectl", "get", "trainingrun", name, "-o", "json"))["spec"] == run["spec"]
