"""Read trouble in the communication library from a rank's ring: repeated set-up calls, asynchronous errors."""

from __future__ import annotations

from falcon_core.wire.ring import Kind, RecordArray

_MOST = 1 << 16  # of counts and codes: a training process may write anything


class Troubles:
    """The troubles of one ring, counted from its first record on."""

    def __init__(self) -> None:
        self.retries = 0
        self.comm_error = 0  # the first asynchronous error's code; 0: none

    def feed(self, records: RecordArray) -> None:
        """Take records of any kind, in ring order: [n], dtype RECORD_DTYPE."""
        kinds = records["kind"]
        rare = records[kinds >= Kind.ASYNC_ERROR]
        if not len(rare):
            return
        self.retries = min(_MOST, self.retries + int((rare["kind"] == Kind.RETRY).sum()))
        errors = rare["bytes"][rare["kind"] == Kind.ASYNC_ERROR]
        # The first error is the cause; those after it are its consequences.
        if len(errors) and not self.comm_error:
            self.comm_error = min(_MOST, int(errors[0]))
