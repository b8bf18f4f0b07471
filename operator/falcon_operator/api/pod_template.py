"""Describe the fields of a job's pod template that Falcon reads or rules out; all other fields pass through.

These structs are shapes for the definition. The operator keeps a template as its owner wrote it, and decodes none of
them. Fields that pass through are listed, so that immutability sees one exchanged for another (ADR 0020).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from falcon_operator.api.markers import cel, object_schema, schema

Name = Annotated[str, schema(minLength=1, maxLength=63)]
Word = Annotated[str, schema(maxLength=65536)]
_NOT_UNDER_FALCON = "self.all(k, !k.startsWith('falcon.dev/'))"


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A base class: camelCase in JSON."""


@object_schema(
    keeps_unknown=True, passed=("mountPropagation", "name", "readOnly", "recursiveReadOnly", "subPath", "subPathExpr")
)
class VolumeMount(Shape, frozen=True, kw_only=True):
    mount_path: Annotated[
        str,
        schema(
            cel(
                "self != '/falcon' && !self.startsWith('/falcon/') && !self.startsWith('//')",
                "mountPath: /falcon and what lies below it are Falcon's: mount the volume elsewhere",
            ),
            minLength=1,
            maxLength=1024,
        ),
    ]
    """Where the volume is mounted."""


Mounts = Annotated[list[VolumeMount], schema(list_type="map", keys=["mountPath"], maxItems=128)]


@object_schema(keeps_unknown=True, passed=("value", "valueFrom"))
class EnvironmentVariable(Shape, frozen=True, kw_only=True):
    name: Annotated[str, schema(minLength=1, maxLength=253)]
    """Name of the variable."""


_OF_ANY_CONTAINER = (
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicyRules",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "workingDir",
)


@object_schema(keeps_unknown=True, passed=(*_OF_ANY_CONTAINER, "args", "command", "env", "restartPolicy"))
class InitContainer(Shape, frozen=True, kw_only=True):
    name: Name
    """Name of the container, unique in the pod."""

    volume_mounts: Mounts = []
    """Mounts of the pod's volumes; /falcon and what lies below it are reserved."""


@object_schema(keeps_unknown=True, passed=_OF_ANY_CONTAINER)
class Container(Shape, frozen=True, kw_only=True):
    name: Name
    """Name of the container, unique in the pod."""

    command: Annotated[list[Word], schema(list_type="atomic", maxItems=256)] = []
    """The program and its first arguments; falcon-launch takes their place and runs them for each rank. Required for
    the container that trains."""

    args: Annotated[list[Word], schema(list_type="atomic", maxItems=1024)] = []
    """Further arguments of the command."""

    restart_policy: Annotated[str, schema(maxLength=32)] = ""
    """Never, or left out, for the container that trains; Always makes an init container a native sidecar."""

    env: Annotated[list[EnvironmentVariable], schema(list_type="map", keys=["name"], maxItems=512)] = []
    """Environment of the container. In the training container, the torchrun variables and FALCON_* are reserved;
    falcon-launch adds its own library to an LD_PRELOAD."""

    volume_mounts: Mounts = []
    """Mounts of the pod's volumes; /falcon and what lies below it are reserved."""


@object_schema(
    keeps_unknown=True,
    passed=(
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "glusterfs",
        "hostPath",
        "image",
        "iscsi",
        "nfs",
        "persistentVolumeClaim",
        "photonPersistentDisk",
        "portworxVolume",
        "projected",
        "quobyte",
        "rbd",
        "scaleIO",
        "secret",
        "storageos",
        "vsphereVolume",
    ),
)
class Volume(Shape, frozen=True, kw_only=True):
    name: Name
    """Name of the volume, unique in the pod."""


