"""TRL's measurements on the same work. Runs in TRL's environment, without Rondo.

Prints one line of JSON, figures by part: seconds of what Rondo does in a step, of a ranking all its pairs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true"}

import datasets
import torch
import trl
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Clock(TrainerCallback):  # type: ignore[misc]
    """Time every optimiser step; reset the peak of memory after the first ones."""

    def __init__(self, warm: int, device: str) -> None:
        self.steps: list[float] = []
        self._warm, self._device, self._begun = warm, device, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.steps.append(time.perf_counter() - self._begun)
        if len(self.steps) == self._warm and self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()


def main() -> None:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True)
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--row", type=int, required=True, help="tokens of a prompt with its answer")
    parser.add_argument("--answer", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--micro-batch-tokens", type=int, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    work = json.loads(Path(options.base, "work.json").read_text())
    print(json.dumps({part: measure(part, work[part], options) for part in options.parts}))


def measure(part: str, items: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds, loss and peak memory of the steps that count."""
    # A pair is two rows.
    rows = options.samples * len(items) if part == "grpo" else len(items)
    tokens = options.row if part == "grpo" else 2 * options.row
    micro = largest_divisor(rows, options.micro_batch_tokens // tokens)
    clock = Clock(options.warm, options.device)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(part, items, micro, rows // micro, scratch, options)
        trainer.add_callback(clock)
        trainer.train()
    counted = clock.steps[options.warm :]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "seconds": sum(counted) / len(counted),
        "loss": losses[-1],
        "rows": micro,
        "peak": peak(options.device),
        "attention": attention(options.device),
        "version": trl.__version__,
    }


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor that is at most `most`, at least 1."""
    return max(size for size in range(1, number + 1) if number % size == 0 and size <= max(1, most))


def attention(device: str) -> str:
    """FlashAttention where it is installed."""
    return "flash_attention_2" if device == "cuda" and importlib.util.find_spec("flash_attn") else "sdpa"


def make_trainer(
    part: str, items: list[Any], micro: int, accumulate: int, scratch: str, options: argparse.Namespace
) -> Any:
    """TRL's trainer with our adapter, precision and batch."""
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    common: dict[str, Any] = {
        "output_dir": scratch,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulate,
        "max_steps": options.warm + options.steps,
        "learning_rate": 1e-5,
        "use_cpu": options.device == "cpu",
        # As usual on a GPU: weights and products in bfloat16, the adapter in float32.
        "bf16": options.dtype == "bfloat16",
        "gradient_checkpointing": options.checkpointing,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "model_init_kwargs": {"dtype": options.dtype, "attn_implementation": attention(options.device)},
    }
    adapter = LoraConfig(
        task_type="SEQ_CLS" if part == "reward" else "CAUSAL_LM",
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules=TARGETS,
        modules_to_save=["score"] if part == "reward" else None,
    )
    shared = {"model": options.base, "processing_class": tokenizer, "peft_config": adapter}
    if part == "grpo":
        return trl.GRPOTrainer(
            **shared,
            reward_funcs=length,
            train_dataset=datasets.Dataset.from_list([{"prompt": chat} for chat in items]),
            args=trl.GRPOConfig(
                **common, num_generations=options.samples, max_completion_length=options.answer, beta=0.0
            ),
        )
    data = datasets.Dataset.from_list(items)
    if part == "reward":
        settings = trl.RewardConfig(**common, max_length=options.row)
        return trl.RewardTrainer(**shared, train_dataset=data, args=settings)
    settings = trl.DPOConfig(**common, max_length=options.row, precompute_ref_log_probs=True)
    return trl.DPOTrainer(**shared, train_dataset=data, args=settings)


def length(completions: list[Any], **_: Any) -> list[float]:
    """The reward: fewer characters."""
    return [1 - len(completion[0]["content"]) / 10_000 for completion in completions]


def peak(device: str) -> int:
    """The most bytes since the count began on a GPU; those of the process on a processor."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
