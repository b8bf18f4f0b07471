"""Hold a sharded model with its optimizer: check that the group can exchange it, collect its state, and load it."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from falcon_torch.elastic.member_state import set_buffer
from falcon_torch.elastic.sharding.shards import Entry, Layout, packed

Build = Callable[[DeviceMesh], Tuple[Any, ...]]  # returns the model, its optimizer, and more with a state


class Training:
    """What the script's function has built for one group."""

    def __init__(self, build: Build, seed: int, size: int, index: int) -> None:
        """Build it for a member of a group, by its index. ``seed``: of the random numbers that are drawn.

        Raises ValueError for what the group cannot exchange.
        """
        self._mesh, self._size, self._index = init_device_mesh("cpu", (size,)), size, index
        # The numbers that the script draws later do not depend on how often ranks were lost.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built = build(self._mesh)
        if not isinstance(built, tuple) or len(built) < 2:
            raise ValueError("build() has to return the model, its optimizer, and what else has a state, in a tuple")
        self.model, self.optimizer = built[0], built[1]
        self.others: Tuple[Any, ...] = tuple(built[2:])
        self._parameters: Dict[str, Any] = dict(self.model.named_parameters())
        self._names = {parameter: name for name, parameter in self._parameters.items()}
        self._check()

    def _check(self) -> None:
        if not isinstance(self.model, FSDPModule):
            raise ValueError(
                "the model that build() returns is not sharded as a whole: call fully_shard(model, mesh=mesh)"
            )
        for name, parameter in self._parameters.items():
            if reason := self._foreign(parameter):
                raise ValueError(f"the model's parameter {name} {reason}")
        for name, module in self.model.named_modules():
            if isinstance(module, FSDPModule) and (reason := _hindrance(module)):
                raise ValueError(f"fully_shard of {f'the layer {name}' if name else 'the model'} has {reason}")
        for group in self.optimizer.param_groups:
            if any(parameter not in self._names for parameter in group["params"]):
                raise ValueError(
                    "the optimizer has parameters that are not the model's: let one model hold all of them"
                )

    def _foreign(self, parameter: Any) -> str:
        """Return why the group cannot exchange a parameter, and the remedy; "": it can."""
        if not isinstance(parameter, DTensor) or parameter.device_mesh != self._mesh:
            return (
                "is not sharded on the mesh that build() gets, and on no other (tensor-parallel, replicated): "
                "call fully_shard(..., mesh=mesh) alone"
            )
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            return "has a hook that runs when a gradient is accumulated: let the group step the optimizer"
        return ""

    # -- the state ---------------------------------------------------------------------------------------------------

    def layout(self) -> Layout:
        """Return the tensors that are cut among the ranks, in an order that all ranks have.

        Raises ValueError for a state of the optimizer that is cut in another way than its parameter.
        """
        return tuple(self._entry(name, key, tensor) for name, key, tensor in self._cut())

    def own_shard(self) -> torch.Tensor:
        """Return a copy of this member's shard [bytes]."""
        return packed([tensor.to_local() for _, _, tensor in self._cut()])

    def _cut(self) -> List[Tuple[str, str, Any]]:
        found: List[Tuple[str, str, Any]] = []
        for name, parameter in self._parameters.items():
            found.append((name, "", parameter))
            state = self.optimizer.state.get(parameter, {})
            found.extend((name, key, state[key]) for key in sorted(state) if isinstance(state[key], DTensor))
        return found

    def _entry(self, name: str, key: str, tensor: Any) -> Entry:
        parameter = self._parameters[name]
        if tensor.placements != parameter.placements or tensor.shape != parameter.shape:
            reason = f"the optimizer's {key} of {name} has another shape than the parameter"
            raise ValueError(f"{reason}: use an optimizer whose state is as large as its parameters, such as AdamW")
        return Entry(name, key, tuple(tensor.shape), tensor.dtype, parameter.placements[0].dim)

    def small(self) -> Dict[str, Any]:
        """Return a copy of the state that is not cut."""
        plain = {
            self._names[parameter]: {key: value for key, value in state.items() if not isinstance(value, DTensor)}
            for parameter, state in self.optimizer.state.items()
        }
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        buffers = {name: buffer.detach() for name, buffer in self.model.named_buffers()}
        others = [other.state_dict() for other in self.others]
        return copy.deepcopy({"plain": plain, "groups": groups, "buffers": buffers, "others": others})

    def load_small(self, small: Dict[str, Any]) -> None:
        """Load what ``small`` has returned."""
        small = copy.deepcopy(small)
        for other, state in zip(self.others, small["others"]):
            other.load_state_dict(state)
        # A scheduler that is made changes the groups of its optimizer.
        for group, values in zip(self.optimizer.param_groups, small["groups"]):
            group.update(values)
        for name, state in small["plain"].items():
            self.optimizer.state[self._parameters[name]].update(state)
        for name, buffer in small["buffers"].items():
            set_buffer(self.model, name, buffer)

    def load(self, entry: Entry, whole: torch.Tensor) -> None:
        """Take this member's part of a whole tensor."""
        parameter = self._parameters[entry.parameter]
        target = parameter
        if entry.key:
            target = torch.empty_like(parameter.detach(), dtype=entry.dtype)
            self.optimizer.state[parameter][entry.key] = target
        with torch.no_grad():
            target.to_local().copy_(entry.cut(whole, self._size, self._index))

    def load_whole(self, state: Dict[str, Any]) -> None:
        """Load a whole state, as ``ShardedGroup.state`` returns it."""
        for name, tensors in state["tensors"].items():
            for key, whole in tensors.items():
                self.load(
                    Entry(name, key, tuple(whole.shape), whole.dtype, self._parameters[name].placements[0].dim), whole
                )
        self.load_small(state["small"])

    # -- gradients ---------------------------------------------------------------------------------------------------

    def divide_gradients(self, divisor: float) -> None:
        """Divide this member's part of each gradient."""
        for gradient in self._gradients():
            gradient.div_(divisor)

    def squares(self) -> float:
        """Return the sum of the squares of this member's part of the gradients."""
        return sum(float(gradient.double().square().sum()) for gradient in self._gradients())

    def _gradients(self) -> List[torch.Tensor]:
        found = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        return [gradient.to_local() for gradient in found]


def _hindrance(module: Any) -> str:
    """Return what the group does not do in a module that is sharded, and the remedy; "": it does everything."""
    state = module._get_fsdp_state()
    policy = state._mp_policy
    if policy.param_dtype is not None or policy.reduce_dtype is not None:
        return "a mixed precision policy, whose gradients are not kept where they are reduced: leave mp_policy out"
    for group in state._fsdp_param_groups:
        if group.post_forward_mesh_info not in (None, group.mesh_info):
            return "a number of ranks in reshard_after_forward: pass True or False"
    if len(state._fsdp_param_groups) > 1:
        return "parameters on several meshes: leave the meshes out of shard_placement_fn"
    return ""
