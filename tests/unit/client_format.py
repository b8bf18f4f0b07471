"""Modules of ``falcon_torch`` that need no PyTorch, without their package, which does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[2] / "agent" / "falcon_torch"


def _load(name: str) -> ModuleType:
    path = PACKAGE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"client_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


interruption = _load("interruption")
sys.modules.setdefault("falcon_torch.interruption", interruption)  # found by its name, without the package
client = _load("store/format")  # the layout of checkpoints
agreement = _load("agreement")
sys.modules.setdefault("falcon_torch.agent_file", _load("agent_file"))
microbatch_report = _load("microbatch_report")
elastic_roster = _load("elastic/roster")
sys.modules.setdefault("falcon_torch.elastic.roster", elastic_roster)
elastic_group_report = _load("elastic/group_report")
elastic_meeting = _load("elastic/meeting")
sys.modules.setdefault("falcon_torch.elastic.meeting", elastic_meeting)
elastic_attendance = _load("elastic/attendance")
sys.modules.setdefault("falcon_torch.elastic.attendance", elastic_attendance)
elastic_refusals = _load("elastic/refusals")
elastic_dealing = _load("elastic/dealing")
elastic_versions = _load("elastic/sharding/versions")
