"""Read the forms in which a condition of a node is printed: which fault it names, and whether the node has it.

``kubectl``, controllers and log collectors print the fields of a condition: "type=GPULost status=False reason=AllHere",
the same in JSON, or as a row, "GPULost  False  AllHere". Rules read "GPULost=False: AllHere". A fault that is False is
none.
"""

from __future__ import annotations

import re
from typing import Final

_TYPE: Final = re.compile(rb"[\"']?\b(?i:type|condition)[\"']?\s*[=:]\s*[\"']?([A-Z]\w{2,80})\b[\"']?[,;]?\s*")
_STATUS: Final = re.compile(rb"[\"']?\b(?i:status)[\"']?\s*[=:]\s*[\"']?(True|False|Unknown)\b[\"']?[,;]?\s*")
# A row of `kubectl describe node`, and what the node-problem-detector logs. "Warning", "Normal" begin Events.
_ROW: Final = re.compile(
    rb"^(?:.{0,200}?\b[Cc]ondition )?([A-Z]\w{2,80})(?: +| (?:is|is now|changed to|set to):? ?|: ?)"
    rb"(True|False|Unknown)\b[,:;]? *"
)
# Only these make a row with False the absence of a fault: "GpuCheck  False" is a check that failed.
_NAMES_A_FAULT: Final = re.compile(
    rb"(?i:lost|missing|error|fault|fail|down|pressure|problem|deadlock|unavailable|unhealthy|hang|hung|flap|degrad|shutdown"
    rb"|corrupt|read-?only|crash|panic|scheduled|restart|leak|overheat|throttl|retire|remap|mismatch|unregister|notready"
    rb"|alarm|alert|warning|critical|exceed|violation|brake|capped|brown|trip|loss|low|high|slow|stall|hot\b|over|under|bad"
    rb"|invalid|broken|offline|dead|kill|oom|evict|drop|timeout|stuck|needed|required|maintenance|taint|cordon|unsched)"
)
_NAMES_A_CHECK: Final = re.compile(rb"(?i:check|passe[sd]|works?|tests?|status|state|diagnostics?|healthy?)$")
_FALSE: Final = re.compile(rb"\s*(?:(?i:node ?condition|condition|node [\w.-]{1,80}):? +){0,2}([A-Z]\w{2,80})=False\b")
_READY: Final = re.compile(
    rb"\s*(?:(?i:node ?condition|condition|node [\w.-]{1,80}):? +){0,2}((?:[A-Z]\w*)?(?:Ready|Healthy))=True\b"
)
# What should hold ("…Ready", "…Healthy", "…Available"), so that False is a fault.
_SHOULD_HOLD: Final = re.compile(
    rb"(?:y|th|le|Ok|OK|Up|[Oo]nline|Alive|Present|Connected|Pass(?:ed)?|Succe(?:eded|ss\w*)|Valid|Correct(?:ness)?|Running"
    rb"|Operational|Mounted|Synced|Initialized|Active|Enabled|Normal|Loaded|Established|Reached|Configured)$"
)
_SHOULD_NOT: Final = re.compile(
    rb"(?:Un(?:healthy|\w+able)|Not(?:Ready|Healthy|Available|\w+le)|\w*(?:Memory|Battery|Retry))$"
)
_WITHOUT: Final = re.compile(rb"^\s*(\w*?)(?:Has)?No([A-Z]\w+)=(True|False)\b")  # "KernelHasNoDeadlock" should hold
# A sample in the form of Prometheus. A metric of something good is 0 where that is missing.
_ZERO_SAMPLE: Final = re.compile(rb"\s*(\w+)\{[^{}\n]{0,2000}\} 0(?:\.0+)?(?: \d{10,16})?\s*")
_GOOD: Final = re.compile(
    rb"(?:\w*_)?(?:up|ready|healthy|health|present|available|alive|active|connected|ok|success|status|state|speed|power"
    rb"|bandwidth|rpm|count|devices|running|online|reachable|heartbeat|rate)(?:_(?:total|info|bool|percent|[a-z]bps))?",
    re.IGNORECASE,
)
# But what is counted decides: "link_flap_count", "ecc_errors_total".
_BAD: Final = re.compile(
    rb"(?:^|_)(?:err(?:or)?s?|fail(?:ures?|ed|s)?|faults?|flaps?|drops?|dropped|xids?|ecc|dbe|sbe|retired|remapp?(?:ed|ing)"
    rb"|throttl\w*|violations?|replays?|timeouts?|crash(?:es)?|oom|lost|missing|resets?|hangs?|down|downed|leaks?|alarms?)_",
    re.IGNORECASE,
)


def in_one_form(line: bytes) -> bytes:
    """Return the line with a condition as "Fault=Status: the rest"; any other line as it is."""
    return _WITHOUT.sub(_fault, _with_fields_joined(line), count=1)


def _fault(named: re.Match[bytes]) -> bytes:
    """Return the fault that must not be: "KernelHasNoDeadlock=False" is "KernelDeadlock=True"."""
    return named[1] + named[2] + (b"=False" if named[3] == b"True" else b"=True")


def _with_fields_joined(line: bytes) -> bytes:
    kind, status = _TYPE.search(line), _STATUS.search(line)
    if kind is None or status is None:
        return _ROW.sub(_row, line, count=1)
    rest = line
    for found in sorted((kind, status), key=lambda each: each.start(), reverse=True):
        rest = rest[: found.start()] + rest[found.end() :]
    return kind[1] + b"=" + status[1] + b": " + rest


def _row(found: re.Match[bytes]) -> bytes:
    name, status = found[1], found[2]
    names_a_fault = _NAMES_A_FAULT.search(name) is not None and _NAMES_A_CHECK.search(name) is None
    return name + b"=" + status + b": " if names_a_fault or status != b"False" else found[0]


def is_absent_fault(line: bytes) -> bool:
    """Check whether the line is a condition that says that all is well, in the form of ``in_one_form``.

    It names a fault and is False, or what should hold and is True, even if its message names what was watched.
    """
    named = _FALSE.match(line)
    if named is None:
        holds = _READY.match(line)
        return holds is not None and _NAMES_A_FAULT.search(holds[1]) is None
    return _SHOULD_HOLD.search(named[1]) is None or _SHOULD_NOT.search(named[1]) is not None


def is_zero_sample(line: bytes) -> bool:
    """Check whether the line is a sample of value 0 whose metric counts something bad."""
    sample = _ZERO_SAMPLE.fullmatch(line)
    return sample is not None and (_GOOD.fullmatch(sample[1]) is None or _BAD.search(sample[1]) is not None)
