"""Make collective calls in PyTorch's default group, whose members change in the living process (PyTorch ≥ 2.15).

A call that waits for a member that is lost is given up as soon as the meeting says so, whether or not PyTorch has seen
it: a rank that has no connection to the lost one would wait for its time-out. What is given up may still write into its
tensor, so the caller makes another one for the next attempt.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta
from typing import Any, Callable, List

import torch
import torch.distributed as dist

from falcon_torch.ranks import is_elastic

RECONFIGURE_SECONDS = 30.0  # that the members of a new group take to connect; one of them may be lost meanwhile
TIMEOUT_SECONDS = 1800.0  # of a collective call
UUIDS = 1 << 20  # numbers of groups that are free for others
ALONE_UUIDS = 1 << 40  # of groups of one process
BROKEN_KEY = "falcon-elastic-broken"  # in the store, with a group's number: a member has seen it break
ALONE_KEY = "falcon-elastic-alone"  # in the store: how many such groups there have been


class BrokenError(Exception):
    """The group has lost a member, or is to be renewed."""


def is_supported() -> bool:
    """Check whether this PyTorch can change a group in a living process."""
    return dist.is_available() and hasattr(torch._C._distributed_c10d, "ReconfigureOptions")


class FixedProcessGroup:
    """The default group of a process that no launcher of this package has started: the loss of a member is an error."""

    def __init__(self) -> None:
        """Join the group that the environment names; without one this process is alone."""
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("gloo")
        is_alone = not dist.is_initialized()
        self.size: int = 1 if is_alone else dist.get_world_size()
        self.index: int = 0 if is_alone else dist.get_rank()
        self.wanted = self.size  # ranks of the whole job

    @staticmethod
    def begin_alone() -> None:
        """Make a group of this process alone, if there is none: DistributedDataParallel needs one."""
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def sum(self, values: torch.Tensor) -> None:
        """Replace the values by their sum over all members."""
        if self.size > 1:
            dist.all_reduce(values)

    def broadcast(self, values: torch.Tensor, source: int) -> None:
        """Replace the values by those of a member."""
        if self.size > 1:
            dist.broadcast(values, source)

    def gather(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Fill ``output`` [size * n] with the values [n] of all members."""
        dist.all_gather_into_tensor(output, values)

    def reduce(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Fill ``output`` [n] with this member's part of the sum of all values [size * n]."""
        dist.reduce_scatter_tensor(output, values)


class ProcessGroup:
    """The default group of this process, without members until the first ``change``."""

    def __init__(self, timeout_seconds: float) -> None:
        """Make it. ``timeout_seconds``: of a collective call whose members are all there.

        Raises RuntimeError where the script has made a default group.
        """
        if dist.is_initialized():
            raise RuntimeError(
                "the script has made a default process group, whose members cannot change: "
                "call falcon_torch.elastic.init_process_group() instead"
            )
        # What the first backward pass or optimizer step imports takes seconds, in which the others would wait.
        import torch._dynamo  # noqa: F401

        self.rank, self.wanted = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        timeout = timedelta(seconds=timeout_seconds)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("falcon-elastic", self.store),
            rank=self.rank,
            world_size=self.wanted,
            timeout=timeout,
            enable_reconfigure=True,
        )
        self._group: Any = dist.group.WORLD
        self._wake = threading.Event()
        self._is_over: Callable[[], bool] = lambda: False
        self._look_seconds: float | None = None
        self._began = 0.0  # the present call [monotonic seconds]

    @property
    def size(self) -> int:
        """Return the number of members."""
        return int(dist.get_world_size())

    def listen(self, is_over: Callable[[], bool], look_seconds: float | None = None) -> None:
        """Give calls up once ``is_over()``; ``wake`` says that it may have changed, or it is asked after some time."""
        self._is_over, self._look_seconds = is_over, look_seconds

    def waited_seconds(self) -> float:
        """Return how long the present call has lasted."""
        return time.monotonic() - self._began

    def announce_break(self, number: int) -> None:
        """Let members that see no error know that a group of this number is broken."""
        with contextlib.suppress(RuntimeError):  # the store is lost: so is the job
            self.store.set(f"{BROKEN_KEY}-{number}", "")

    def is_announced(self, number: int) -> bool:
        """Check whether a member has announced that the group of this number is broken."""
        try:
            return bool(self.store.check([f"{BROKEN_KEY}-{number}"]))
        except RuntimeError:
            return True

    def wake(self) -> None:
        """Let a call that waits look again."""
        self._wake.set()

    def handle(self) -> str:
        """Return by what the others find this process."""
        return str(self._group.get_reconfigure_handle())

    def begin_alone(self) -> None:
        """Make a group of this process alone. Raises BrokenError."""
        self._connect(ALONE_UUIDS + self.store.add(ALONE_KEY, 1), [self.handle()])

    def change(self, number: int, handles: List[str]) -> None:
        """Connect with the members of a new group. Raises BrokenError."""
        self._connect(UUIDS + number, handles)

    def _connect(self, uuid: int, handles: List[str]) -> None:
        options = torch._C._distributed_c10d.ReconfigureOptions()
        options.uuid, options.handles = uuid, handles
        options.timeout = timedelta(seconds=RECONFIGURE_SECONDS)
        try:
            self._group.reconfigure(options).wait()
        except RuntimeError as error:
            raise BrokenError(str(error)) from error

    def sum(self, values: torch.Tensor) -> None:
        """Replace the values by their sum over all members. Raises BrokenError."""
        self._run(dist.all_reduce, values)

    def broadcast(self, values: torch.Tensor, source: int) -> None:
        """Replace the values by those of a member. Raises BrokenError."""
        self._run(dist.broadcast, values, source)

    def gather(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Fill ``output`` [size * n] with the values [n] of all members. Raises BrokenError."""
        self._run(dist.all_gather_into_tensor, output, values)

    def reduce(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Fill ``output`` [n] with this member's part of the sum of all values [size * n]. Raises BrokenError."""
        # Gloo's own reduce-scatter cannot be watched: its work has no future. This one sends as much.
        parts = torch.empty_like(values)
        self._run(dist.all_to_all_single, parts, values)
        torch.sum(parts.view(self.size, -1), 0, out=output)

    def shift(self, output: torch.Tensor, values: torch.Tensor) -> None:
        """Give the values to the next member, and fill ``output`` with its predecessor's. Raises BrokenError."""
        size, index = self.size, int(dist.get_rank())
        given, got = [0] * size, [0] * size
        given[(index + 1) % size], got[(index - 1) % size] = values.numel(), output.numel()
        self._run(dist.all_to_all_single, output, values, got, given)

    def _run(self, call: Any, *arguments: Any) -> None:
        self._wake.clear()
        self._began = time.monotonic()
        try:
            work = call(*arguments, async_op=True)
            # The future wakes this thread when the call ends, the meeting when it never will. What PyTorch says of
            # the call itself may change only after its future has called back.
            ended = threading.Event()

            def called_back(_: Any) -> None:
                ended.set()
                self._wake.set()

            work.get_future().then(called_back)
            while not ended.is_set():
                if self._is_over():
                    raise BrokenError("the group is to be renewed")
                self._wake.wait(self._look_seconds)
                self._wake.clear()
            work.wait()
        except RuntimeError as error:
            raise BrokenError(str(error)) from error


_begun: List[ProcessGroup | FixedProcessGroup] = []  # by ``init_process_group``, until a ``Group`` takes it


def init_process_group(timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Make PyTorch's default group. A script calls it where it wraps its model, before it makes its ``Group``.

    Under the launcher of this package the process is alone in the group until then, so that a newcomer can wrap its
    model while the others train. Its rank is in the environment (``RANK``).

    Args:
        timeout_seconds: after which a collective call fails though no process is known to be lost.

    Raises RuntimeError where there is a default group.
    """
    group: ProcessGroup | FixedProcessGroup
    if is_elastic():
        group = ProcessGroup(timeout_seconds)
    elif dist.is_initialized():
        raise RuntimeError("there is a default process group already: remove this call, or the call that made it")
    else:
        group = FixedProcessGroup()
    group.begin_alone()
    _begun[:] = [group]


def take(timeout_seconds: float | None) -> ProcessGroup | FixedProcessGroup:
    """Return the group that ``init_process_group`` has made, with its time-out; if it has made none, make one.

    Raises ValueError where a time-out is given for a group that is made already.
    """
    if _begun:
        if timeout_seconds is not None:
            raise ValueError("timeout_seconds: pass it to init_process_group(), which has made the group")
        return _begun.pop()
    return ProcessGroup(timeout_seconds or TIMEOUT_SECONDS) if is_elastic() else FixedProcessGroup()
