"""Read the agent's settings from the environment that the operator renders into the pod.

All problems are found at once, each with the variable's name and the remedy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from falcon_core import __version__, environment
from falcon_core.errors.judge import platform_judge
from falcon_core.wire.agent_config import VARIABLE, AgentConfig, decode_config

EXIT_CONFIG = environment.EXIT_CONFIG
CREDENTIALS = ("ca.crt", "tls.crt", "tls.key")
LogLevel = Literal["debug", "info", "warning", "error"]
_S = TypeVar("_S", bound=BaseSettings)


class SettingsError(ValueError):
    """The error of settings that are missing or wrong, with a line for each problem."""


def _decoded(raw: object) -> AgentConfig:
    """Decode what the operator hands over. Raises ValueError, which names the field and the remedy."""
    try:
        return decode_config(str(raw))
    except msgspec.DecodeError as error:
        raise ValueError(
            f"{error}: use an agent image of the operator's release (images.agent); this agent is of {__version__}"
        ) from error


def _with_certificate(config: AgentConfig) -> AgentConfig:
    folder = Path(config.gateway_tls_dir)
    missing = [name for name in CREDENTIALS if not (folder / name).exists()]
    if missing:
        raise ValueError(f"{folder}/{missing[0]} does not exist: is the job's Secret mounted there?")
    return config


Text = Annotated[str, Field(min_length=1)]


class Settings(BaseSettings):
    """The identity of this pod, and what the operator has handed over (``config``)."""

    model_config = SettingsConfigDict(
        env_prefix=environment.PREFIX,
        env_ignore_empty=True,
        str_strip_whitespace=True,
        frozen=True,
        arbitrary_types_allowed=True,
    )

    config: Annotated[
        AgentConfig,
        NoDecode,
        BeforeValidator(_decoded),
        AfterValidator(_with_certificate),
        Field(validation_alias=VARIABLE),
    ]
    pod: Text
    pod_uid: Text
    node: Text
    log_level: Annotated[LogLevel, Field(description="one of debug, info, warning, error")] = "info"


def _error_table(text: str) -> str:
    platform_judge(text)  # a TableError is a ValueError, which names the field and the remedy
    return text


class NodeSettings(BaseSettings):
    """The settings of the node's daemon, which the chart renders."""

    model_config = Settings.model_config

    node: Text
    sysfs: Path = Path("/sys")  # of the host
    pod_uid: str = ""  # its own, by which it finds the groups of all pods; without it no pod is named
    pod_logs: Path = Path("/var/log/pods")  # of the host
    account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # with token and ca.crt
    errors: Annotated[str, AfterValidator(_error_table)] = ""  # laid over the table of error classes (YAML)
    log_level: Annotated[LogLevel, Field(description="one of debug, info, warning, error")] = "info"


def load_settings() -> Settings:
    """Read the environment. Raises :class:`SettingsError`, which lists every problem."""
    return _load(Settings, f"the operator of this release ({__version__}) sets it; is this pod its?")


def load_node_settings() -> NodeSettings:
    """Read the environment of the node's daemon. Raises :class:`SettingsError`, which lists every problem."""
    return _load(NodeSettings, "the chart sets it (nodeAgent.enabled)")


def _load(kind: type[_S], unset: str) -> _S:
    try:
        return kind.model_validate({})
    except ValidationError as error:
        wanted = {name: field.description for name, field in kind.model_fields.items()}
        raise SettingsError(environment.describe(error.errors(), wanted, unset)) from None
