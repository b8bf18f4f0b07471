"""Logs of healthy jobs, as launchers, frameworks and training scripts write them: no line tells of an error.

A twentieth of the lines sound bad all the same: warnings, retries that succeeded, metrics and options named after
errors, and what NCCL, PyTorch and the kernel say in passing.
"""

from __future__ import annotations

import json
import random
from typing import Final

# {i}: a growing number; {f}: a fraction; {r}: a rank; {n}: a number below 10 000.
USUAL: Final = (
    "{r}%|████      | {i}/100000 [01:23<12:33, {f}it/s, loss={f}, lr=1.2e-04]",
    " iteration {i}/ 500000 | consumed samples: {n} | elapsed time per iteration (ms): {n}.1 | lm loss: {f}E+00"
    " | loss scale: 1.0 | grad norm: {f} | number of skipped iterations: 0 | number of nan iterations: 0 |",
    "[2026-11-22 12:04:{r}0,123] [INFO] [logging.py:96:log_dist] [Rank {r}] step={i}, skipped=0, lr=[{f}]",
    "node-{r}:{n}:{n} [{r}] NCCL INFO Channel 0{r}/0 : {r}[{r}] -> {r}[3] via P2P/IPC/read",
    "node-{r}:{n}:{n} [{r}] NCCL INFO comm 0x{n} rank {r} nranks 64 cudaDev {r} busId {n} - Init COMPLETE",
    "[rank{r}]: step {i} | loss {f} | grad_norm {f} | tokens/s {n} | mfu {f}",
    "{{'loss': {f}, 'grad_norm': {f}, 'learning_rate': {f}, 'epoch': {f}}}",
    "INFO:trainer:saved checkpoint to /ckpt/step_{i} in {f} s",
    "I1122 12:00:00.{n} {n} trainer.py:{n}] step {i} took {f} s, data {f} s, forward {f} s, backward {f} s",
    "epoch {r} batch {i} train loss {f} accuracy {f} time {f}",
    "2026-11-22T12:04:10.{n}Z rank={r} step={i} loss={f} mem=61.{r}GiB reserved=72.{r}GiB",
    "eval step {i}: perplexity {f}, bleu {f}, exact match {f}",
    "Shuffling shard {n} of 10000; buffer {n} samples",
    "Memory allocated: {n} MB, max allocated: {n} MB, reserved: {n} MB",
)
SOUNDS_BAD: Final = (
    "/opt/conda/lib/python3.11/site-packages/torch/nn/functional.py:{n}: UserWarning: error in x is deprecated",
    "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated and will fail in a later release",
    "[2026-11-22 12:04:10,444] [INFO] [loss_scaler.py:190:update_scale] OVERFLOW! Rank {r} Skipping step. Attempted"
    " loss scale: 65536, reducing to 32768",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {n}.0",
    "val_error={f} top1_error={f} top5_error={f}",
    "step {i} | prediction error: {f} | quantization error {f} | failures: 0",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:{n} (errno: 99 - Cannot assign"
    " requested address).",
    "[rank{r}]:[W1122 12:00:00.{n} ProcessGroupNCCL.cpp:4115] using GPU {r} to perform barrier as devices used by this"
    " process are currently unknown. This can potentially cause a hang",
    "node-{r}:{n}:{n} [{r}] NCCL INFO Call to connect returned Connection refused, retrying",
    "node-{r}:{n}:{n} [{r}] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such"
    " file or directory No plugin found (libnccl-net.so), using internal implementation",
    "node-{r}:{n}:{n} [{r}] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "WARNING:root:could not decode image {n}.jpg, skipping",
    "retrying upload in {r}.0 s (attempt 1/5): Connection reset by peer",
    "Upload succeeded after {r} retries",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "Token indices sequence length is longer than the specified maximum sequence length for this model ({n} > 1024)."
    " Running this sequence through the model will result in indexing errors",
    "  exit_on_missing_checkpoint ...................... False",
    "  distributed_timeout_minutes ..................... {r}",
    "  check_for_nan_in_loss_and_grad .................. True",
    "ProcessGroupNCCL initialization options: size: 8, global rank: {r}, TIMEOUT(ms): 600000, USE_HIGH_PRIORITY: 0",
    "health check of node-{r}: 8 GPUs, 0 ECC errors, 0 Xid errors, no link down",
    "Fault tolerance enabled: restart on failure, error budget {n}",
    "[I ProcessGroupNCCL.cpp:587] [Rank {r}] NCCL watchdog thread started!",
    "Registered a signal handler for SIGTERM; a timeout of {n} s is set",
    "No checkpoint found in /ckpt/{n}: training from scratch",
    "2026-11-22 12:04:10.{n}: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find"
    " TensorRT",
    "dropped {n} documents that were too short; {r} failed the language filter",
    "GPU {r}: temperature 6{r} C, power 5{r}0 W, ECC errors: 0, throttle reasons: none",
)


def lines(count: int, seed: int = 1) -> list[str]:
    """Return so many lines of healthy logs; the same for the same seed."""
    chance = random.Random(seed)
    return [_line(chance, number) for number in range(count)]


def _line(chance: random.Random, number: int) -> str:
    if chance.random() < 0.1:
        record = {"step": number, "loss": chance.random(), "val_error": chance.random(), "errors": 0, "level": "info"}
        return json.dumps(record)
    form = chance.choice(SOUNDS_BAD if chance.random() < 0.05 else USUAL)
    return form.format(i=number, f=f"{chance.random():.4f}", r=chance.randrange(8), n=chance.randrange(10_000))
