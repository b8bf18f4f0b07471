"""Check what is stored of an intent: the previous version's runs are read unchanged, and an oversize is not stored."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.api.trainingrun import ClosedIncident
from falcon_operator.base.ports import Oversize
from falcon_operator.intent.model import run as stored_run
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.layout import stamp, upgraded
from falcon_operator.intent.model.run import encode, read_run
from tests.world.running import condition, operator, run, trained
from tests.world.world import World

# Stored by stories: after_two_incidents and open_slowdown of commit d513caf7, whose definition still had a schema of
# all fields; the others of c19113ad, the last commit that stored no version.
RUNS = sorted((Path(__file__).resolve().parents[3] / "data" / "trainingruns").glob("*.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_run_of_the_previous_version_is_read_unchanged(path: Path) -> None:
    raw = msgspec.json.decode(path.read_bytes())
    read = read_run(raw)
    assert read.problems == ()
    assert read.spec.recovery.incidents > 0
    assert msgspec.json.decode(msgspec.json.encode(read.spec)) | stamp() == upgraded(raw["spec"])


@pytest.mark.parametrize("field", ["recovery", "history"])
def test_an_oversize_names_the_field_and_the_remedy(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = msgspec.convert({"replicas": 1, "template": {"spec": {}}}, TrainingJobSpec)
    job = TrainingJob(metadata=ObjectMeta(name="gpt2", namespace="ml"), spec=spec)
    intent = Intent(history=[ClosedIncident(at=1.0, outcome="Helped")])
    size = len(msgspec.json.encode(getattr(intent, field)))
    monkeypatch.setitem(stored_run.MOST_BYTES, field, size)
    encode(job, intent)
    monkeypatch.setitem(stored_run.MOST_BYTES, field, size - 1)
    with pytest.raises(Oversize, match=rf"^spec\.{field} of TrainingRun ml/gpt2 ") as refused:
        encode(job, intent)
    assert "kubectl delete trainingrun gpt2 -n ml" in str(refused.value)


async def test_an_oversize_is_shown_and_nothing_of_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await trained(world)
    before = deepcopy(world.trainingrun)

    def failed(wanted: str) -> Any:
        return lambda w: condition(w.status, "ReconcileFailed") == wanted

    with monkeypatch.context() as small:
        small.setitem(stored_run.MOST_BYTES, "recovery", 1)
        await run(world, operator, failed("True"))
        (shown,) = [entry for entry in world.status.conditions if entry.type == "ReconcileFailed"]
        assert (shown.reason, world.trainingrun) == ("TooLarge", before)
        assert shown.message.startswith("spec.recovery of TrainingRun ml/gpt2 ")
    await run(world, operator, failed("False"))
