"""Make a group for a model that it may refuse, and print why: ``refused.py CASE``. Without a launcher.

A model that it takes is trained for two steps; then "Accepted" is printed.
"""

from __future__ import annotations

import gc
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


def not_alone() -> torch.nn.Module:
    kept.append(wrapped())
    return wrapped()


def after_a_dropped_one() -> torch.nn.Module:
    gc.disable()  # the cycle is there when the group is made
    cycle: list[Any] = [wrapped()]
    cycle.append(cycle)
    return wrapped()


def embedding(kind: type[torch.nn.Embedding | torch.nn.EmbeddingBag]) -> torch.nn.Module:
    return DistributedDataParallel(torch.nn.Sequential(kind(5, 3, sparse=True), torch.nn.Linear(3, 1)))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "a wrapped model": wrapped,
    "a compiled model": lambda: torch.compile(wrapped(), backend="eager"),
    "a plain model": lambda: torch.nn.Linear(2, 1),
    "another group": lambda: wrapped(process_group=dist.new_group([0])),
    "a hook": hooked,
    "ignored parameters": ignoring,
    "two wrappers": twice,
    "the module alone": unwrapped,
    "a wrapper in others": wrapped,
    "a wrapper in a part of others": wrapped,
    "a wrapper in others of a plain model": lambda: torch.nn.Linear(2, 1),
    "another wrapper": not_alone,
    "another wrapper that was dropped": after_a_dropped_one,
    "a sparse embedding": lambda: embedding(torch.nn.Embedding),
    "a sparse bag": lambda: embedding(torch.nn.EmbeddingBag),
    "a plain sparse embedding": lambda: torch.nn.Embedding(5, 3, sparse=True),
}
OTHERS: dict[str, Callable[[], list[Any]]] = {
    "a wrapper in others": lambda: [torch.optim.SGD(model.parameters(), lr=0.1), wrapped()],
    "a wrapper in a part of others": lambda: [torch.nn.Sequential(wrapped())],
    "a wrapper in others of a plain model": lambda: [wrapped()],
}
falcon_torch.elastic.init_process_group()
case = sys.argv[1]
model = MODELS[case]()
try:
    group = falcon_torch.elastic.Group(model, *OTHERS.get(case, list)(), micro_batches=2)
except ValueError as error:
    print(error)
else:
    for _ in group.steps(2):
        for number in group.micro_batches():
            model(torch.full((1, 2), float(number))).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    print("Accepted")
