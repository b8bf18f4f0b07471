"""Kill a rank at random instants of its saves, and load after each: killed.py LIVES SEED [FOLDER]

Each life loads the checkpoint, compares it byte for byte with what that step's state was, goes on saving from there,
and says on a pipe which save has returned. Prints, as JSON, in how many lives the kill met a save, so that one buffer
holds nothing whole. A life is a fork, since importing PyTorch takes seconds.

Most kills come after a random time. On a busy machine few of these meet a save, since they come late, as everything
does. So one life in ``AIMED`` is stopped when a save is seen, and killed only if it stands in the middle of one.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from falcon_torch import Checkpoint
from falcon_torch.store.format import PAGE_BYTES, unpack_commit

AIMED = 4
MOST_TRIES = 50
LOOK_SECONDS = 0.0005  # a save copies for some milliseconds
COPY_SECONDS = 0.002
SAVE_DEADLINE_SECONDS = 20.0
SIZES = (1, 6_000_003, 0, 1_000_000)  # elements
BASE = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in SIZES]


def state(step):
    return {"step": step, "tensors": [base + step % 251 for base in BASE], "words": ["x" * (step % 7)]}


def same(found, step):
    wanted = state(step)
    tensors = zip(found["tensors"], wanted["tensors"], strict=True)
    return found["step"] == step and found["words"] == wanted["words"] and all(torch.equal(*pair) for pair in tensors)


def held(number):
    """Return what one of the two buffers holds."""
    path = Path(os.environ["FALCON_CHECKPOINT_DIR"]) / f"rank-0.{number}"
    with path.open("rb") as file:
        return unpack_commit(file.read(PAGE_BYTES), path.stat().st_size)


def stop_in_a_save(child, chance):
    """Stop a life in the middle of a save, at a random place of its copy; return whether that was met."""
    for _ in range(MOST_TRIES):
        deadline = time.monotonic() + SAVE_DEADLINE_SECONDS
        while None not in map(held, (0, 1)):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
        time.sleep(chance.random() * COPY_SECONDS)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        if None in map(held, (0, 1)):
            return True
        os.kill(child, signal.SIGCONT)
    return False


def live(folder, least, said):
    """Check what is there, then save until killed. Exit code 3: a wrong step, 4: wrong bytes."""
    checkpoint = Checkpoint(folder)
    step, found = checkpoint.load()
    if step not in (least, least + 1):
        print(f"step {step} was loaded after save {least} had returned", file=sys.stderr, flush=True)
        os._exit(3)
    if step and not same(found, step):
        os._exit(4)
    del found
    while True:
        os.write(said, f"{step} ".encode())  # loaded, or saved
        step += 1
        checkpoint.save(state(step), step)


class Lives:
    """One life after another, and what is known of them."""

    def __init__(self, seed, folder):
        self._chance, self._folder = random.Random(seed), folder
        self._save_seconds = 0.01  # as the newest life took for one
        self.returned = 0  # newest step that was loaded, or whose save has returned
        self.torn = 0  # kills that met a save

    def one(self, *, aimed):
        """Let a life begin, kill it, and take down what it has said."""
        heard, said = os.pipe()
        child = os.fork()
        if not child:
            os.close(heard)
            try:
                live(self._folder, self.returned, said)
            finally:
                os._exit(5)
        os.close(said)
        text = self._until_some_saves(heard)
        if not aimed or not stop_in_a_save(child, self._chance):
            time.sleep(self._chance.random() * 2 * self._save_seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"a life ended by itself with {os.WEXITSTATUS(status)}, after save {self.returned}")
        while piece := os.read(heard, 4096):
            text += piece
        os.close(heard)
        self.returned = max([self.returned, *map(int, text.split())])
        self.torn += self.returned > 2 and None in map(held, (0, 1))

    def _until_some_saves(self, heard):
        """Read until a life has loaded and up to three saves have returned."""
        text = os.read(heard, 4096)  # b"" where the life ended before
        began, wanted = time.monotonic(), self._chance.randrange(4)
        while len(text.split()) <= wanted and (piece := os.read(heard, 4096)):
            text += piece
        if wanted:
            self._save_seconds = (time.monotonic() - began) / wanted
        return text


def main(count, seed, folder):
    lives = Lives(seed, folder)
    for number in range(count):
        lives.one(aimed=number % AIMED == 0)
    print(json.dumps({"lives": count, "saves": lives.returned, "killed_in_a_save": lives.torn}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
