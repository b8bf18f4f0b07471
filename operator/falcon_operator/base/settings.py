"""Read the operator's settings from ``FALCON_*`` environment variables.

All problems are found at once, each with the variable's name and the remedy.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from falcon_core import environment
from falcon_core.errors.judge import platform_judge
from falcon_operator.api.common import GROUP, QUANTITY
from falcon_operator.api.trainingjob import InjectedSpec
from falcon_operator.base import spare_annotations
from falcon_operator.base.ports import OF_THE_IMAGE, PodSettings, RunAs

EXIT_CONFIG = environment.EXIT_CONFIG
LogLevel = Literal["debug", "info", "warning", "error"]
MOST_TABLE_BYTES = 32768
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class SettingsError(ValueError):
    """The error of settings that are missing or wrong, with a line for each problem."""


def _words(raw: object) -> object:
    """Split a string at commas. Any other value is a default and is returned as it is."""
    if not isinstance(raw, str):
        return raw
    return tuple(word for part in raw.split(",") if (word := part.strip()))


def _endpoints(raw: object) -> object:
    endpoints = _words(raw)
    if not isinstance(endpoints, tuple) or not endpoints:
        raise ValueError("write https://host:port, several separated by commas")
    for endpoint in endpoints:
        if not endpoint.startswith("https://") or ":" not in endpoint.removeprefix("https://"):
            raise ValueError(f"{endpoint!r} is not https://host:port: the operator's identity is its certificate")
    return endpoints


def _addresses(raw: object) -> object:
    """Split host:port, several separated by commas. Any other value is a default and is returned as it is."""
    return environment.addresses(raw) if isinstance(raw, str) else raw


def _boolean(raw: object) -> object:
    """Convert the two words that the chart writes. Raises ValueError for the other words that pydantic would take."""
    words = {"true": True, "false": False}
    if isinstance(raw, str) and raw.strip().lower() not in words:
        raise ValueError("write true or false")
    return words[raw.strip().lower()] if isinstance(raw, str) else raw


def _error_table(text: str) -> str:
    """Check what is laid over the table of error classes: every plan carries it. Raises ValueError."""
    if len(text.encode()) > MOST_TABLE_BYTES:
        raise ValueError(f"has {len(text.encode())} bytes; at most {MOST_TABLE_BYTES}: join patterns with |")
    platform_judge(text)
    return text


def _injected(raw: object) -> object:
    """Decode the resources of Falcon's containers in jobs' pods. Raises ValueError, which names what is wrong."""
    if not isinstance(raw, str):
        return raw
    try:
        decoded = msgspec.json.decode(raw, type=InjectedSpec)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    for container in (decoded.agent, decoded.install):
        for figures in (container.resources.requests, container.resources.limits):
            for name, figure in figures.items():
                if not re.fullmatch(QUANTITY, str(figure)):
                    raise ValueError(f"{name}: {figure!r} is not a quantity, such as 500m or 2Gi")
    return decoded


def _annotations(raw: object) -> object:
    """Decode the annotations of spares (JSON). Raises ValueError, which names the key that is wrong."""
    if not isinstance(raw, str):
        return raw
    try:
        decoded = msgspec.json.decode(raw, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    for key, value in decoded.items():
        if not re.fullmatch(spare_annotations.KEY, key) or key.startswith(f"{GROUP}/"):
            raise ValueError(f"{key!r} is not <domain>/<name>, such as karpenter.sh/do-not-disrupt, outside {GROUP}")
        if not re.fullmatch(spare_annotations.VALUE, value):
            raise ValueError(f"{key}: {value!r} is not 1 to 63 letters, digits, dots, dashes and underscores")
    return decoded


def _lower(raw: object) -> object:
    return raw.strip().lower() if isinstance(raw, str) else raw


def _run_as(raw: object) -> object:
    """Decode the user and group of Falcon's containers (JSON). Raises ValueError, which names what is wrong."""
    if not isinstance(raw, str):
        return raw
    try:
        decoded = msgspec.json.decode(raw, type=RunAs)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if decoded.run_as_user == 0:
        raise ValueError("runAsUser: 0 is root: name another user, or leave it out")
    return decoded


Text = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]


