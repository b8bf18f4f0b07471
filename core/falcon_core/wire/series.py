"""Define a chunk: the newest windows of a pod's series, as its agent sends them to the anomaly service.

A window lasts ``WINDOW_SECONDS``. Of each quantity it holds the median, the minimum and the maximum of what the agent
read in it, once a second. A chunk has no time of day, since clocks of nodes differ: it says how long ago its last
window ended.

A series takes seven bytes a window: 24 bits for the median (a sign, 8 bits of exponent, 15 of mantissa) and 16 for each
distance from it (8 bits of exponent, 8 of mantissa). So 20 series of 6 windows take 840 bytes, even where nothing can
be compressed. Bytes of the same place stand together, and zlib compresses all of it (docs/adr/0135).
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from falcon_core.text import clean, clip

WINDOW_SECONDS: Final = 10.0
WINDOWS: Final = 6  # of a chunk
CONTAINER: Final = -1  # stands for a rank: the series is of the pod's container
MAX_RANKS: Final = 1025  # of a chunk, the container among them
MAX_METRICS: Final = 64  # names of a chunk
MAX_SERIES: Final = 8192  # ranks times names of a chunk
MAX_WINDOWS: Final = 12
MAX_NAME: Final = 64
MAX_AGE_MS: Final = 600_000
MAX_BYTES: Final = 256 << 10  # of a chunk as it is sent; a gateway takes less
MAX_PLAIN_BYTES: Final = 1 << 20  # of a chunk before it is compressed
_VERSION: Final = b"\x01"
_LEVEL: Final = 6  # of zlib: 9 saves nothing here
_BYTES: Final = 7  # of a series in a window
_LARGEST: Final = 1e38  # a greater value is cut: float32 ends at 3.4e38

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class Phase(enum.IntEnum):
    """What the ranks of a pod do in a window, as far as the agent knows."""

    TRAINING = 0
    START = 1  # until the first iterations are done
    WARM_UP = 2  # the iterations after them
    CHECKPOINT = 3
    PAUSE = 4  # they stand still for a measurement
    REPAIR = 5  # they are being stopped, or wait for the next generation
    ENDED = 6
    OTHER = 255  # which only a later agent knows


class Window(NamedTuple):
    """A quantity in one window; NaN where it was not a finite number. ``maximum`` is NaN if any reading was."""

    median: float
    minimum: float
    maximum: float


class Chunk(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Windows of a pod, oldest first.

    Shapes: ``values`` [ranks, metrics, windows, 3] has median, minimum and maximum. ``known`` [ranks, metrics, windows]
    says which of them were read; the others are NaN.
    """

    generation: int
    number: int  # counts the agent's chunks: a gap shows those that were lost
    age_ms: int  # since the last window ended, when the chunk was made
    phases: tuple[Phase, ...]
    ranks: tuple[int, ...]  # CONTAINER among them
    metrics: tuple[str, ...]
    values: Floats
    known: Bools


class SeriesFormatError(ValueError):
    """The error of bytes that are no chunk."""


