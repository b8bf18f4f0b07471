"""Data-parallel ranks of an iteration that a failure breaks: accumulate, lose a rank, finish as the plan says.

    broken_iteration.py SPEC

SPEC is JSON: the ranks' micro-batches and how many each finishes, the failed rank, the segments that are reduced before
it dies, the survivors' plan, and two ports. Segments are the two layers of a small network. Each rank is a process,
forked so that PyTorch is imported once. Prints a line of JSON for each survivor, and one with all exit codes.
"""

import json
import os
import sys
import traceback

import torch
import torch.distributed as dist

SEGMENTS = {"first": 0, "second": 2}  # segment → layer


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).double()


def gradients(model: torch.nn.Sequential, number: int) -> dict[str, torch.Tensor]:
    """Run forward and backward of one micro-batch; return the gradient of each segment, flat."""
    data = torch.randn(8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 + number))
    model.zero_grad()
    model(data).square().sum().backward()
    return {
        name: torch.cat([parameter.grad.flatten() for parameter in model[layer].parameters()])
        for name, layer in SEGMENTS.items()
    }


def whole_gradient(model: torch.nn.Sequential, spec: dict) -> dict[str, torch.Tensor]:
    """Return the sum over all micro-batches of all ranks, as without a failure."""
    batches = [gradients(model, number) for numbers in spec["microbatches"] for number in numbers]
    return {name: torch.stack([batch[name] for batch in batches]).sum(0) for name in SEGMENTS}


def join(rank: int, world: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)


def run(rank: int, spec: dict) -> None:
    torch.set_num_threads(1)
    model = network()
    buffers = {name: torch.zeros_like(value) for name, value in gradients(model, 0).items()}

    def accumulate(numbers: list[int], segments: list[str]) -> None:
        for number in numbers:
            gradient = gradients(model, number)
            for name in segments:
                buffers[name] += gradient[name]

    join(rank, len(spec["microbatches"]), spec["ports"][0])
    accumulate(spec["microbatches"][rank][: spec["finished"][rank]], list(SEGMENTS))
    for name in spec["reduced"]:
        dist.all_reduce(buffers[name])
    dist.barrier()
    if rank == spec["failed"]:
        os._exit(9)

    plan, own_key = spec["plan"], str(rank)
    survivors = [member for member in range(len(spec["microbatches"])) if member != spec["failed"]]
    dist.destroy_process_group()
    join(survivors.index(rank), len(survivors), spec["ports"][1])
    for name in plan["restart"]:
        buffers[name].zero_()
    accumulate(plan["own"][own_key] + plan["extra"][own_key], plan["add"] + plan["restart"])
    accumulate(plan["again"][own_key], plan["restart"])
    for name in plan["add"] + plan["restart"]:
        dist.all_reduce(buffers[name])
    whole = whole_gradient(model, spec)
    error = max(float((buffers[name] - whole[name]).abs().max() / whole[name].abs().max()) for name in SEGMENTS)
    line = json.dumps({"rank": rank, "error": error, "size": float(whole["first"].abs().max())}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())  # at once: another rank may write at the same time
    dist.destroy_process_group()


def main() -> None:
    spec, children = json.loads(sys.argv[1]), []
    for rank in range(len(spec["microbatches"])):
        child = os.fork()
        if child == 0:
            try:
                run(rank, spec)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps({"exit_codes": codes}))


if __name__ == "__main__":
    main()
