"""Keep what ranks exchange in a step in segments, one after the other: gradients, and the model's buffers.

Each segment is exchanged from a copy, so it is exchanged or untouched, and never half.
"""

from __future__ import annotations

from typing import Any, List, Tuple

import torch

SEGMENT_BYTES = 32 << 20


def check_exchangeable(model: torch.nn.Module) -> None:
    """Raise ValueError for a model on another device than the CPU, or with sharded parameters or sparse gradients."""
    for name, parameter in model.named_parameters():
        # ``DTensor`` itself is not in every PyTorch, and takes seconds to import.
        if any(each.__name__ == "DTensor" for each in type(parameter).__mro__):
            remedy = "pass a function that builds it to falcon_torch.elastic.sharding.ShardedGroup"
            raise ValueError(f"the model's parameter {name} is sharded (fully_shard): {remedy}")
    if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError("groups that change in living processes exchange gradients on CPUs only")
    for name, module in model.named_modules():
        is_embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        if is_embedding and module.sparse and module.weight.requires_grad:
            layer = f"the model's layer {name}" if name else "the model"
            reason = "has sparse gradients, which the group cannot exchange"
            raise ValueError(f"{layer} {reason}: make it with sparse=False")


class Gradients:
    """The gradients of a model's parameters, in segments of one type, and first of all its buffers, if they are wanted.

    A segment of gradients ends with a number for each parameter, which is above 0 where a rank has a gradient for it.
    ``reduced`` holds the exchanged segments until the next exchange begins: a member that has lost the connection in
    the last segment gets them from one that has them. It takes the memory of gradients and buffers once more.
    """

    def __init__(self, model: torch.nn.Module, *, divisor: int = 1, buffers: bool = False) -> None:
        """Divide the parameters into segments.

        Args:
            divisor: what each gradient is divided by.
            buffers: whether all members get the first member's buffers after each step.
        """
        self._divisor = divisor
        self._model = model
        self._segments: List[List[torch.Tensor]] = []  # parameters; none in that of the buffers
        size = 0
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if not self._segments or self._segments[-1][0].dtype != parameter.dtype or size >= SEGMENT_BYTES:
                self._segments.append([])
                size = 0
            self._segments[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        # Buffers come first: a member that is lost after them has left its gradients to the others anyway.
        if buffers and any(True for _ in model.buffers()):
            self._segments.insert(0, [])
        self.reduced: List[torch.Tensor] = [self.empty(number) for number in range(len(self._segments))]

    def __len__(self) -> int:
        return len(self._segments)

    def forget(self) -> None:
        """Begin a step: no parameter has a gradient."""
        for segment in self._segments:
            for parameter in segment:
                parameter.grad = None

    def empty(self, segment: int) -> torch.Tensor:
        """Return a flat tensor for a segment, of zeros."""
        parameters = self._segments[segment]
        if not parameters:
            return torch.zeros(sum(_size(buffer) for buffer in self._model.buffers()), dtype=torch.uint8)
        return torch.zeros(sum(each.numel() for each in parameters) + len(parameters), dtype=parameters[0].dtype)

    def exchange(self, segment: int, group: Any) -> None:
        """Exchange a segment with the other members of a group. Raises BrokenError; the segment is untouched then."""
        values = self.empty(segment)
        if self._segments[segment]:
            self._copy_gradients(segment, values)
            group.sum(values)
        else:
            for buffer, part in self._parts_of_buffers(values):
                part.copy_(buffer.detach().contiguous().flatten().view(torch.uint8))
            group.broadcast(values, 0)
        self.reduced[segment] = values

    def commit(self) -> None:
        """Give every parameter its gradient, and none where no rank has one; and every buffer its value."""
        for number, parameters in enumerate(self._segments):
            if parameters:
                used = self.reduced[number][-len(parameters) :].tolist()
                for parameter, part, ranks in zip(parameters, self._parts(number, self.reduced[number]), used):
                    parameter.grad = part.clone() if ranks else None
            else:
                self._commit_buffers(self.reduced[number])

    def _copy_gradients(self, segment: int, values: torch.Tensor) -> None:
        parameters = self._segments[segment]
        used = values[-len(parameters) :]
        for index, (parameter, part) in enumerate(zip(parameters, self._parts(segment, values))):
            if parameter.grad is not None:
                part.copy_(parameter.grad).div_(self._divisor)
                used[index] = 1

    def _parts(self, segment: int, values: torch.Tensor) -> List[torch.Tensor]:
        """Return the part of each of a segment's parameters in a flat tensor, in the parameter's shape."""
        parameters = self._segments[segment]
        parts = values[: -len(parameters)].split([each.numel() for each in parameters])
        return [part.view_as(each) for each, part in zip(parameters, parts)]

    def _parts_of_buffers(self, values: torch.Tensor) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """Return each buffer with its bytes in a flat tensor."""
        # A module may have put another tensor in a buffer's place since.
        buffers = list(self._model.buffers())
        return list(zip(buffers, values.split([_size(buffer) for buffer in buffers])))

    def _commit_buffers(self, values: torch.Tensor) -> None:
        with torch.no_grad():
            for buffer, part in self._parts_of_buffers(values):
                # A part may not be aligned for this type: its clone is.
                buffer.copy_(part.clone().view(buffer.dtype).view_as(buffer))


def _size(tensor: torch.Tensor) -> int:
    """Return the size of a tensor [bytes]."""
    return int(tensor.numel() * tensor.element_size())
