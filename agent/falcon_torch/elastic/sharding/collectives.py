"""Make the collective calls of FSDP's forward and backward passes, so that a lost rank holds none of them up.

FSDP calls from hooks inside the script's passes, and waits there. A call that is given up raises no error there: it
leaves zeros, the pass goes on to its end with worthless values and makes no further call, and the group throws away
what it has computed. So no error has to find its way through the script's and autograd's code.

A rank that has fewer micro-batches than others makes the calls of its first pass once more without computing: it gives
its parameters, and gets the sums of the others' gradients.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Tuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from falcon_torch.elastic.process_group import BrokenError

_SAME = (
    "let each micro-batch run one forward and one backward pass through the same modules, and call neither "
    "set_requires_gradient_sync() nor set_reshard_after_backward() nor unshard()"
)


class _Call(NamedTuple):
    """A call of the pass that may be repeated."""

    values: torch.Tensor  # of this rank's parameters; empty: the call reduces gradients
    reduced: torch.Tensor  # this rank's part of the reduced gradients; empty: the call gathers parameters


class Collectives:
    """The calls of all modules of one model."""

    def __init__(self, group: Any, model: torch.nn.Module) -> None:
        """Take over the calls of a model. Its gradients are sums from now on, not averages.

        ``group``: has ``size``, ``gather`` and ``reduce``; the two raise BrokenError.
        """
        self._group, self._model = group, model
        self.broken: BrokenError | None = None  # what the first call that was given up has raised
        self._made: List[Tuple[str, int]] = []  # kinds and sizes of the calls of the present pass
        self._usual: List[Tuple[str, int]] | None = None  # those of the first pass
        self._calls: List[_Call] = []  # of the attempt's first pass
        self._keeps = False  # the present pass is to be repeated
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_AllGather(self))
                module.set_custom_reduce_scatter(_ReduceScatter(self))
                # In a group of one FSDP divides twice by any other factor.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def begin(self, *, repeats: bool) -> None:
        """Begin an attempt at a step. ``repeats``: the calls of its first pass are made once more at its end."""
        self._made, self._calls, self._keeps = [], [], repeats
        for parameter in self._model.parameters():
            parameter.grad = None

    def end_pass(self) -> None:
        """Note that a micro-batch is computed.

        Raises RuntimeError where it made other calls than the first one: members would wait for each other forever.
        """
        self._keeps = False
        made, self._made = self._made, []
        if self.broken is None:
            self._usual = self._usual or made
            if made != self._usual:
                raise RuntimeError(f"{len(made)} collective calls in a micro-batch after {len(self._usual)}: {_SAME}")

    def repeat(self) -> None:
        """Make the calls of the attempt's first pass once more, and add what the others have computed to the gradients.

        Raises BrokenError.
        """
        calls, self._calls = self._calls, []
        self._check_gradients(calls)
        for values, reduced in calls:
            if values.numel():
                self._group.gather(values.new_empty(values.numel() * self._group.size), values)
            else:
                more = torch.empty_like(reduced)
                self._group.reduce(more, reduced.new_zeros(reduced.numel() * self._group.size))
                # The parameters' gradients are views of what the attempt's first pass has reduced.
                reduced += more

    def gather(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Fill ``output`` with the values of all members, or with zeros."""
        self._made.append(("gather", values.numel()))
        if self._keeps:
            self._calls.append(_Call(values.clone(), values.new_empty(0)))
        self._call(self._group.gather, output, values)

    def reduce(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Fill ``output`` with this member's part of the sum of all values, or with zeros."""
        self._made.append(("reduce", values.numel()))
        if self._keeps:
            self._calls.append(_Call(values.new_empty(0), output))
        self._call(self._group.reduce, output, values)

    def _call(
        self, call: Callable[[torch.Tensor, torch.Tensor], None], output: torch.Tensor, values: torch.Tensor
    ) -> None:
        if self.broken is None:
            try:
                call(output, values)
                return
            except BrokenError as error:
                self.broken = error
        output.zero_()

    def _check_gradients(self, calls: List[_Call]) -> None:
        """Raise RuntimeError for gradients that are no views of what was reduced."""
        storages = {reduced.untyped_storage().data_ptr() for _, reduced in calls if reduced.numel()}
        for name, parameter in self._model.named_parameters():
            gradient = parameter.grad
            local: Any = gradient.to_local() if gradient is not None else None
            if local is not None and local.numel() and local.untyped_storage().data_ptr() not in storages:
                raise RuntimeError(f"the gradient of {name} is not where FSDP reduced it: leave gradients alone")


class _AllGather(DefaultAllGather):  # type: ignore[misc]
    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        self._collectives.gather(output_tensor, input_tensor)


class _ReduceScatter(DefaultReduceScatter):  # type: ignore[misc]
    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        self._collectives.reduce(output_tensor, input_tensor)
