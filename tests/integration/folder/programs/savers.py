"""Trains a few steps on random data and saves as a library does: ``savers.py LIBRARY FOLDER``, one process a rank.

After each save all ranks meet, and then each tries to make the folder ``FOLDER/no-such/saved``: ``recording.py`` finds
that in its trace.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SAVES = 3


def mark(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / "no-such" / "saved").mkdir()


def barrier() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


def transformers(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Mark(TrainerCallback):
        def on_save(self, *_: object, **__: object) -> None:
            barrier()
            mark(folder / "run")

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8))
    data = [{"input_ids": torch.arange(8) % 16, "labels": torch.arange(8) % 16}] * 64
    arguments = TrainingArguments(
        output_dir=str(folder / "run"),
        max_steps=SAVES * 2,
        save_steps=2,
        save_total_limit=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_on_each_node=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Mark()])  # type: ignore[arg-type]
    trainer.train()


def lightning(folder: Path) -> None:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                barrier()
                mark(folder)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=SAVES,
        accelerator="cpu",
        devices=1,
        num_nodes=RANKS,
        strategy="ddp" if RANKS > 1 else "auto",
        default_root_dir=folder,
        logger=CSVLogger(folder, name="logs"),
        callbacks=[ModelCheckpoint(dirpath=folder / "checkpoints", save_last="link", save_top_k=2, monitor="loss")],
        enable_progress_bar=False,
        log_every_n_steps=1,
    )
    trainer.fit(Module(), data)
    barrier()
    mark(folder)


def deepspeed(folder: Path) -> None:
    import deepspeed
    import torch

    model = torch.nn.Linear(8, 8)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    for step in range(1, SAVES + 1):
        engine.backward(engine(torch.randn(1, 8)).sum())
        engine.step()
        engine.save_checkpoint(str(folder), tag=f"global_step{step}")
        barrier()
        mark(folder)


def dcp(folder: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS,))
    for step in range(1, SAVES + 1):
        state = {"weight": distribute_tensor(torch.randn(16, 16), mesh, [Shard(0)]), "step": step}
        dcp.save(state, checkpoint_id=folder / f"step-{step}")
        if RANK == 0:
            (folder / "latest").write_text(f"step-{step}")
        barrier()
        mark(folder)
    dist.destroy_process_group()


def orbax(folder: Path) -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(folder / "run", options=options) as manager:
        for step in range(1, SAVES + 1):
            state = {"weight": jnp.ones((16, 16)) * step, "bias": jnp.zeros(4)}
            manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()
            mark(folder)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
