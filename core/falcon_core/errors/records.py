r"""Read the messages in the records of loggers: JSON objects, logfmt, klog, the logs of Docker and of a CRI runtime.

One record is one line, whatever its message: ends of lines in it are written as ``\n``, tabs as ``\t`` and the ESC of a
colour as ``\u001b``. Rules and tracebacks are about lines, so that the message's own lines are needed.

Forms: json-file of Docker 28 ("log", "stream", "time"), the CRI's logging format (Kubernetes 1.35, container logs),
``journalctl -o json`` (systemd 257: a message that is no text is an array of bytes), klog 2 (``err="…"``), logfmt of
Go's slog, and Python's ``repr`` of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from falcon_core.errors.tracebacks import plain

_MOST_DEPTH: Final = 3  # of a record in a record, such as a program's JSON in Docker's
_MARKS: Final = ("\\n", "\\t", "\\u001b", "\\x1b", '"log"', '"MESSAGE"', " stdout F ", " stderr F ")
_MARK_BYTES: Final = tuple(mark.encode() for mark in _MARKS)
_CRI: Final = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ")
_ESCAPE: Final = re.compile(r"(?<!\\)\\(?:(?P<end>(?:r\\)?n)|(?P<tab>t)|(?P<colour>u001b|x1b|033|e(?=\[)))")
_MESSAGES: Final = re.compile(
    r"message|msg|log|event|error|err|exc_(?:info|text|value)|exception|stack(?:_?(?:info|trace))?|(?:back)?trace(?:back)?"
    r"|cause|fields|panic",
    re.IGNORECASE,
)
_ESCAPED: Final = re.compile(r"\\([\"'\\])")
# What a logger calls no error. Of such a record no line is one, so that it stays as it is, for the rules to excuse.
_HARMLESS: Final = re.compile(
    r'"(?:level|levelname|severity|lvl|log_level)": ?"(?:info|warn(?:ing)?|debug|notice|trace)"'
    r"|\b(?:level|lvl|severity)=\"?(?:info|warn(?:ing)?|debug|notice|trace)\b|^[IWD]\d{4} \d\d:\d\d",
    re.IGNORECASE,
)
# Where ``\n`` is the end of a line and no part of a path or a pattern: in a field's value, and in a traceback's repr.
_FIELD: Final = r"\b(?:msg|message|err|error|exception|exc_info|stack|stacktrace|traceback|output)=\""
_HEAD: Final = r"Traceback \(most recent call last\):\\n"
_QUOTED: Final = re.compile(
    _FIELD + r'(?P<field>(?:[^"\\]|\\.)*)"?'
    r'|"(?P<double>' + _HEAD + r'(?:[^"\\]|\\.)*)"?'
    r"|'(?P<single>" + _HEAD + r"(?:[^'\\]|\\.)*)'?"
)


def message_lines(output: str) -> str:
    """Return an output in which each record of several lines stands as the lines of its message."""
    if not any(mark in output for mark in _MARKS):
        return output
    return "\n".join(part for line in output.split("\n") for part in _of_line(line))


def message_bytes(lines: bytes) -> bytes:
    """Return what ``message_lines`` returns, of bytes. Ordinary output has no record and comes back as it is."""
    if not any(mark in lines for mark in _MARK_BYTES):
        return lines
    return message_lines(lines.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def one_line(text: str) -> str:
    r"""Return a report on a node with a blank for each ``\n`` and ``\t`` in it, and without colours' ESC.

    What excuses a report excuses all of it, so that it stays one line. A journal's record gives its message.
    """
    message = _journal_message(text) if '"MESSAGE"' in text else None
    if message is not None:
        return message
    return _ESCAPE.sub(lambda found: "\x1b" if found["colour"] else " ", text) if "\\" in text else text


def _of_line(line: str, depth: int = _MOST_DEPTH) -> list[str]:
    text = _CRI.sub("", line, count=1)
    rest, mark = plain(text)
    if depth and rest.lstrip().startswith("{") and (record := _record(rest)) is not None:
        found = _message_of(record, rest)
        if found is None:
            return [text]
        before = f"{mark} " if mark else ""
        return [before + part for each in found.rstrip("\n").split("\n") for part in _of_line(each, depth - 1)]
    if "\\n" not in text or _HARMLESS.search(text) is not None:
        return [text]
    return _QUOTED.sub(_quoted_lines, text).split("\n")


def _quoted_lines(found: re.Match[str]) -> str:
    """Return a quoted text of several lines as lines of their own; any other as it is."""
    text: str = found[found.lastgroup or 0]
    return f"\n{_unescaped(text)}\n" if "\\n" in text else found[0]


def _record(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a line consists of, or else None."""
    try:
        found = msgspec.json.decode(text.encode(errors="surrogateescape"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _message_of(record: dict[str, Any], text: str) -> str | None:
    """Return a record's message, if the line itself does not show it as it is."""
    log = record.get("log")
    if isinstance(log, str) and "stream" in record:
        return log
    message = record.get("MESSAGE")
    if message is not None:
        return _of_journal(message)
    if _HARMLESS.search(text) is not None or _ESCAPE.search(text) is None:
        return None
    texts = list(_texts(record, _MOST_DEPTH))
    return "\n".join(texts) if any(mark in each for each in texts for mark in "\n\t\x1b") else None


def _journal_message(text: str) -> str | None:
    record = _record(text)
    return _of_journal(record.get("MESSAGE")) if record is not None else None


def _of_journal(message: object) -> str | None:
    """Return a journal's message if its record does not show it as it is: an array of bytes, or several lines."""
    if isinstance(message, list):
        try:
            return bytes(message).decode(errors="replace")
        except (TypeError, ValueError):
            return None
    return message if isinstance(message, str) and ("\n" in message or "\x1b" in message) else None


def _texts(value: object, depth: int) -> Iterator[str]:
    """Yield the texts of a record's messages, in its order."""
    if isinstance(value, dict) and depth:
        for key, each in value.items():
            if isinstance(key, str) and _MESSAGES.fullmatch(key) is not None:
                yield from [each] if isinstance(each, str) else _texts(each, depth - 1)
    elif isinstance(value, list) and depth:
        for each in value:
            yield from [each] if isinstance(each, str) else _texts(each, depth - 1)


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(lambda found: "\n" if found["end"] else "\t" if found["tab"] else "\x1b", text)
    return _ESCAPED.sub(r"\1", text)
