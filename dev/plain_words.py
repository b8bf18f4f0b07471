"""Find words that leave the actor or the relation open, where a plain word names it. ``dev.prose`` refuses them.

The documents that users and developers read are checked, and the docstrings and comments of the Python packages.
Records of decisions and results keep the words of their day. Code in backquotes and the targets of links are names.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import Final

INSTEAD: Final = {
    "anew": "again",
    "beside": "while, with, next to or compared with",
    "nobody": "no, and who: no rank, no operator",
    "somebody": "who: another actor, a person, the user",
    "the one": "the noun itself",
    "told": "said, reported or named, and by whom",
    "whoever": "the actor: the user, the receiver, another process",
}
TREES: Final = ("core/", "operator/", "agent/", "cli/", "dev/")  # whose docstrings and comments are checked
_WORDS = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)
_NAMES = re.compile(r"``.+?``|`[^`]+`|\]\([^)]*\)")
_OF_THEIR_DAY = ("docs/adr/", "evaluation/", "benchmarks/", "tests/")
OWN: Final = "dev/plain_words.py"  # lists the words


def is_checked(path: str) -> bool:
    """Check whether the words of a file count: a Markdown or Python file, by its path in the tree."""
    if path.endswith(".py"):
        return path.startswith(TREES) and path != OWN
    return path.endswith(".md") and not path.startswith(_OF_THEIR_DAY)


def unclear_words(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each such word in a file, and what to write instead."""
    texts = _texts(source) if path.endswith(".py") else enumerate(source.split("\n"), start=1)
    for first, text in texts:
        for number, line in enumerate(text.split("\n"), start=first):
            for found in _WORDS.finditer(_NAMES.sub("", line)):
                yield number, f"{found[0]!r}: say {INSTEAD[found[0].lower()]}"


def _texts(source: str) -> Iterable[tuple[int, str]]:
    """Yield the comments and docstrings of a module, those of fields among them, each with its first line's number."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
