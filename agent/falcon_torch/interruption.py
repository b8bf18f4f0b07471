"""Tell what the handler of a signal has raised from an error of the work that it interrupted.

A handler runs inside whatever the main thread does. What it raises (a time-out by alarm is an ``OSError``) may look
like an error of a file or of a request, from which training goes on; but it is the program's own.
"""

from __future__ import annotations

import signal
from types import CodeType, FrameType, TracebackType
from typing import Any, Set


def of_a_handler(error: BaseException) -> bool:
    """Check whether an exception that was just caught was raised in the handler of a signal.

    Python calls a handler with the frame that it interrupts, which stands above it in the traceback.
    """
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:
        return False  # raised where it was caught, by a function written in C
    codes = _handlers()
    while trace.tb_next is not None:
        above, trace = trace.tb_frame, trace.tb_next
        if trace.tb_frame.f_code in codes or _holds(trace, above):
            return True
    return False


def _holds(trace: TracebackType, above: FrameType) -> bool:
    """Check whether a function was called with the frame above it, alone or among ``*args``."""
    for value in trace.tb_frame.f_locals.values():
        if value is above or (type(value) is tuple and any(each is above for each in value)):
            return True
    return False


def _handlers() -> Set[CodeType]:
    """Return the code of all handlers that are registered now."""
    return {code for number in range(1, signal.NSIG) for code in [_code_of(_handler(number))] if code is not None}


def _handler(number: int) -> Any:
    try:
        return signal.getsignal(number)
    except ValueError:  # no such signal
        return None


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of a partial
    function = getattr(function, "__func__", function)  # of a method
    if not hasattr(function, "__code__"):  # an object that can be called
        function = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
