"""The callback for Hugging Face's `Trainer`, with the real library: a resumed run equals one that was never broken."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import cairn
from tests.support.examples import load_example

pytestmark = pytest.mark.slow
STEPS = 8  # of 6 an epoch


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Imported here: no other test waits for these libraries."""
    return load_example("huggingface_trainer")


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """24 short lines of random words."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        line = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": line, "labels": line}


def gpt(seed: int) -> Any:
    """A tiny GPT-2 with dropout, and tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"))


def trained(folder: Path, model: Any, *callbacks: Any, resume: Any = None, accumulate: int = 1) -> Any:
    """The trainer after training."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=4 // accumulate, learning_rate=0.01,
        gradient_accumulation_steps=accumulate, warmup_steps=2, logging_steps=1, save_strategy="no", report_to="none",
        use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, seed=7,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Text(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume() if resume else None)
    return trainer


def stop_at(step: int) -> Any:
    """A callback that ends training early, as a job's time limit does."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]  # its base is untyped
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == step

    return Stop()


def losses(trainer: Any) -> dict[int, float]:
    """Loss of each step that this trainer ran itself."""
    return {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}


@pytest.mark.parametrize(("stop", "every", "accumulate"), [(4, 2, 1), (6, 6, 1), (5, 100, 2)])
def test_a_resumed_trainer_equals_an_unbroken_one(
    example: ModuleType, store: Path, tmp_path: Path, stop: int, every: int, accumulate: int
) -> None:
    unbroken = trained(tmp_path / "whole", gpt(1), accumulate=accumulate)
    first = example.CairnCallback(store, "gpt", every=every)
    broken = trained(tmp_path / "part", gpt(1), first, stop_at(stop), resume=first.resume_from, accumulate=accumulate)
    assert losses(broken) == {step: loss for step, loss in losses(unbroken).items() if step <= stop}
    second = example.CairnCallback(store, "gpt", every=every)
    resumed = trained(tmp_path / "rest", gpt(2), second, resume=second.resume_from, accumulate=accumulate)
    assert resumed.state.global_step == STEPS
    found = {step: loss for step, loss in losses(resumed).items() if step > stop}
    assert found == {step: loss for step, loss in losses(unbroken).items() if step > stop}
    for name, tensor in unbroken.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    assert list((tmp_path / "rest").rglob("*.safetensors")) == []
    with cairn.open("gpt", store) as checkpoint:
        assert checkpoint.metadata["step"] == STEPS
        assert "model/transformer.wte.weight" in checkpoint


def test_a_loop_of_accelerates_resumes_exactly(example: ModuleType, store: Path) -> None:
    from accelerate import Accelerator, skip_first_batches

    def run(seed: int, first: int, last: int) -> list[float]:
        torch.manual_seed(seed)
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        batches = torch.utils.data.DataLoader(torch.arange(32.0).reshape(8, 4) / 32)
        model, optimizer, scheduler, batches = accelerator.prepare(model, optimizer, scheduler, batches)
        state = {
            "model": model, "optimizer": example.unwrapped(optimizer), "scheduler": example.unwrapped(scheduler),
            "step": 0,
        }  # fmt: skip
        random_states = {"rng": cairn.RngState()}
        found = []
        with cairn.Checkpointer(store, "loop", capture="overlap", start_over=not first) as checkpointer:
            if first:
                checkpointer.load(state)
            assert state["step"] == first
            for batch in skip_first_batches(batches, first):
                if state["step"] == last:
                    break
                if state["step"] == first != 0:  # making the iterator has drawn from them
                    checkpointer.load(random_states)
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                found.append(loss.item())
                state["step"] += 1
                checkpointer.save(state["step"], state | random_states)
        return found

    unbroken = run(1, 0, 8)
    assert run(1, 0, 3) == unbroken[:3]
    assert run(2, 3, 8) == unbroken[3:]
