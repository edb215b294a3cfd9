"""One measurement of TRL's GRPOTrainer. Runs in TRL's own environment, without Rondo.

Prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true"}

import datasets
import torch
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

SAMPLES, NEW, EPOCHS = 8, 10, 3


class Clock(TrainerCallback):  # type: ignore[misc]
    """Times every optimiser step; sampling is part of the first of three."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._begun = (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps.append((time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]))


class Timed(GRPOTrainer):  # type: ignore[misc]
    """Writes down how long it generates."""

    seconds: list[float] = []

    def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        outputs = super()._generate_single_turn(*arguments, **options)
        self.seconds.append(time.perf_counter() - begun)
        return outputs


def length(completions: list[str], **_: Any) -> list[float]:
    """The reward: characters."""
    return [float(len(completion)) for completion in completions]


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(2)
    datasets.disable_progress_bars()
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(options, scratch)
        trainer.add_callback(clock)
        trainer.train()
    counted = clock.steps[EPOCHS:]
    status = Path("/proc/self/status").read_text()
    print(
        json.dumps(
            {
                "seconds": sum(wall for wall, _ in counted) / options.steps,
                "generation": sum(Timed.seconds[1:]) / options.steps,
                "cpu": sum(cpu for _, cpu in counted) / options.steps,
                "peak": int(status.split("VmHWM:")[1].split()[0]) // 1024,
            }
        )
    )


def make_trainer(options: argparse.Namespace, scratch: str) -> Timed:
    """GRPO with three updates by every batch of samples, all of them in one pass, all weights in float32."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.eos_token
    prompts = [{"prompt": prompt} for prompt in json.loads(options.prompts.read_text())]
    settings = GRPOConfig(
        output_dir=scratch,
        per_device_train_batch_size=SAMPLES * options.batch,
        num_generations=SAMPLES,
        max_completion_length=NEW,
        num_iterations=EPOCHS,
        max_steps=EPOCHS * (options.steps + 1),
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=options.seed,
        model_init_kwargs={"dtype": "float32"},
    )
    return Timed(
        model=options.model,
        args=settings,
        train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=tokenizer,
        reward_funcs=length,
    )


if __name__ == "__main__":
    main()
