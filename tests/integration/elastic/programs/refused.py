"""Make a group for a model that it may refuse, and print why: ``refused.py CASE``. Without a launcher.

A model that it takes is trained for two steps; then "Accepted" is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import falcon_torch.elastic


def wrapped(**more: Any) -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)), **more)


def hooked() -> torch.nn.Module:
    model = wrapped()
    model.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
    return model


def ignoring() -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight"])
    return DistributedDataParallel(module)


def twice() -> torch.nn.Module:
    return torch.nn.Sequential(wrapped(), wrapped())


kept: list[torch.nn.Module] = []


def unwrapped() -> torch.nn.Module:
    kept.append(wrapped())
    module: torch.nn.Module = kept[0].module
    return module


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "a wrapped model": wrapped,
    "a compiled model": lambda: torch.compile(wrapped(), backend="eager"),
    "a plain model": lambda: torch.nn.Linear(2, 1),
    "another group": lambda: wrapped(process_group=dist.new_group([0])),
    "a hook": hooked,
    "ignored parameters": ignoring,
    "two wrappers": twice,
    "the module alone": unwrapped,
}
falcon_torch.elastic.init_process_group()
model = MODELS[sys.argv[1]]()
try:
    group = falcon_torch.elastic.Group(model, micro_batches=2)
except ValueError as error:
    print(error)
else:
    for _ in group.steps(2):
        for number in group.micro_batches():
            model(torch.full((1, 2), float(number))).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    print("Accepted")
