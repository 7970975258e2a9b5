"""Train a small language model on CPUs, and keep its checkpoints in Cairn.

    python examples/train_gpt.py --steps 20
    torchrun --nproc-per-node 4 examples/train_gpt.py --layout tp-fsdp --store runs/store --save-every 10

A run continues from the newest checkpoint of its model, if there is one. On equal ranks and layout it then goes on bit
for bit as if it had never stopped; on other ranks or another layout it sees the same samples in the same order.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from gpt.model import Gpt, Shape
from gpt.parallel import LAYOUTS, Alone
from gpt.text import VOCABULARY, make_windows
from torch import Tensor

from cairn.training.dataloader import DistributedCursorSampler
from cairn.training.rng import RngState

CONTEXT = 64
LEARNING_RATE = 3e-3
WARMUP_STEPS = 20
WEIGHT_DECAY = 0.1
NORM_MAX = 1.0
# Ranks wait no longer for one that is silent; one that died is noticed at once.
TIMEOUT = timedelta(minutes=2)


def main() -> None:
    """Join the other ranks, if there are any, and train."""
    options = parse()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if options.layout == "alone":
        train(options, Alone())
        return
    dist.init_process_group("gloo", timeout=TIMEOUT)
    train(options, LAYOUTS[options.layout]())
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """Options; ranks come from the environment, as torchrun sets it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=LAYOUTS, help="how ranks split the model (default: ddp, or alone)")
    parser.add_argument("--steps", type=int, default=100, help="train until so many steps are done")
    parser.add_argument("--global-batch", type=int, default=16, help="samples per step, over all ranks")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=Path, help="file that gets one JSON line per step")
    parser.add_argument("--store", help="Cairn store; without it nothing is saved")
    parser.add_argument("--model", default="gpt", help="name of the model in the store")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--capture", choices=("eager", "overlap"), default="eager")
    options = parser.parse_args()
    has_ranks = "RANK" in os.environ
    options.layout = options.layout or ("ddp" if has_ranks else "alone")
    if has_ranks != (options.layout != "alone"):
        parser.error("layout alone is for one process, the others are for ranks: start them with torchrun")
    return options


def train(options: argparse.Namespace, layout: Alone) -> None:
    """Train until `options.steps` steps are done, those of earlier runs counted."""
    torch.manual_seed(options.seed)
    model = Gpt(Shape(VOCABULARY, CONTEXT, options.dim, options.layers, dropout=options.dropout))
    layout.place(model)
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=LEARNING_RATE, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    windows = make_windows(CONTEXT, options.seed)
    sampler = DistributedCursorSampler(
        len(windows),
        global_batch=options.global_batch,
        rank=layout.data_rank,
        world_size=layout.data_ranks,
        seed=options.seed,
    )
    topology = f"{options.layout} of {layout.ranks}"
    state = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "data": sampler,
        "rng": RngState(mesh=layout.mesh, missing="derive"),
        "step": 0,
        "topology": topology,
    }
    seed_dropout(options.seed, layout, step=0)
    with open_checkpointer(options) as checkpointer, open_losses(options, layout) as losses:
        if checkpointer is not None and checkpointer.load(state, missing_ok=True) is not None:
            say(layout, f"continues after step {state['step']} of {state['topology']}")
        if state["topology"] != topology:
            state["topology"] = topology
            seed_dropout(options.seed, layout, state["step"])
        batches = draw_batches(windows, sampler, options.global_batch // layout.data_ranks)
        while state["step"] < options.steps:
            began = time.perf_counter()
            loss = layout.backward(next(batches))
            layout.clip(NORM_MAX)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            sampler.advance()
            state["step"] += 1
            report(layout, state["step"], layout.total(loss).item(), time.perf_counter() - began, losses)
            if checkpointer is not None and is_due(state["step"], options):
                checkpointer.save(state["step"], state)


def seed_dropout(seed: int, layout: Alone, step: int) -> None:
    """Begin new random numbers, equal on ranks that must draw equal masks.

    After a change of layout it is done again, since random states of other ranks do not promise that.
    """
    torch.manual_seed(seed + (step << 32) + 1 + layout.dropout_rank)


def draw_batches(windows: Tensor, sampler: DistributedCursorSampler, share: int) -> Iterator[Tensor]:
    """This rank's `share` of each batch from the cursor on, without end."""
    while True:
        rest_of_epoch = iter(sampler)
        while indices := list(islice(rest_of_epoch, share)):
            yield windows[indices]


def parameter_groups(model: Gpt) -> list[dict[str, Any]]:
    """The layers' matrices, which decay, and the rest; in each layout, all tensors of one group lie on one mesh."""
    decaying, resting = [], []
    for name, parameter in model.named_parameters():
        (decaying if name.startswith("layers.") and parameter.ndim == 2 else resting).append(parameter)
    return [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": resting, "weight_decay": 0.0}]


def learning_rate_factor(step: int) -> float:
    """A linear rise, then a fall that does not depend on where training ends."""
    return min((step + 1) / WARMUP_STEPS, (WARMUP_STEPS / (step + 1)) ** 0.5)


def open_checkpointer(options: argparse.Namespace) -> Any:
    """The checkpointer, or nothing where no store is named."""
    if options.store is None:
        return nullcontext()
    import cairn

    config = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    provenance = cairn.capture_provenance(config=config)
    return cairn.Checkpointer(options.store, options.model, capture=options.capture, provenance=provenance)


def is_due(step: int, options: argparse.Namespace) -> bool:
    """Whether a checkpoint is saved after this step: every so often, and at the end."""
    return step % options.save_every == 0 or step == options.steps


def open_losses(options: argparse.Namespace, layout: Alone) -> Any:
    """The file of losses, opened by one rank; a run that continues adds to it."""
    if options.losses is None or layout.rank != 0:
        return nullcontext()
    return options.losses.open("a", buffering=1)


def report(layout: Alone, step: int, loss: float, seconds: float, losses: TextIO | None) -> None:
    """Print the loss of the global batch, and note it in full precision."""
    say(layout, f"step {step:5d}  loss {loss:.6f}  {1000 * seconds:4.0f} ms")
    if losses is not None:
        losses.write(json.dumps({"step": step, "loss": loss}) + "\n")


def say(layout: Alone, line: str) -> None:
    """Print a line once, whatever the number of ranks."""
    if layout.rank == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