@object_schema(
    cel(
        "!has(self.nodeName) || self.nodeName == ''",
        "spec.template.spec.nodeName would pin every replica to one node: remove it and choose nodes by nodeSelector "
        "or affinity",
        ".nodeName",
    ),
    cel(
        "!has(self.hostname) || self.hostname == ''",
        "spec.template.spec.hostname is set by Falcon for each replica: remove it",
        ".hostname",
    ),
    cel(
        "!has(self.subdomain) || self.subdomain == ''",
        "spec.template.spec.subdomain is set by Falcon to the job's Service: remove it",
        ".subdomain",
    ),
    cel(
        "!has(self.activeDeadlineSeconds)",
        "spec.template.spec.activeDeadlineSeconds would look like a lost pod: remove it and set "
        "spec.activeDeadlineSeconds",
        ".activeDeadlineSeconds",
    ),
    cel(
        "self.containers.all(c, !c.name.startsWith('falcon-')) && (!has(self.initContainers) || "
        "self.initContainers.all(c, !c.name.startsWith('falcon-')))",
        "spec.template.spec.containers and initContainers: names beginning with falcon- belong to Falcon: rename the "
        "container",
    ),
    cel(
        "!has(self.volumes) || self.volumes.all(v, !v.name.startsWith('falcon-'))",
        "spec.template.spec.volumes: names beginning with falcon- belong to Falcon: rename the volume",
        ".volumes",
    ),
    keeps_unknown=True,
    passed=(
        "affinity",
        "automountServiceAccountToken",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostnameOverride",
        "imagePullSecrets",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "resources",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "schedulingGroup",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
    ),
)
class PodSpec(Shape, frozen=True, kw_only=True):
    restart_policy: Literal["Never"] = "Never"
    """Never, or left out: Falcon restarts the processes in their pod, and replaces the pod where that does not help."""

    node_name: Annotated[str, schema(maxLength=253)] = ""
    """Not allowed: choose nodes by nodeSelector or affinity."""

    hostname: Annotated[str, schema(maxLength=63)] = ""
    """Not allowed: set by Falcon for each replica."""

    subdomain: Annotated[str, schema(maxLength=63)] = ""
    """Not allowed: set by Falcon to the job's headless Service."""

    active_deadline_seconds: Annotated[int | None, schema(format="int64")] = None
    """Not allowed: use spec.activeDeadlineSeconds of the job."""

    volumes: Annotated[list[Volume], schema(list_type="map", keys=["name"], maxItems=64)] = []
    """Volumes of the pods; names beginning with falcon- are reserved."""

    init_containers: Annotated[list[InitContainer], schema(list_type="atomic", maxItems=16)] = []
    """Init containers and native sidecars of the pods; they run before the training container. Names beginning with
    falcon- are reserved."""

    containers: Annotated[list[Container], schema(list_type="map", keys=["name"], minItems=1, maxItems=16)]
    """The containers of the pods; that which spec.container names trains."""


@object_schema(keeps_unknown=True)
class PodMetadata(Shape, frozen=True, kw_only=True):
    labels: Annotated[
        dict[str, Annotated[str, schema(maxLength=63)]],
        schema(
            cel(_NOT_UNDER_FALCON, "spec.template.metadata.labels under falcon.dev/ are set by Falcon: remove them"),
            maxProperties=128,
        ),
    ] = {}
    """Labels for the pods. Queue and pod-group labels belong here."""

    annotations: Annotated[
        dict[str, Word],
        schema(
            cel(
                _NOT_UNDER_FALCON,
                "spec.template.metadata.annotations under falcon.dev/ are set by Falcon: remove them",
            ),
            maxProperties=128,
        ),
    ] = {}
    """Annotations for the pods."""


@object_schema(keeps_unknown=True)
class PodTemplate(Shape, frozen=True, kw_only=True):
    metadata: PodMetadata = PodMetadata()
    """Labels and annotations for the pods; keys under falcon.dev/ are Falcon's own."""

    spec: PodSpec
    """The pods' spec, as in `kubectl explain pod.spec`. Only the fields that Falcon reads or rules out are described
    here."""
