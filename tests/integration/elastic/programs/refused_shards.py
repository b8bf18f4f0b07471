"""Make a group for a model that it may refuse, and print why: ``refused_shards.py CASE``. Without a launcher.

A model that it takes is trained for two steps; then "Accepted" is printed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import falcon_torch.elastic
from falcon_torch.elastic.sharding import ShardedGroup

CASE = sys.argv[1]


def build(mesh: DeviceMesh) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    more: dict[str, Any] = {}
    if CASE == "mixed precision":
        more["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if CASE == "resharded to some":
        more["reshard_after_forward"] = 2
    if CASE == "two meshes":
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicas", "shards"))
    fully_shard(model[0], mesh=mesh, **more)
    if CASE != "not sharded":
        fully_shard(model, mesh=mesh)
    if CASE == "a hook":
        model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    other = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD((other if CASE == "another optimizer" else model).parameters(), lr=0.1)
    return model if CASE == "no optimizer" else (model, optimizer)


def main() -> None:
    if CASE == "in Group":
        dist.init_process_group("gloo")
        model, optimizer = build(init_device_mesh("cpu", (2,)))
        falcon_torch.elastic.Group(model, optimizer, micro_batches=2)
    group = ShardedGroup(build, micro_batches=1 if CASE == "few micro-batches" else 4)
    for _ in group.steps(2):
        for done, number in enumerate(group.micro_batches()):
            values = torch.full((1, 2), float(number))
            if CASE == "other passes" and done == 1:
                group.model(values)
            group.model(values).sum().backward()


try:
    main()
except (ValueError, RuntimeError) as error:
    print(error)
else:
    print("Accepted")
