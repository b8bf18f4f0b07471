"""Keep the gradients of a step in segments that are reduced one after the other, each from a copy."""

from __future__ import annotations

from typing import List

import torch

SEGMENT_BYTES = 32 << 20


class Gradients:
    """The gradients of a model's parameters.

    ``reduced`` holds the segments' sums over all ranks until the next exchange begins: a member that has lost the
    connection in the last segment gets them from one that has them. It takes the memory of the gradients once more.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._segments: List[List[torch.Tensor]] = []
        size = 0
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if not self._segments or self._segments[-1][0].dtype != parameter.dtype or size >= SEGMENT_BYTES:
                self._segments.append([])
                size = 0
            self._segments[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        self.reduced: List[torch.Tensor] = [self.empty(number) for number in range(len(self._segments))]

    def __len__(self) -> int:
        return len(self._segments)

    def forget(self) -> None:
        """Begin a step: no parameter has a gradient."""
        for parameter in self._parameters():
            parameter.grad = None

    def empty(self, segment: int) -> torch.Tensor:
        """Return a flat tensor for a segment, of zeros."""
        parameters = self._segments[segment]
        return torch.zeros(sum(each.numel() for each in parameters), dtype=parameters[0].dtype)

    def copy(self, segment: int) -> torch.Tensor:
        """Return a segment of this rank's own sums, flat. A parameter without a gradient counts as zero."""
        flat = self.empty(segment)
        for parameter, part in self._parts(segment, flat):
            if parameter.grad is not None:
                part.copy_(parameter.grad)
        return flat

    def commit(self) -> None:
        """Give every parameter its reduced gradient."""
        for number in range(len(self._segments)):
            for parameter, part in self._parts(number, self.reduced[number]):
                parameter.grad = part.clone()

    def _parameters(self) -> List[torch.Tensor]:
        return [parameter for segment in self._segments for parameter in segment]

    def _parts(self, segment: int, flat: torch.Tensor) -> List[tuple[torch.Tensor, torch.Tensor]]:
        parameters = self._segments[segment]
        parts = flat.split([each.numel() for each in parameters])
        return [(each, part.view_as(each)) for each, part in zip(parameters, parts)]