class Settings(BaseSettings):
    """The settings that the chart sets for the operator."""

    model_config = SettingsConfigDict(
        env_prefix=environment.PREFIX, env_ignore_empty=True, str_strip_whitespace=True, frozen=True
    )

    namespace: Text  # its own
    pod: Text
    identity: Annotated[str, Field(validate_default=True)] = ""  # in the Lease; the pod's name unless set
    etcd_endpoints: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_endpoints)]
    etcd_secret_prefix: Text
    etcd_managed: Annotated[bool, BeforeValidator(_boolean)] = True  # False: etcd and its authority belong to others
    etcd_selector: str = ""  # labels of etcd's pods in the operator's namespace; empty: it restarts none of them
    etcd_server_names: Annotated[Words, Field(validate_default=True)] = ()  # in the server certificate
    etcd_retention_seconds: Annotated[
        int | None, Field(ge=1, description="a whole number of seconds, as etcd's --auto-compaction-retention")
    ] = None  # None: not known
    gateways: Annotated[tuple[str, ...], NoDecode, BeforeValidator(environment.addresses)]  # for agents
    gateway_selector: Text  # labels of the gateways' pods in the operator's namespace
    # Of `-gateway-tls`, `-jobs-ca`, `-anomalies-tls`, and of `-ca` and `-tls` behind `-webhook` and `-metrics`.
    gateway_secret_prefix: Text
    anomaly_service: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_addresses)] = ()  # empty: there is none
    anomaly_models: str = ""  # the ConfigMap of its learned limits, in the operator's namespace; empty: it learns none
    webhook_configuration: str = ""  # a ValidatingWebhookConfiguration; empty: evictions are not judged
    webhook_names: Annotated[Words, Field(validate_default=True)] = ()  # by which the API server knows this operator
    webhook_port: Annotated[int, Field(ge=0, le=65_535, description="a whole number from 0 to 65535")] = 9443
    host_network_admitted: Annotated[bool, BeforeValidator(_boolean)] = True  # False: a NetworkPolicy keeps them off
    agent_image: Text
    agent_image_pull_policy: Annotated[PullPolicy, Field(description="one of Always, IfNotPresent, Never")] = (
        "IfNotPresent"
    )
    watch_namespaces: Words = ()  # empty: all
    errors: Annotated[str, AfterValidator(_error_table)] = ""  # laid over the table of error classes (YAML)
    departure_taints: Words = ()  # keys; the chart lists those of clouds and autoscalers
    # Key to value (JSON); set on nodes while they are spares
    spare_annotations: Annotated[dict[str, str], NoDecode, BeforeValidator(_annotations)] = {}
    # {agent: {resources: …}, install: {resources: …}} (JSON): the platform's figures for the containers of jobs
    injected: Annotated[InjectedSpec, NoDecode, BeforeValidator(_injected)] = InjectedSpec()
    # {runAsUser: …, runAsGroup: …} (JSON) of these containers and of the tests of nodes; what is left out is not set
    run_as: Annotated[RunAs, NoDecode, BeforeValidator(_run_as)] = OF_THE_IMAGE
    gpu_series: Annotated[bool, BeforeValidator(_boolean)] = False  # agents read the GPUs of their pods by NVML
    fence_limit: Annotated[int, Field(ge=0, le=1_000_000, description="a whole number from 0 to 1000000")] = 2
    fence_window_seconds: Annotated[
        int, Field(ge=1, le=31_536_000, description="a whole number from 1 to 31536000 (a year)")
    ] = 3600
    log_level: Annotated[LogLevel, BeforeValidator(_lower), Field(description="one of debug, info, warning, error")] = (
        "info"
    )
    metrics_port: Annotated[int, Field(ge=0, le=65_535, description="a whole number from 0 to 65535")] = 8080
    metrics_reader: str = ""  # the ClusterRole whose subjects alone may read /metrics, by TLS; empty: every client may
    metrics_names: Annotated[Words, Field(validate_default=True)] = ()  # by which its clients know this operator
    metrics_tls_port: Annotated[int, Field(ge=0, le=65_535, description="a whole number from 0 to 65535")] = 8444

    @field_validator("identity")
    @classmethod
    def _named_as_the_pod(cls, identity: str, info: ValidationInfo) -> str:
        return identity or str(info.data.get("pod", ""))

    @field_validator("etcd_server_names")
    @classmethod
    def _needed_for_the_certificate(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not names and info.data.get("etcd_managed", False):
            raise PydanticCustomError("missing", "the operator makes etcd's certificate")
        return names

    @field_validator("webhook_names")
    @classmethod
    def _needed_for_the_webhook(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not names and info.data.get("webhook_configuration"):
            raise PydanticCustomError("missing", "the operator makes the webhook's certificate")
        return names

    @field_validator("metrics_names")
    @classmethod
    def _needed_for_the_metrics(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not names and info.data.get("metrics_reader"):
            raise PydanticCustomError("missing", "the operator makes the certificate of its metrics")
        return names

    @property
    def pods(self) -> PodSettings:
        """Return the settings that every pod of a job needs."""
        return PodSettings(
            agent_image=self.agent_image,
            image_pull_policy=self.agent_image_pull_policy,
            gateways=",".join(self.gateways),
            host_network_admitted=self.host_network_admitted,
            error_overrides=self.errors,
            departure_taints=self.departure_taints,
            injected=self.injected,
            run_as=self.run_as,
            gpu_series=self.gpu_series,
        )

    @property
    def anomaly_names(self) -> tuple[str, ...]:
        """Return the host of the anomaly service, as its certificate has it; empty where there is no such service."""
        return tuple(address.rpartition(":")[0] for address in self.anomaly_service[:1])

    @property
    def gateway_names(self) -> tuple[str, ...]:
        """Return the hosts by which agents know the gateways: the names in the gateways' server certificate.

        The operator reaches each gateway by its pod's address, and expects the first of these names there.
        """
        return tuple(dict.fromkeys(gateway.rpartition(":")[0] for gateway in self.gateways))


def load() -> Settings:
    """Read the environment. Raises :class:`SettingsError`, which lists every problem."""
    try:
        return Settings.model_validate({})
    except ValidationError as error:
        wanted = {name: field.description for name, field in Settings.model_fields.items()}
        unset = "set it in the operator's Deployment (the chart does)"
        raise SettingsError(environment.describe(error.errors(), wanted, unset)) from None
