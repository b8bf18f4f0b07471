"""The layout of checkpoints as the client has it: the module alone, since its package needs PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FORMAT = Path(__file__).resolve().parents[2] / "agent" / "falcon_torch" / "format.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("checkpoint_format", FORMAT)
    if spec is None or spec.loader is None:
        raise ImportError(str(FORMAT))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


client = _load()
