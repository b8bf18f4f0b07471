"""Refuse docstrings of functions that do not begin with a verb in the base form: ``python -m dev.docstrings``.

Sections (``Args:``, ``Raises:``, …) whose entries run on in the same line are refused, too. So are modules whose
docstring begins with a question word, a preposition or an article, and modules that are named by a participle.

No word list knows all verbs, so this knows what is none: articles, question words, prepositions, pronouns, and words
that end in "s" ("Returns") or begin in lower case. Test functions are left out: their names are sentences.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from dev.limits import ROOT, modules

_WORDS = (
    "A After All Also An And As At Before Both By Each Every Everything False For From Has How If In Is It Its Never No"
    " None Not Nothing Of On One Only Same That The These This Those To True Two Under Until What When Where Whether"
    " Which Who Why With Within Without"
)
NO_VERBS = frozenset(_WORDS.split())
ENDS_IN_S = frozenset({"Access", "Address", "Bypass", "Compress", "Discuss", "Express", "Focus", "Pass", "Process"})
NO_MODULE_BEGINS_WITH = frozenset(
    {"a", "an", "for", "from", "how", "of", "the", "what", "when", "where", "which", "who"}
)
TREES_OF_MODULES = ("core", "operator", "agent", "cli", "dev")  # where this holds
_PARTICIPLES = "anew aside asked asking beside evened heard said saying speaking spoken telling together told waited"
# A module's name is a noun of the field, which a reader understands without the modules around it.
NO_MODULE_NAME = frozenset(_PARTICIPLES.split())
RUN_ON = re.compile(r"^(?:Args|Returns|Raises|Yields):[ ]*\S.*", re.MULTILINE)


def begins_with_verb(docstring: str) -> bool:
    """Check whether the first word may be a verb in the base form."""
    word = docstring.split()[0].strip("`.,:;")
    return word[:1].isupper() and word not in NO_VERBS and (not word.endswith("s") or word in ENDS_IN_S)


def beside_the_rule(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line of each docstring that breaks a rule, and what to do."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
            continue
        docstring = ast.get_docstring(node)
        if docstring and not begins_with_verb(docstring):
            yield node.lineno, f"begin with a verb in the base form (Return, Check, …): {docstring.splitlines()[0]}"
        if docstring and (section := RUN_ON.search(docstring)):
            yield node.lineno, f"a section's entries begin on lines of their own: {section[0]}"


def faults_of_module(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield line 1 of a module whose docstring or name breaks a rule, and what to do. ``path``: in the tree."""
    docstring = ast.get_docstring(ast.parse(source))
    if docstring and path.startswith(tuple(f"{tree}/" for tree in TREES_OF_MODULES)):
        first = docstring.split()[0].strip("`.,:;").lower()
        if first in NO_MODULE_BEGINS_WITH:
            yield 1, f"begin with a verb that says what the module does: {docstring.splitlines()[0]}"
    is_test = path.startswith("tests/")
    if not is_test and (words := NO_MODULE_NAME.intersection(Path(path).stem.split("_"))):
        yield 1, f"name the module by a noun of the field, without {', '.join(sorted(words))}"


def main() -> int:
    found = [(path, *broken) for path in modules() for broken in beside_the_rule(ROOT / path)]
    found += [
        (path, *broken) for path in modules() for broken in faults_of_module(path, (ROOT / path).read_text("utf-8"))
    ]
    for path, line, text in found:
        print(f"{path}:{line}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
