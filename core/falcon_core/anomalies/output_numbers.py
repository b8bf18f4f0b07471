"""Read named numbers from the lines that a process prints, and find those that stay NaN or infinite.

Patterns are RE2's: matching takes linear time, whatever a job's owner writes and a rank prints.
"""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import re2

from falcon_core.errors.patterns import PatternError, check, options, source
from falcon_core.wire.reporting.anomalies import MAX_METRICS, MAX_PATTERN, METRIC_NAME, OutputMetric

PATH: Final = "spec.anomalies.metrics"
# The operator checks the patterns of all jobs, and keeps them: a job's owner must not fill its memory. What a name and
# a number need compiles to a tenth of it.
MOST_PROGRAM_BYTES: Final = 1 << 16
GRADIENTS: Final = "gradNorm"
# A value that is not finite may be one batch's. Mixed precision skips steps whose gradients overflow, several in a row
# while it looks for its scale.
NEEDED: Final = 2
NEEDED_OF_GRADIENTS: Final = 8
HEALED: Final = 3  # finite values in a row after which it is over
MOST_NEWS: Final = 16  # turns of a process's numbers that are reported at once
HEALED_AFTER_TURNS: Final = 1000  # as HEALED, after so many turns: each turn is an Event and a write of the status
MOST_VALUES: Final = 64  # of a number that are kept until they are asked for
MOST_MATCHES: Final = 64  # of a metric in one piece of output

_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*(?:e[-+]?[0-9]+)?|\.[0-9]+(?:e[-+]?[0-9]+)?|nan|inf(?:inity)?)"
_BEGIN: Final = r"(?:^|[^a-z0-9_]|\x1b\[[0-9;]*m)"  # a colour may stand before the name
_END: Final = r"(?:[^a-z0-9_]|$)"
# As the Hugging Face Trainer ('loss': 1.2), Lightning (train_loss=1.2, train_loss_step=1.2), Megatron (lm loss: 1.2E+00
# | grad norm: 1.2), torchtitan (loss: 1.2 grad_norm: 1.2) and torchtune (Loss: 1.2, loss:1.2) print them.
SHIPPED: Final = (
    OutputMetric(
        name="loss",
        pattern=rf"{_BEGIN}(?:train_)?loss(?:_step)?['\"]?\s{{0,3}}[:=]?\s{{0,8}}['\"]?({_NUMBER}){_END}",
    ),
    OutputMetric(name=GRADIENTS, pattern=rf"{_BEGIN}grad[_ ]norm['\"]?\s{{0,3}}[:=]\s{{0,8}}['\"]?({_NUMBER}){_END}"),
)


class MetricError(ValueError):
    """A metric that cannot be used: the field, what is wrong, and the remedy, as ``field: message; remedy``."""


def _options() -> Any:
    made = options(MOST_PROGRAM_BYTES)
    made.never_capture = False
    return made


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    return re2.compile(b"(?m)" + source(pattern), _options())


def check_metrics(metrics: Sequence[OutputMetric]) -> None:
    """Refuse metrics of a job's that cannot be used. Raises MetricError for the first of them."""
    if len(metrics) > MAX_METRICS:
        raise MetricError(f"{PATH}: has {len(metrics)} entries, at most {MAX_METRICS}; remove some")
    names = [metric.name for metric in metrics]
    for index, metric in enumerate(metrics):
        field = f"{PATH}[{index}]"
        if re.fullmatch(METRIC_NAME[1:-1], metric.name) is None:
            raise MetricError(f"{field}.name: {metric.name!r} is no name; use at most 32 letters, digits, _ . / and -")
        if metric.name in names[:index]:
            raise MetricError(f"{field}.name: {metric.name} stands twice; give each metric a name of its own")
        try:
            check(metric.pattern, MAX_PATTERN, MOST_PROGRAM_BYTES)
        except PatternError as error:
            said = str(error)
            raise MetricError(f"{field}.pattern: {said if '; ' in said else f'{said}; shorten it'}") from error
        try:
            groups = _compiled(metric.pattern).groups
        except re2.error as error:  # with its group, a program may be just too large
            raise MetricError(f"{field}.pattern: its compiled program is too large; shorten its repetitions") from error
        if groups != 1:
            raise MetricError(
                f"{field}.pattern: has {groups} groups, and one must capture the number; write for example"
                " 'loss[=: ]+([0-9.eE+-]+|nan|inf)', and (?:…) for a group that captures nothing"
            )