class _Plain(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk before it is compressed. Later agents may add fields at the end."""

    generation: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    number: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    age_ms: Annotated[int, Meta(ge=0, le=MAX_AGE_MS)]
    phases: Annotated[bytes, Meta(min_length=1, max_length=MAX_WINDOWS)]
    ranks: Annotated[list[Annotated[int, Meta(ge=CONTAINER, le=(1 << 31) - 1)]], Meta(max_length=MAX_RANKS)]
    metrics: Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]], Meta(max_length=MAX_METRICS)]
    present: Annotated[bytes, Meta(max_length=MAX_SERIES // 8)]  # a bit for each rank and metric
    data: Annotated[bytes, Meta(max_length=MAX_PLAIN_BYTES)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Plain)


def metric_name(text: str) -> str:
    """Return a name that a chunk may have: printable, without secrets, at most ``MAX_NAME`` characters."""
    return clip(clean(text).replace("\n", " ").strip(), MAX_NAME)


def encode_chunk(
    series: Mapping[int, Mapping[str, Sequence[Window | None]]],
    phases: Sequence[Phase],
    *,
    generation: int,
    number: int,
    age_ms: int,
) -> bytes:
    """Encode a pod's windows.

    Args:
        series: [windows] for each metric of each rank, oldest first; None where nothing was read. Names are those of
            ``metric_name``. Ranks and metrics beyond the bounds are left out.
        phases: [windows] what the ranks did.
        generation: whose processes are meant.
        number: of the chunk.
        age_ms: since the last window ended.

    Raises:
        ValueError: There are no windows or too many, or a series has another number of them.
    """
    if not 1 <= len(phases) <= MAX_WINDOWS:
        raise ValueError(f"a chunk has 1 to {MAX_WINDOWS} windows, not {len(phases)}")
    ranks = sorted(series)[:MAX_RANKS]
    # A pod of many ranks has room for fewer metrics each: every rank keeps the same ones, so that ranks can be
    # compared.
    most = min(MAX_METRICS, MAX_SERIES // max(1, len(ranks)))
    metrics = sorted({name for rank in ranks for name in series[rank]})[:most]
    present = np.zeros((len(ranks), len(metrics)), dtype=np.bool_)
    rows: list[Sequence[Window | None]] = []
    for row, rank in enumerate(ranks):
        for column, name in enumerate(metrics):
            windows = series[rank].get(name)
            if windows is None:
                continue
            if len(windows) != len(phases):
                raise ValueError(f"{name} of rank {rank} has {len(windows)} windows, not {len(phases)}")
            present[row, column] = True
            rows.append(windows)
    plain = _Plain(
        generation=generation,
        number=number,
        age_ms=max(0, min(age_ms, MAX_AGE_MS)),
        phases=bytes(phases),
        ranks=ranks,
        metrics=metrics,
        present=np.packbits(present).tobytes(),
        data=_packed(rows, len(phases)),
    )
    return _VERSION + zlib.compress(_encoder.encode(plain), _LEVEL)


def decode_chunk(raw: bytes) -> Chunk:
    """Decode a chunk, which a training process may have made: its size, counts and names are bounded.

    Raises:
        SeriesFormatError: The bytes are no chunk, or of a format that this release does not know.
    """
    plain = _decoder_of(_inflated(raw))
    names = tuple(metric_name(name) for name in plain.metrics)
    if len(set(names)) < len(names) or "" in names:
        raise SeriesFormatError("two metrics have one name, or one has none")
    if len(set(plain.ranks)) < len(plain.ranks):
        raise SeriesFormatError("a rank is there twice")
    shape = (len(plain.ranks), len(names))
    cells = shape[0] * shape[1]
    # Checked before arrays are made: a few bytes must not decide how large they are.
    if cells > MAX_SERIES:
        raise SeriesFormatError(f"{shape[1]} metrics of {shape[0]} ranks: at most {MAX_SERIES} series are read")
    if len(plain.present) != -(-cells // 8):
        raise SeriesFormatError(f"{len(plain.present)} bytes say which of {cells} series are there")
    present = np.unpackbits(np.frombuffer(plain.present, dtype=np.uint8), count=cells).astype(np.bool_).reshape(shape)
    count, windows = int(present.sum()), len(plain.phases)
    if len(plain.data) != count * windows * _BYTES:
        raise SeriesFormatError(f"{len(plain.data)} bytes for {count} series of {windows} windows")
    values = np.full((*shape, windows, 3), np.nan, dtype=np.float32)
    known = np.zeros((*shape, windows), dtype=np.bool_)
    values[present], known[present] = _unpacked(plain.data, count, windows)
    return Chunk(
        generation=plain.generation,
        number=plain.number,
        age_ms=plain.age_ms,
        phases=tuple(_phase(code) for code in plain.phases),
        ranks=tuple(plain.ranks),
        metrics=names,
        values=values,
        known=known,
    )


def _inflated(raw: bytes) -> bytes:
    if len(raw) > MAX_BYTES:
        raise SeriesFormatError(f"{len(raw)} bytes: a chunk has at most {MAX_BYTES}")
    if raw[:1] != _VERSION:
        raise SeriesFormatError("not a format that this release knows: are agent and service of one release?")
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(raw[1:], MAX_PLAIN_BYTES)
    except zlib.error as error:
        raise SeriesFormatError(str(error)) from error
    if not stream.eof:
        raise SeriesFormatError(f"cut short, or more than {MAX_PLAIN_BYTES} bytes when it is not compressed")
    return plain


def _decoder_of(plain: bytes) -> _Plain:
    try:
        return _decoder.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SeriesFormatError(str(error)) from error


def _phase(code: int) -> Phase:
    try:
        return Phase(code)
    except ValueError:
        return Phase.OTHER


_NAN_24, _UNREAD_24 = 0x7FC000, 0xFFC000  # the sign of a NaN says that nothing was read
_NAN_16 = 0xFF80


def _packed(rows: Sequence[Sequence[Window | None]], windows: int) -> bytes:
    """Return [byte, series, window]: three bytes of the median, two of the distance below it, two of that above."""
    unread = np.array([[each is None for each in row] for row in rows], dtype=np.bool_).reshape(len(rows), windows)
    nothing = Window(np.nan, np.nan, np.nan)
    plain = np.array([[each or nothing for each in row] for row in rows], dtype=np.float64).reshape(-1, windows, 3)
    # Infinity has no code of its own, and clipped it would look like a number that was measured.
    plain[np.isinf(plain)] = np.nan
    plain = np.clip(plain, -_LARGEST, _LARGEST)
    medians = _rounded(plain[..., 0], 8)
    medians[np.isnan(plain[..., 0])] = _NAN_24
    medians[unread] = _UNREAD_24
    # Distances are taken from the median as it will be read: rounding it does not move the others.
    centre = _median_of(medians).astype(np.float64)
    centre = np.where(np.isnan(centre), 0.0, centre)
    planes = [(medians >> shift).astype(np.uint8) for shift in (16, 8, 0)]
    for distance in (centre - plain[..., 1], plain[..., 2] - centre):
        codes = _rounded(np.maximum(distance, 0.0), 15)
        codes[np.isnan(distance)] = _NAN_16
        planes += [(codes >> shift).astype(np.uint8) for shift in (8, 0)]
    return np.stack(planes).tobytes()


def _unpacked(data: bytes, series: int, windows: int) -> tuple[Floats, Bools]:
    """Return the values [series, windows, 3], and which of them were read [series, windows]."""
    planes = np.frombuffer(data, dtype=np.uint8).reshape(_BYTES, series, windows).astype(np.uint32)
    codes = (planes[0] << 16) | (planes[1] << 8) | planes[2]
    medians = _median_of(codes)
    centre = np.where(np.isnan(medians), np.float32(0), medians)
    low, high = (
        _finite(np.ascontiguousarray(((planes[first] << 8) | planes[first + 1]) << 15).view(np.float32))
        for first in (3, 5)
    )
    known = codes != _UNREAD_24
    values = np.stack([medians, centre - np.abs(low), centre + np.abs(high)], axis=-1)
    values[~known] = np.nan
    return _finite(values), known


def _rounded(values: npt.NDArray[np.float64], dropped: int) -> npt.NDArray[np.uint32]:
    """Return the bits of each value as float32 without the lowest ones, rounded to the nearest."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + np.uint32(1 << (dropped - 1))) >> np.uint32(dropped)


def _median_of(codes: npt.NDArray[np.uint32]) -> Floats:
    return _finite(np.ascontiguousarray(codes << np.uint32(8)).view(np.float32))


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.float32(np.nan)).astype(np.float32)
