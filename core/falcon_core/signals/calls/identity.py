"""Name the columns of a record that identify its call: equal for the same call of each iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from falcon_core.wire.ring import EXCHANGE, RecordArray, are_exchanges


def naming_columns(records: RecordArray) -> list[npt.NDArray[Any]]:
    """Return the columns that name calls: op, comm, dtype, bytes, [n] each.

    What experts exchange changes with every batch: it has no size here, and its communicator's own id.
    """
    columns = [records[name] for name in ("op", "comm", "dtype", "bytes")]
    comms = columns[1]
    exchanges = are_exchanges(comms)
    if exchanges.any():
        columns[1] = np.where(exchanges, comms & ~np.uint64(EXCHANGE), comms)
        columns[3] = np.where(exchanges, 0, columns[3])
    return columns