def usable_metrics(metrics: Sequence[OutputMetric]) -> tuple[OutputMetric, ...]:
    """Return the job's metrics and the shipped ones that it does not replace; of a job that cannot be used, none."""
    try:
        check_metrics(metrics)
    except MetricError:
        return SHIPPED
    own = {metric.name for metric in metrics}
    return (*metrics, *(metric for metric in SHIPPED if metric.name not in own))


class NotFinite(msgspec.Struct, frozen=True, kw_only=True):
    """A number that stays NaN or infinite."""

    name: str
    line: bytes  # the first in which it was so
    iteration: int | None  # of the rank, when that was read
    seconds: float  # when it was read, on the caller's clock
    finite_seconds: float | None = None  # when the last finite value before it was read; None: there was none


class _Number(msgspec.Struct):
    """The newest values of one number."""

    first: NotFinite | None = None  # of the present row of values that are not finite
    finite_seconds: float | None = None  # when the newest finite value was read
    bad: int = 0
    good: int = 0
    stands: bool = False


class Numbers:
    """The numbers in one process's output."""

    def __init__(self) -> None:
        self._numbers: dict[str, _Number] = {}
        self._values: dict[str, deque[float]] = {}
        self._news = 0

    @property
    def standing(self) -> list[NotFinite]:
        """Return the numbers that stay not finite now."""
        return [each.first for each in self._numbers.values() if each.stands and each.first is not None]

    def drain(self) -> dict[str, list[float]]:
        """Return the values by name, at most ``MOST_VALUES`` of each, that were read since the last call."""
        values, self._values = self._values, {}
        return {name: list(kept) for name, kept in values.items()}

    def read(self, metrics: Sequence[OutputMetric], lines: bytes, seconds: float, iteration: int | None) -> bool:
        """Read whole lines. Return whether it is news that a number stays not finite, or no longer does."""
        changed = False
        for metric in metrics:
            for count, found in enumerate(_compiled(metric.pattern).finditer(lines)):
                if count >= MOST_MATCHES:
                    break
                value = _value(found.group(1))
                if value is not None:
                    self._values.setdefault(metric.name, deque(maxlen=MOST_VALUES)).append(value)
                    line = _line_at(lines, found.start())
                    changed = self._take(metric.name, value, line, seconds, iteration) or changed
        # A program that prints NaN and numbers in turns must not cause a report each second.
        self._news += changed
        return changed and self._news <= MOST_NEWS

    def _take(self, name: str, value: float, line: bytes, seconds: float, iteration: int | None) -> bool:
        number = self._numbers.setdefault(name, _Number())
        before = number.stands
        if math.isfinite(value):
            number.good, number.bad, number.finite_seconds = number.good + 1, 0, seconds
            # One finite value between others is an average or a skipped step.
            needed = HEALED if self._news < MOST_NEWS else HEALED_AFTER_TURNS
            if number.good >= needed or not number.stands:
                number.first, number.stands = None, False
        else:
            number.good, number.bad = 0, number.bad + 1
            number.first = number.first or NotFinite(
                name=name, line=line, iteration=iteration, seconds=seconds, finite_seconds=number.finite_seconds
            )
            needed = NEEDED_OF_GRADIENTS if name == GRADIENTS else NEEDED
            number.stands = number.stands or number.bad >= needed
        return number.stands != before


def _value(text: bytes | None) -> float | None:
    """Return the captured number; None where the group has captured something else."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _line_at(lines: bytes, position: int) -> bytes:
    """Return the line of a match that begins at a position: it may begin with the end of the line before."""
    begin = max(lines.rfind(b"\n", 0, position + 1), lines.rfind(b"\r", 0, position + 1)) + 1
    ends = [end for end in (lines.find(b"\n", begin), lines.find(b"\r", begin)) if end >= 0]
    return lines[begin : min(ends, default=len(lines))]
