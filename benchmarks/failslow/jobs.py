"""The jobs that become slow: a small GPT whose state is in the pods' memory, and what it asks of Falcon."""

from __future__ import annotations

from typing import Final, Literal

from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import training_job, with_script

SCRIPT: Final = "remembering.py"
MANY: Final = 1_000_000
EVERY: Final = 20  # steps between two checkpoints
Layout = Literal["acts", "endures", "ring", "ring with standbys", "two a pod"]
RANKS: Final[dict[Layout, int]] = {"acts": 3, "endures": 3, "ring": 4, "ring with standbys": 4, "two a pod": 4}
SPARE: Final = {"key": "falcon.dev/spare", "operator": "Exists"}
_MEMORY: Final = {"memory": "64Mi", "copies": 1}
_IGNORE: Final = {"type": "Ignore"}


def manifest(namespace: Kubectl, layout: Layout) -> Json:
    """Return the job of a layout.

    ``acts``: three pods, and a node is left as soon as that pays. ``endures``: likewise, but a replacement is declared
    to cost ten minutes. ``ring``: four pods, which may exchange their roles; also with an
    interpreter that stands by beside each rank. ``two a pod``: two pods of two ranks.
    """
    procs = 2 if layout == "two a pod" else 1
    match layout:
        case "acts" | "two a pod":
            strategies = [_IGNORE, {"type": "ReplaceNode", "overheadSeconds": 10}]
        case "endures":
            strategies = [_IGNORE, {"type": "ReplaceNode", "overheadSeconds": 600}]
        case "ring" | "ring with standbys":
            strategies = [_IGNORE, {"type": "SwapNodes", "overheadSeconds": 10}]
    spec = {
        "checkpoint": _MEMORY,
        "mitigation": {"strategies": strategies},
        "detection": {"pauseBudget": "20%"},  # a job of the benchmark is not five minutes old
        "procsPerReplica": procs,
        **({} if layout.startswith("ring") else {"warmPoolRef": {"name": "spares"}}),
        **({"recovery": {"standby": "Imports"}} if layout == "ring with standbys" else {}),
    }
    made = training_job(layout.replace(" ", "-"), steps=MANY, replicas=RANKS[layout] // procs, spec=spec)
    if layout.startswith("ring"):  # the local cluster has four nodes for it, one of which is the spare
        made["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    return with_script(namespace, made, SCRIPT, "--steps", str(MANY), "--every", str(EVERY))
