"""Checks beyond the API server's own: each names its field and its remedy, and a sound job raises none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.manifests.validation import notes, pool_problems, problems


def job(pod: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **spec: Any) -> TrainingJob:
    """Return a sound job, with these parts of its pod, its training container and its spec replaced."""
    container = {"name": "trainer", "image": "train", "command": ["python", "train.py"], **(trainer or {})}
    template = {"spec": {"containers": [container], **(pod or {})}}
    return msgspec.convert(
        {
            "metadata": {"name": "gpt2", "namespace": "team"},
            "spec": {"replicas": 2, "warmPoolRef": {"name": "spares"}, "template": template, **spec},
        },
        TrainingJob,
    )


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"pattern": "(", "class": "GpuLost"}, "pattern: "),
        ({"pattern": "x", "class": "RackHot"}, "class: no class 'RackHot': docs/errors.md lists them"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(rule: dict[str, Any], problem: str) -> None:
    (found,) = problems(job(recovery={"rules": [rule]}))
    assert str(found).startswith(f"spec.recovery.rules[0].{problem}")
    hot = "classes: [{name: RackHot, severity: SEV1, domain: Node, meaning: Hot., remedy: Cool.}]"
    assert bool(problems(job(recovery={"rules": [rule]}), hot)) == (rule["class"] != "RackHot")


def test_a_metric_that_cannot_be_used_is_named_with_a_remedy() -> None:
    metrics = [{"name": "loss", "pattern": "loss=([0-9.]+|nan)"}, {"name": "reward", "pattern": "reward=nan"}]
    assert problems(job(anomalies={"metrics": metrics[:1]})) == []
    (found,) = problems(job(anomalies={"metrics": metrics}))
    assert found.field == "spec.anomalies.metrics[1].pattern"
    assert found.message == "has 0 groups, and one must capture the number"
    assert found.remedy.startswith("write for example 'loss")


def test_a_restart_for_nan_needs_checkpoints_and_the_right_to_restart() -> None:
    asked: dict[str, Any] = {"anomalies": {"onNaN": "Restart"}}
    memory = {"checkpoint": {"memory": "64Mi"}}
    assert problems(job(**asked, **memory)) == []
    (nothing,) = problems(job(**asked))
    assert (nothing.field, nothing.remedy) == (
        "spec.anomalies.onNaN",
        "set spec.checkpoint.memory, or remove the field",
    )
    (observed,) = problems(job(**asked, **memory, mitigation={"mode": "Observe"}))
    assert observed.field == "spec.anomalies.onNaN"
    assert observed.remedy == "set spec.mitigation.mode to Enforce, or remove the field"


def test_results_cannot_be_compared_where_no_call_is_seen() -> None:
    asked: dict[str, Any] = {"anomalies": {"verifyEvery": 100}}
    assert problems(job(**asked)) == []
    assert problems(job(**asked, mitigation={"mode": "Observe"})) == []
    (found,) = problems(job(**asked, mitigation={"mode": "Off"}))
    assert (found.field, found.remedy) == (
        "spec.anomalies.verifyEvery",
        "set spec.mitigation.mode to Observe or Enforce, or remove the field",
    )


def pool(*allowed_namespaces: str) -> WarmPool:
    spec = {"nodeSelector": {"gpu": "yes"}, "allowedNamespaces": list(allowed_namespaces)}
    return msgspec.convert({"metadata": {"name": "spares"}, "spec": spec}, WarmPool)


@pytest.mark.parametrize(
    "sound",
    [
        job(),
        job(trainer={"command": ["torchrun", "train.py"]}, launcher="Own"),
        job(trainer={"command": ["python", "-m", "torch.distributed.run"]}, launcher="Own"),
        job(trainer={"command": ["python", "-m", "train", "-m", "torch.distributed.run"]}),
        job(trainer={"command": ["python", "torchrun.py"]}),
        job({"os": {"name": "linux"}}),
        job({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}),
        job({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.96.0.10"]}}),
        job(trainer={"volumeMounts": [{"name": "d", "mountPath": "/data/falcon"}]}),
        job(trainer={"volumeMounts": [{"name": "d", "mountPath": "/falconry"}]}),
        job({"initContainers": "of a wrong type", "os": 3}),
    ],
    ids=lambda job: str(job.spec.template["spec"])[:70],
)
def test_a_sound_job_has_no_problem(sound: TrainingJob) -> None:
    assert problems(sound) == []


@pytest.mark.parametrize(
    ("bad", "field", "remedy"),
    [
        (job(trainer={"command": ["torchrun", "train.py"]}), "spec.launcher", "Own"),
        (job(trainer={"command": ["/opt/venv/bin/torchrun"]}), "spec.launcher", "Own"),
        (job(trainer={"command": ["python", "-u", "-m", "torch.distributed.run"]}), "spec.launcher", "Own"),
        (job(trainer={"command": ["python"], "args": ["-m", "torch.distributed.launch"]}), "spec.launcher", "Own"),
        (job(trainer={"command": ["mpirun", "-n", "8"]}), "spec.launcher", "Own"),
        (job(trainer={"command": [""]}), "spec.template.spec.containers[0].command[0]", "python"),
        (job(trainer={"command": [" ", "train.py"]}), "spec.template.spec.containers[0].command[0]", "python"),
        (
            job(trainer={"command": ["\t"]}, launcher="Own"),
            "spec.template.spec.containers[0].command[0]",
            "python",
        ),
        (job({"os": {"name": "windows"}}), "spec.template.spec.os.name", "linux"),
        (job({"dnsPolicy": "Default"}), "spec.template.spec.dnsPolicy", "remove"),
        (job({"hostNetwork": True}), "spec.template.spec.dnsPolicy", "ClusterFirstWithHostNet"),
        (
            job(trainer={"volumeMounts": [{"name": "d", "mountPath": "/data/../falcon/bin"}]}),
            "spec.template.spec.containers[0].volumeMounts[0].mountPath",
            "elsewhere",
        ),
        (
            job({"initContainers": [{"name": "i", "volumeMounts": [{"name": "d", "mountPath": "/./falcon"}]}]}),
            "spec.template.spec.initContainers[0].volumeMounts[0].mountPath",
            "elsewhere",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_problem_names_field_and_remedy(bad: TrainingJob, field: str, remedy: str) -> None:
    (problem,) = problems(bad)
    assert problem.field == field
    assert remedy in problem.remedy
    assert str(problem).startswith(f"{field}: ")


def test_only_the_wrapped_container_is_judged_by_its_command() -> None:
    sidecar = {"name": "logs", "command": ["torchrun"]}
    trainer = {"name": "trainer", "command": ["python", "train.py"]}
    assert problems(job({"containers": [sidecar, trainer]}, container="trainer")) == []
    assert [p.field for p in problems(job({"containers": [sidecar, trainer]}, container="logs"))] == ["spec.launcher"]


def test_notes_say_what_will_not_happen() -> None:
    asked = job(
        trainer={"livenessProbe": {"exec": {"command": ["true"]}}},
        mitigation={"strategies": [{"type": "SwapNodes"}, {"type": "ReplaceNode"}]},
        warmPoolRef=None,
        replicas=2,
    )
    assert problems(asked) == []
    assert [note.field for note in notes(asked)] == [
        "spec.mitigation.strategies[0].type",
        "spec.warmPoolRef",
        "spec.template.spec.containers[0].livenessProbe",
    ]


def test_defaults_need_no_note() -> None:
    assert notes(job()) == []


def test_a_job_without_replacement_needs_no_pool() -> None:
    assert notes(job(mitigation={"strategies": [{"type": "Ignore"}]}, warmPoolRef=None)) == []


def test_the_pool_must_exist_and_serve_the_namespace() -> None:
    assert pool_problems(job(), pool()) == []
    assert pool_problems(job(), pool("team")) == []
    (missing,) = pool_problems(job(), None)
    (closed,) = pool_problems(job(), pool("others"))
    assert missing.field == closed.field == "spec.warmPoolRef.name"
    assert "create it" in missing.remedy
    assert "runs without spares" in missing.message
    assert problems(job()) == [], "the job runs all the same"
    assert "allowedNamespaces" in closed.remedy
    assert pool_problems(job(warmPoolRef=None), None) == []
