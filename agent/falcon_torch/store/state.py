"""Turn a state into an index and storages, and back: dicts, lists, tuples, tensors and all else that can be pickled.

Tensors are pickled by their own means, as ``torch.save`` does, so that all kinds of them work (strided, quantised,
sparse, parameters); only the storages that hold their elements are left out and stand in the data. So tensors that
share a storage share it again, and a slice takes its whole storage along.

Like ``torch.load``, reading runs what the pickle says: the bytes are as trusted as the program that wrote them.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import struct
from typing import Any, Callable, List, NamedTuple, Tuple

import torch

from falcon_torch.interruption import of_a_handler
from falcon_torch.store.format import CheckpointError, aligned

_PROTOCOL = 4
_COUNT = struct.Struct("<Q")
_PLACE = struct.Struct("<QQ")
_SINCE_2 = hasattr(torch.Tensor, "untyped_storage")  # PyTorch 2.0 gave storages other names than 1.13


class Frozen(NamedTuple):
    """A state that is about to be written: the index, and each storage with its place in the data."""

    raw_index: bytes
    storages: List[Tuple[int, torch.Tensor]]  # offset, and the storage's bytes as a uint8 tensor [n]
    data_bytes: int


def dense(value: Any) -> bool:
    """Check whether a value is a plain tensor that its elements' bytes, type and shape describe (``Part``)."""
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and value.layout == torch.strided and not value.is_quantized


def raw(content: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU, uint8 [n], which has to live as long as they are used."""
    return memoryview((ctypes.c_char * content.numel()).from_address(content.data_ptr())).cast("B")


class _Bytes(NamedTuple):
    content: torch.Tensor  # uint8 [n]


class Part:
    """A dense tensor of which only its own elements are kept, however large its storage is.

    It is written without a copy of its elements in between where they lie in one piece, and read as a tensor.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self.content = tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)  # [bytes]


def _whole(storage: torch.UntypedStorage, dtype: torch.dtype, shape: Tuple[int, ...]) -> torch.Tensor:
    """Return the tensor whose elements fill a storage, in order of its indices."""
    content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return content.view(dtype).view(shape)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self.contents: list[torch.Tensor] = []  # the bytes of each storage, uint8 [n]
        self._numbers: dict[int, int] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Part:
            return NotImplemented
        return _whole, (_Bytes(value.content), value.dtype, value.shape)

    def persistent_id(self, value: Any) -> tuple[int, torch.dtype | None] | None:
        if type(value) is _Bytes:
            self.contents.append(value.content)
            return len(self.contents) - 1, None
        if isinstance(value, torch.storage.TypedStorage):
            return self._number(value._untyped_storage if _SINCE_2 else value.untyped()), value.dtype
        if isinstance(value, torch.UntypedStorage):
            return self._number(value), None
        return None

    def _number(self, storage: torch.UntypedStorage) -> int:
        if storage.device.type == "meta":
            raise CheckpointError(
                "a tensor on the device meta has no content that could be saved: materialise it first"
            )
        # Several tensors may share one storage, which is saved once.
        found = self._numbers.get(storage._cdata)
        if found is None:
            found = self._numbers[storage._cdata] = len(self.contents)
            self.contents.append(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storage: Callable[[int], torch.UntypedStorage]) -> None:
        super().__init__(file)
        self._storage = storage

    def persistent_load(self, pid: Any) -> Any:
        number, dtype = pid
        storage = self._storage(number)
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(
            wrap_storage=storage, dtype=dtype, **({"_internal": True} if _SINCE_2 else {})
        )


def freeze(state: Any) -> Frozen:
    """Lay a state out. Copies no tensor's elements: the storages are the state's own.

    Raises:
        CheckpointError: a part of it cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
        if of_a_handler(error):
            raise
        raise CheckpointError(f"the state cannot be saved: {error}") from error
    offset, places, storages = 0, [], []
    # Storages follow each other in the order in which the pickle names them, each aligned.
    for content in pickler.contents:
        size = content.numel()
        places.append(_PLACE.pack(offset, size))
        if size:
            storages.append((offset, content))
        offset = aligned(offset + size)
    index = b"".join([_COUNT.pack(len(places)), *places, file.getvalue()])
    return Frozen(index, storages, offset)


def thaw(index: memoryview, data: Any, data_offset: int, data_end: int) -> Any:
    """Return the state, its tensors views of ``data`` (a writable buffer, kept alive by them) from ``data_offset`` on.

    Raises:
        CheckpointError: the index does not fit the data, or cannot be unpickled.
    """
    (count,) = _COUNT.unpack_from(index, 0)
    begin = _COUNT.size + count * _PLACE.size
    # The file may be damaged, so each size is checked before it is used.
    if begin > len(index):
        raise CheckpointError("the index of a checkpoint is shorter than it says")
    places = [_PLACE.unpack_from(index, _COUNT.size + number * _PLACE.size) for number in range(count)]
    made: dict[int, torch.UntypedStorage] = {}

    # Tensors that share a storage get the same view, so that they still share it.
    def storage(number: int) -> torch.UntypedStorage:
        if number not in made:
            offset, size = places[number]
            if data_offset + offset + size > data_end:
                raise CheckpointError(f"storage {number} lies outside the checkpoint's data")
            made[number] = _viewed(data, data_offset + offset, size) if size else torch.UntypedStorage(0)
        return made[number]

    try:
        return _Unpickler(io.BytesIO(index[begin:]), storage).load()
    except CheckpointError:
        raise
    except Exception as error:  # a class that has moved, another version of a library: any exception is possible
        if of_a_handler(error):
            raise
        raise CheckpointError(f"the state cannot be read: {type(error).__name__}: {error}") from error


def _viewed(data: Any, offset: int, size: int) -> torch.UntypedStorage:
    """Return a storage that is a part of a buffer."""
    view = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=offset)
    return view.untyped_storage() if _SINCE_2 else view.storage().untyped()
