"""Specs against a real kube-apiserver: a bad spec is refused in words that name the field and the remedy."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from falcon_core.recovery.views import STRATEGY_TYPES
from falcon_operator.api.trainingjob import TrainingJobSpec
from tests.integration.api.apiserver import ApiServer
from tests.integration.api.manifests import REMOVED, TRAINING_JOB, Changes, changed

POD = "spec.template.spec"
TRAINER = f"{POD}.containers.0"
SIDECAR = {"name": "logs", "image": "logs"}
DIRECTORY = {"path": "/ckpt", "memory": "1Gi", "copyTo": "/data/run"}
LATER = "is not supported yet and comes with a later release: remove it"

# what is wrong: (changes to a sound job, the field that the message names, words of the remedy)
BAD: dict[str, tuple[Changes, str, str]] = {
    # -- shape
    "no replicas": ({"spec.replicas": REMOVED}, "spec.replicas", "Required value"),
    "zero replicas": ({"spec.replicas": 0}, "spec.replicas", "greater than or equal to 1"),
    "too many replicas": ({"spec.replicas": 5000}, "spec.replicas", "less than or equal to 4096"),
    "replicas as text": ({"spec.replicas": "4"}, "spec.replicas", "must be of type integer"),
    "fractional replicas": ({"spec.replicas": 1.5}, "spec.replicas", "must be of type integer"),
    "zero processes": ({"spec.procsPerReplica": 0}, "spec.procsPerReplica", "greater than or equal to 1"),
    "too many processes": ({"spec.procsPerReplica": 129}, "spec.procsPerReplica", "less than or equal to 128"),
    "world not divisible": (
        {"spec.parallelism": {"tensor": 8, "pipeline": 3}},
        "spec.parallelism",
        "change replicas, procsPerReplica or parallelism",
    ),
    "zero tensor": ({"spec.parallelism": {"tensor": 0}}, "spec.parallelism.tensor", "greater than or equal to 1"),
    "negative stages": ({"spec.parallelism": {"pipeline": -1}}, "spec.parallelism.pipeline", "greater than or equal"),
    "data parallelism": ({"spec.parallelism": {"data": 4}}, "spec.parallelism.data", "unknown field"),
    "unknown launcher": ({"spec.launcher": "torchrun"}, "spec.launcher", '"Falcon", "Own"'),
    "misspelt field": ({"spec.replica": 4}, "spec.replica", "unknown field"),
    # -- the container that trains
    "no template": ({"spec.template": REMOVED}, "spec.template", "Required value"),
    "no pod spec": ({"spec.template": {}}, "spec.template.spec", "Required value"),
    "no containers": ({f"{POD}.containers": REMOVED}, f"{POD}.containers", "Required value"),
    "empty containers": ({f"{POD}.containers": []}, f"{POD}.containers", "at least 1 items"),
    "no command": ({f"{TRAINER}.command": REMOVED}, f"{POD}.containers", "set its command"),
    "empty command": ({f"{TRAINER}.command": []}, f"{POD}.containers", "set its command"),
    "empty program": ({f"{TRAINER}.command": ["", "train.py"]}, f"{POD}.containers", "set its command"),
    "command as text": ({f"{TRAINER}.command": "python train.py"}, f"{POD}.containers[0].command", "of type array"),
    "container unknown": ({"spec.container": "trainr"}, "spec.container", "name of the container that trains"),
    "container ambiguous": ({f"{POD}.containers.1": SIDECAR}, "spec.container", "name of the container that trains"),
    "container unnamed": ({f"{TRAINER}.name": REMOVED}, f"{POD}.containers[0].name", "Required value"),
    "container twice": (
        {f"{POD}.containers.1": {"name": "trainer", "command": ["a"]}, "spec.container": "trainer"},
        f"{POD}.containers[1]",
        "Duplicate value",
    ),
    "second trainer without command": (
        {f"{POD}.containers.1": SIDECAR, "spec.container": "logs"},
        f"{POD}.containers",
        "set its command",
    ),
    # -- what Falcon sets itself
    "rank in env": ({f"{TRAINER}.env": [{"name": "RANK", "value": "0"}]}, f"{POD}.containers", "remove them"),
    "world size in env": ({f"{TRAINER}.env": [{"name": "WORLD_SIZE"}]}, f"{POD}.containers", "remove them"),
    "master in env": ({f"{TRAINER}.env": [{"name": "MASTER_ADDR"}]}, f"{POD}.containers", "remove them"),
    "a GPU for the agent": (
        {"spec.injected": {"agent": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}},
        "spec.injected.agent.resources",
        "remove the others",
    ),
    "a figure that is none": (
        {"spec.injected": {"agent": {"resources": {"limits": {"cpu": "much"}}}}},
        "spec.injected.agent.resources.limits.cpu",
        "should match",
    ),
    "torchrun's in env": ({f"{TRAINER}.env": [{"name": "PET_NNODES"}]}, f"{POD}.containers", "remove them"),
    "Falcon's in env": ({f"{TRAINER}.env": [{"name": "FALCON_X"}]}, f"{POD}.containers", "remove them"),
    "reserved mount": (
        {f"{TRAINER}.volumeMounts": [{"name": "d", "mountPath": "/falcon"}]},
        f"{POD}.containers[0].volumeMounts[0].mountPath",
        "mount the volume elsewhere",
    ),
    "mount below the reserved": (
        {f"{TRAINER}.volumeMounts": [{"name": "d", "mountPath": "/falcon/run"}]},
        f"{POD}.containers[0].volumeMounts[0].mountPath",
        "mount the volume elsewhere",
    ),
    "reserved mount in init": (
        {f"{POD}.initContainers": [{"name": "i", "volumeMounts": [{"name": "d", "mountPath": "/falcon/bin"}]}]},
        f"{POD}.initContainers[0].volumeMounts[0].mountPath",
        "mount the volume elsewhere",
    ),
    "reserved container name": (
        {f"{TRAINER}.name": "falcon-agent"},
        f"{POD}.containers and initContainers",
        "rename the container",
    ),
    "reserved init name": (
        {f"{POD}.initContainers": [{"name": "falcon-init"}]},
        f"{POD}.containers and initContainers",
        "rename the container",
    ),
    "reserved volume name": (
        {f"{POD}.volumes": [{"name": "falcon-run", "emptyDir": {}}]},
        f"{POD}.volumes",
        "rename the volume",
    ),
    "restart policy": ({f"{POD}.restartPolicy": "OnFailure"}, f"{POD}.restartPolicy", '"Never"'),
    "container restart policy": (
        {f"{TRAINER}.restartPolicy": "Always"},
        f"{POD}.containers",
        "remove restartPolicy",
    ),
    "node name": ({f"{POD}.nodeName": "node-a"}, f"{POD}.nodeName", "nodeSelector or affinity"),
    "hostname": ({f"{POD}.hostname": "x"}, f"{POD}.hostname", "remove it"),
    "subdomain": ({f"{POD}.subdomain": "x"}, f"{POD}.subdomain", "remove it"),
    "pod deadline": ({f"{POD}.activeDeadlineSeconds": 9}, f"{POD}.activeDeadlineSeconds", "spec.activeDeadlineSeconds"),
    "reserved label": (
        {"spec.template.metadata.labels": {"falcon.dev/job": "x"}},
        "spec.template.metadata.labels",
        "remove them",
    ),
    "reserved annotation": (
        {"spec.template.metadata.annotations": {"falcon.dev/x": "y"}},
        "spec.template.metadata.annotations",
        "remove them",
    ),
    # -- detection, mitigation, recovery
    "verify of 0 %": ({"spec.detection": {"verifyPercent": 0}}, "spec.detection.verifyPercent", "than or equal to 1"),
    "suspicion of 100 %": (
        {"spec.detection": {"suspicionPercent": 100}},
        "spec.detection.suspicionPercent",
        "greater than or equal to 101",
    ),
    "median of 50 %": (
        {"spec.detection": {"medianPercent": 50}},
        "spec.detection.medianPercent",
        "greater than or equal to 101",
    ),
    "median as a float": ({"spec.detection": {"medianPercent": 1.5}}, "spec.detection.medianPercent", "type integer"),
    "no iteration in a row": (
        {"spec.detection": {"consecutiveIterations": 0}},
        "spec.detection.consecutiveIterations",
        "greater than or equal to 1",
    ),
    "hang at once": ({"spec.detection": {"hangFactor": 1}}, "spec.detection.hangFactor", "greater than or equal to 2"),
    "unknown mode": ({"spec.mitigation": {"mode": "DryRun"}}, "spec.mitigation.mode", '"Enforce", "Observe", "Off"'),
    "unknown confidence": (
        {"spec.mitigation": {"confidence": "Medium"}},
        "spec.mitigation.confidence",
        '"High", "Low"',
    ),
    "no strategy": ({"spec.mitigation": {"strategies": []}}, "spec.mitigation.strategies", "at least 1 items"),
    "unknown strategy": (
        {"spec.mitigation": {"strategies": [{"type": "Restart"}]}},
        "spec.mitigation.strategies[0].type",
        ", ".join(f'"{facts.name}"' for facts in STRATEGY_TYPES),
    ),
    "strategy twice": (
        {"spec.mitigation": {"strategies": [{"type": "Ignore"}, {"type": "Ignore"}]}},
        "spec.mitigation.strategies",
        "remove the repeated entries",
    ),
    "strategy without type": (
        {"spec.mitigation": {"strategies": [{"overheadSeconds": 3}]}},
        "spec.mitigation.strategies[0].type",
        "Required value",
    ),
    "negative overhead": (
        {"spec.mitigation": {"strategies": [{"type": "Ignore", "overheadSeconds": -1}]}},
        "spec.mitigation.strategies[0].overheadSeconds",
        "greater than or equal to 0",
    ),
    "a rule without anything to look for": (
        {"spec.recovery": {"rules": [{"class": "GpuLost"}]}},
        "spec.recovery.rules[0]",
        "give pattern, exitCodes or both",
    ),
    "a rule with class and severity": (
        {"spec.recovery": {"rules": [{"pattern": "x", "class": "GpuLost", "severity": "SEV1"}]}},
        "spec.recovery.rules[0]",
        "give one of the two",
    ),
    "a rule with half a class": (
        {"spec.recovery": {"rules": [{"pattern": "x", "severity": "SEV1"}]}},
        "spec.recovery.rules[0]",
        "give one of the two",
    ),
    "an exit code that is none": (
        {"spec.recovery": {"rules": [{"exitCodes": [0], "class": "GpuLost"}]}},
        "spec.recovery.rules[0].exitCodes[0]",
        "greater than or equal to 1",
    ),
    "a long pattern": (
        {"spec.recovery": {"rules": [{"pattern": "x" * 201, "class": "GpuLost"}]}},
        "spec.recovery.rules[0].pattern",
        "Too long",
    ),
    "many rules": (
        {"spec.recovery": {"rules": [{"pattern": "x", "class": "GpuLost"}] * 17}},
        "spec.recovery.rules",
        "at most 16",
    ),
    "an unknown domain": (
        {"spec.recovery": {"rules": [{"pattern": "x", "severity": "SEV1", "domain": "Rack"}]}},
        "spec.recovery.rules[0].domain",
        '"GPU", "Link"',
    ),
    "negative share of results": (
        {"spec.anomalies": {"verifyEvery": -1}},
        "spec.anomalies.verifyEvery",
        "greater than or equal to 0",
    ),
    "too many retries": ({"spec.recovery": {"retries": 11}}, "spec.recovery.retries", "less than or equal to 10"),
    "a standby of another kind": (
        {"spec.recovery": {"standby": "Yes"}},
        "spec.recovery.standby",
        '"Imports", "Processes"',
    ),
    "window without unit": ({"spec.recovery": {"window": "3600"}}, "spec.recovery.window", "write for example 1h"),
    "window in days": ({"spec.recovery": {"window": "2d"}}, "spec.recovery.window", "write for example 1h"),
    "empty window": ({"spec.recovery": {"window": ""}}, "spec.recovery.window", "write for example 1h"),
    "short window": ({"spec.recovery": {"window": "59s"}}, "spec.recovery.window", "from 1m to 168h"),
    "long window": ({"spec.recovery": {"window": "169h"}}, "spec.recovery.window", "from 1m to 168h"),
    "long wait for an outage": ({"spec.recovery": {"outageWait": "169h"}}, "spec.recovery.outageWait", "up to 168h"),
    "wait without unit": ({"spec.recovery": {"outageWait": "0"}}, "spec.recovery.outageWait", "0s not to wait"),
    # -- what a later release brings
    "minReplicas at the top": ({"spec.minReplicas": 2}, "spec.minReplicas", "set spec.elastic.minReplicas"),
    "weight": ({"spec.weight": "1.0"}, "spec.weight", LATER),
    # -- elastic jobs
    "an elastic job without a least size": ({"spec.elastic": {}}, "spec.elastic.minReplicas", "Required value"),
    "a least size above replicas": ({"spec.elastic": {"minReplicas": 64}}, "spec.elastic", "at most spec.replicas"),
    "a most size below replicas": (
        {"spec.elastic": {"minReplicas": 1, "maxReplicas": 1}},
        "spec.elastic",
        "at least spec.replicas",
    ),
    "sizes without replicas": (
        {"spec.elastic": {"minReplicas": 1, "sizes": [1]}},
        "spec.elastic",
        "sizes must contain spec.replicas",
    ),
    "sizes out of order": (
        {"spec.elastic": {"minReplicas": 1, "maxReplicas": 4, "sizes": [4, 2]}},
        "spec.elastic",
        "sizes must be ascending",
    ),
    "sizes beyond the bounds": (
        {"spec.elastic": {"minReplicas": 1, "sizes": [2, 64]}},
        "spec.elastic",
        "from minReplicas to maxReplicas",
    ),
    "sizes that the layout cannot have": (
        {"spec.elastic": {"minReplicas": 3, "sizes": [3, 4]}, "spec.parallelism": {"pipeline": 32}},
        "spec.elastic",
        "must be a multiple of tensor x context x expert x pipeline",
    ),
    "a size twice": ({"spec.elastic": {"minReplicas": 1, "sizes": [2, 2]}}, "spec.elastic.sizes", "Duplicate value"),
    # -- the rest
    "checkpoints at once": (
        {"spec.checkpoint": {"intervalSeconds": 0}},
        "spec.checkpoint.intervalSeconds",
        "greater than or equal to 1",
    ),
    "checkpoints by a duration": (
        {"spec.checkpoint": {"intervalSeconds": "10m"}},
        "spec.checkpoint.intervalSeconds",
        "must be of type integer",
    ),
    "memory with a space": ({"spec.checkpoint": {"memory": "8 Gi"}}, "spec.checkpoint.memory", "write for example 8Gi"),
    "memory by an exponent": ({"spec.checkpoint": {"memory": "9e99"}}, "spec.checkpoint.memory", "for example 8Gi"),
    "memory in milli": ({"spec.checkpoint": {"memory": "8m"}}, "spec.checkpoint.memory", "write for example 8Gi"),
    "a folder without its copy": (
        {"spec.checkpoint": {"directory": {"path": "/ckpt", "memory": "1Gi"}}},
        "spec.checkpoint.directory.copyTo",
        "Required value",
    ),
    "a folder by half a path": (
        {"spec.checkpoint": {"directory": {"path": "ckpt", "memory": "1Gi", "copyTo": "/data"}}},
        "spec.checkpoint.directory.path",
        "write for example /checkpoints",
    ),
    "copies without a volume's path": (
        {"spec.checkpoint": {"directory": {"path": "/ckpt", "memory": "1Gi", "copyTo": "data"}}},
        "spec.checkpoint.directory.copyTo",
        "write for example /data/run-1",
    ),
    "a bandwidth in words": (
        {"spec.checkpoint": {"directory": {**DIRECTORY, "bandwidth": "500M/s"}}},
        "spec.checkpoint.directory.bandwidth",
        "write for example 500M",
    ),
    "memory as a number": ({"spec.checkpoint": {"memory": 8}}, "spec.checkpoint.memory", "must be of type string"),
    "pool without name": ({"spec.warmPoolRef": {}}, "spec.warmPoolRef.name", "Required value"),
    "pool as text": ({"spec.warmPoolRef": "spares"}, "spec.warmPoolRef", "must be of type object"),
    "suspend as text": ({"spec.suspend": "yes"}, "spec.suspend", "must be of type boolean"),
    "no time to run": ({"spec.activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "greater than or equal to 1"),
    "negative ttl": (
        {"spec.ttlSecondsAfterFinished": -1},
        "spec.ttlSecondsAfterFinished",
        "greater than or equal to 0",
    ),
    "no time to place": ({"spec.schedulingDeadlineSeconds": 5}, "spec.schedulingDeadlineSeconds", "or equal to 10"),
    "name too long": ({"metadata.name": "a" * 51}, "metadata.name", "at most 50 lower-case letters"),
    "name with a dot": ({"metadata.name": "gpt.2"}, "metadata.name", "at most 50 lower-case letters"),
    "name with a digit first": ({"metadata.name": "2gpt"}, "metadata.name", "beginning with a letter"),
}

GOOD: dict[str, Changes] = {
    "as small as can be": {"spec.procsPerReplica": REMOVED},
    "the largest": {"spec.replicas": 4096, "spec.procsPerReplica": 128, "spec.parallelism": {"tensor": 4096}},
    "every dimension": {"spec.parallelism": {"tensor": 2, "context": 2, "expert": 2, "pipeline": 2}},
    "an elastic job": {"spec.elastic": {"minReplicas": 2, "maxReplicas": 8, "sizes": [2, 4, 8]}},
    "a launcher of its own": {"spec.launcher": "Own", f"{TRAINER}.command": ["torchrun", "train.py"]},
    "a folder in memory": {"spec.checkpoint": {"directory": {**DIRECTORY, "bandwidth": "500M"}}},
    "memory for checkpoints": {"spec.checkpoint": {"memory": "1.5Gi", "intervalSeconds": 10}},
    "a named container": {f"{POD}.containers.1": SIDECAR, "spec.container": "trainer"},
    "a sidecar's own env": {
        f"{POD}.containers.1": {**SIDECAR, "env": [{"name": "LD_PRELOAD", "value": "libx.so"}]},
        "spec.container": "trainer",
    },
    "libraries that are loaded before ours": {f"{TRAINER}.env": [{"name": "LD_PRELOAD", "value": "libx.so"}]},
    "resources of the injected containers": {
        "spec.injected": {
            "agent": {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"ephemeral-storage": "1Gi"}}},
            "install": {"resources": {"limits": {"cpu": "500m"}}},
        }
    },
    "unknown pod fields": {f"{POD}.fieldOfTomorrow": {"a": 1}, f"{TRAINER}.anotherField": [1, 2]},
    "a full pod": {
        f"{POD}.restartPolicy": "Never",
        f"{POD}.nodeSelector": {"gpu": "h200"},
        f"{POD}.tolerations": [{"key": "gpu", "operator": "Exists"}],
        f"{POD}.schedulerName": "volcano",
        f"{POD}.hostNetwork": True,
        f"{POD}.initContainers": [{"name": "fetch", "image": "x", "restartPolicy": "Always"}],
        f"{POD}.volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        f"{TRAINER}.volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/falconry"}],
        f"{TRAINER}.env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "RANKS", "value": "4"}],
        "spec.template.metadata": {
            "labels": {"kueue.x-k8s.io/queue-name": "team"},
            "annotations": {"a": "b"},
            "creationTimestamp": None,
        },
    },
    "every strategy": {
        "spec.mitigation": {
            "mode": "Observe",
            "strategies": [
                {"type": "ReplaceNode", "overheadSeconds": 60},
                {"type": "Ignore"},
                {"type": "SwapNodes"},
                {"type": "AdjustMicrobatches"},
            ],
        }
    },
    "no interference": {"spec.mitigation": {"mode": "Off"}},
    "a diagnosis suffices": {"spec.mitigation": {"confidence": "Low"}},
    "rules": {
        "spec.recovery": {
            "rules": [
                {"pattern": "license server", "severity": "SEV3", "domain": "Program", "remedy": "Wait."},
                {"exitCodes": [42], "class": "StorageUnavailable"},
            ]
        }
    },
    "windows": {"spec.recovery": {"restarts": 0, "window": "1h30m", "outageWait": "0s"}},
    "checkpoints": {"spec.checkpoint": {"intervalSeconds": 1800}},
    "the longest name": {"metadata.name": "a" * 50},
    "suspended": {"spec.suspend": True, "spec.ttlSecondsAfterFinished": 0, "spec.activeDeadlineSeconds": 60},
}


def create(api: ApiServer, changes: Changes) -> tuple[int, str, dict[str, Any]]:
    """Return what ``kubectl create`` answers to a server dry run: exit status, stderr, the object as stored."""
    manifest = json.dumps(changed(TRAINING_JOB, changes))
    done = api.run("kubectl", "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=manifest)
    return done.returncode, done.stderr, json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.mark.parametrize(("changes", "field", "remedy"), BAD.values(), ids=BAD.keys())
def test_a_bad_spec_is_refused_with_field_and_remedy(api: ApiServer, changes: Changes, field: str, remedy: str) -> None:
    status, stderr, _ = create(api, changes)
    assert status != 0, "the server took it"
    assert field in stderr
    assert remedy in stderr


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_a_good_spec_is_taken_as_it_is(api: ApiServer, changes: Changes) -> None:
    status, stderr, stored = create(api, changes)
    assert status == 0, stderr
    assert stored["spec"]["template"] == changed(TRAINING_JOB, changes)["spec"]["template"]


def test_defaults_are_those_of_the_typed_api(api: ApiServer) -> None:
    """The schema's defaults and api.py's are written twice; a job that says nothing must read the same through both."""
    given = changed(TRAINING_JOB, {"spec.procsPerReplica": REMOVED})["spec"]
    _, _, stored = create(api, {"spec.procsPerReplica": REMOVED})
    assert msgspec.convert(stored["spec"], TrainingJobSpec) == msgspec.convert(given, TrainingJobSpec)
    optional = {
        "container",
        "elastic",
        "warmPoolRef",
        "checkpoint",
        "injected",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    }
    assert {*stored["spec"], *optional} == {field.encode_name for field in msgspec.structs.fields(TrainingJobSpec)}


def test_off_is_a_word_and_not_a_boolean(api: ApiServer) -> None:
    """YAML reads a bare Off as false: the refusal names the field, and the field's description says to quote it."""
    manifest = changed(TRAINING_JOB, {"spec.mitigation": {"mode": "Off"}})
    quoted = json.dumps(manifest)
    bare = quoted.replace('"Off"', "Off")  # JSON is YAML
    assert api.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=quoted).returncode == 0
    refused = api.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=bare)
    assert "spec.mitigation.mode" in refused.stderr
    said = api.ok("kubectl", "explain", "trainingjob.spec.mitigation.mode")
    assert 'mode: "Off"' in " ".join(said.split())
