"""Learn the model that judges lines by their likeness (ADR 172), and write it into the package.

    python -m evaluation.errors.learn           # learn and write core/falcon_core/errors/likeness/model.npz
    python -m evaluation.errors.learn --check   # exit code 1 where the lines or the features have changed since

It learns from part one and from ``taught``; no line of part two is read. Takes half a minute.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.svm import LinearSVC

from evaluation.errors.lines import BENIGN, Labelled, part_one, taught
from falcon_core.errors.classify import plain_text
from falcon_core.errors.judge import Judge
from falcon_core.errors.likeness import features as features_module
from falcon_core.errors.likeness.features import PAIR_BITS, WORD_BITS, features
from falcon_core.errors.likeness.model import FILE, SIZE, vector
from falcon_core.errors.likeness.scope import NONE
from falcon_core.errors.table import Source, shipped

PATH: Final = Path(features_module.__file__).with_name(FILE)
COST: Final = 1.0  # of a line on the wrong side, against large weights
MOST: Final = 127  # int8


def learn() -> dict[str, Any]:
    """Return the parts of the model: a linear classifier of each class against all others, with int8 weights."""
    lines = [*part_one(), *taught()]
    judge = Judge(shipped(), by_likeness=False)
    texts = [plain_text(_words(line, judge), line.source) for line in lines]
    rarity = _rarity(texts)
    rows = [vector(text, line.source, rarity) for text, line in zip(texts, lines, strict=True)]
    starts = np.cumsum([0, *(len(places) for places, _ in rows)])
    columns, values = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    table = csr_matrix((values, columns, starts), shape=(len(rows), SIZE))
    wanted = [NONE if line.error_class == BENIGN else line.error_class for line in lines]
    fitted = LinearSVC(C=COST, random_state=0).fit(table, wanted)
    scale = float(np.abs(fitted.coef_).max()) / MOST
    return {
        "classes": fitted.classes_.astype(str),
        "weights": np.round(fitted.coef_.T / scale).astype(np.int8),
        "scale": np.float32(scale),
        "bias": fitted.intercept_.astype(np.float32),
        "rarity": rarity,
        "learned_from": np.array(learned_from(lines)),
    }


def learned_from(lines: list[Labelled]) -> str:
    """Return a digest of the lines with their labels, and of the code that makes features of them."""
    digest = hashlib.sha256(Path(features_module.__file__).read_bytes())
    for line in lines:
        digest.update(repr((line.text, line.source, line.error_class)).encode())
    return digest.hexdigest()


def is_current() -> bool:
    """Check whether the model in the package was learned from the lines as they are now."""
    with np.load(PATH) as learned:
        return str(learned["learned_from"]) == learned_from([*part_one(), *taught()])


def _words(line: Labelled, judge: Judge) -> str:
    """Return what of a line is judged: of a process's output the line that the rules choose."""
    chosen = judge.last_words(line.text).text if line.source is Source.OUTPUT else ""
    return chosen or line.text


def _rarity(texts: list[str]) -> Any:
    """Return how much each word and pair tells, by how few lines have it: float32 [SIZE - sources]."""
    lines_with = np.zeros((1 << WORD_BITS) + (1 << PAIR_BITS))
    for words, both in map(features, texts):
        lines_with[list(words)] += 1
        lines_with[[place + (1 << WORD_BITS) for place in both]] += 1
    return (np.log((1 + len(texts)) / (1 + lines_with)) + 1).astype(np.float32)


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.errors.learn", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check whether the model is of the present lines")
    if parser.parse_args().check:
        if is_current():
            return 0
        print(f"{PATH}: learned from other lines or features; write it again: python -m evaluation.errors.learn")
        return 1
    np.savez_compressed(PATH, **learn())
    print(f"{PATH}: {PATH.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
