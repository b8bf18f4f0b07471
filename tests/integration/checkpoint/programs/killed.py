"""Kill a rank at random instants of its saves, and load after each: killed.py LIVES SEED [FOLDER]

Each life loads the checkpoint, compares it byte for byte with what that step's state was, goes on saving from there,
and says on a pipe which save has returned. Prints, as JSON, in how many lives the save that the kill met had not
returned, and had nevertheless been committed. A life is a fork, since importing PyTorch takes seconds.
"""

import json
import os
import random
import signal
import sys
import time

import torch

from falcon_torch import Checkpoint

SIZES = (1, 1_000_003, 0, 300_000)  # elements


def state(step):
    draw = torch.Generator().manual_seed(step)
    tensors = [torch.randint(0, 255, (size,), dtype=torch.uint8, generator=draw) for size in SIZES]
    return {"step": step, "tensors": tensors, "words": ["x" * (step % 7)]}


def same(found, step):
    wanted = state(step)
    tensors = zip(found["tensors"], wanted["tensors"], strict=True)
    return found["step"] == step and found["words"] == wanted["words"] and all(torch.equal(*pair) for pair in tensors)


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
        step += 1
        coming = state(step)
        os.write(said, f"{step - 1} ".encode())  # returned, or loaded; the next begins
        checkpoint.save(coming, step)


def main(lives, seed, folder):
    chance = random.Random(seed)
    returned = unreported = 0
    for _ in range(lives):
        heard, said = os.pipe()
        child = os.fork()
        if not child:
            os.close(heard)
            try:
                live(folder, returned, said)
            finally:
                os._exit(5)
        os.close(said)
        text = os.read(heard, 4096)  # until the first save begins; b"" where the life ended before
        time.sleep(chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"a life ended by itself with {os.WEXITSTATUS(status)}, after save {returned}")
        while piece := os.read(heard, 4096):
            text += piece
        os.close(heard)
        steps = [int(word) for word in text.split()]
        unreported += bool(steps) and steps[0] > returned
        returned = max([returned, *steps])
    print(json.dumps({"lives": lives, "saves": returned, "committed_though_not_returned": unreported}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
