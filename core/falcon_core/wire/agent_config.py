"""Define what the operator hands to the agent of a pod when it makes the pod, as JSON in one environment variable.

What only the kubelet knows (the pod's name, uid and node) has variables of its own, by the downward API. What changes
while the pod lives comes by the bus (``wire.reporting``). The launcher, which has no JSON library, reads its command
line. What a rank reads stays in the trainer's environment, where the user's script finds it as well.

A pod has the agent's image and this variable from one operator. Where an administrator mixes releases, a field that is
missing has its default, and a field that is set and that the agent does not know is refused by name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from falcon_core.wire.keys import JobKey
from falcon_core.wire.saves.checkpoint import CHECKPOINT_DIR, COPIES_DIR

VARIABLE = "FALCON_AGENT_CONFIG"
Text = Annotated[str, msgspec.Meta(min_length=1)]
Address = Annotated[str, msgspec.Meta(pattern=r"^[^/]+:[0-9]+$")]  # host:port
Count = Annotated[int, msgspec.Meta(ge=0)]


class AgentConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The job to which a pod belongs, and what its spec asks of the agent."""

    namespace: Text
    job: Text  # name of the TrainingJob
    job_uid: Text
    procs: Annotated[int, msgspec.Meta(ge=1)] = 1  # ranks of the pod
    gateways: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1)]
    gateway_tls_dir: Text  # with ca.crt, jobs-ca.crt, tls.crt and tls.key
    run_dir: Text  # the folder that agent and launcher share (wire.launcher)
    checkpoint_dir: str = CHECKPOINT_DIR
    checkpoint_bytes: Count = 0  # memory of the pod for checkpoints; 0: none
    copies_dir: str = COPIES_DIR
    copies_bytes: Count = 0  # likewise, for copies of another pod's checkpoints
    reads_gpus: bool = False  # the container sees the node's GPUs, and the pod has all of them
    cpu_only: bool = False  # the pod asks for no device, so that its ranks compute on their own threads
    copies_interface: str = ""  # over which copies are sent; "": the pod's own address

    @property
    def key(self) -> JobKey:
        """Return the job's identity on the bus."""
        return JobKey(self.namespace, self.job, self.job_uid)


def encode_config(config: AgentConfig) -> str:
    return msgspec.json.encode(config).decode()


def decode_config(text: str | bytes) -> AgentConfig:
    """Return the config in the variable. Raises ``msgspec.DecodeError``, which names the field."""
    return msgspec.json.decode(text, type=AgentConfig)
