"""One measurement of TRL's trainer on the pairs in a file. Runs in TRL's own environment, without Rondo.

Prints one line of JSON: seconds and CPU seconds per pair, the first step left out, and peak memory.
"""

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
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Clock(TrainerCallback):  # type: ignore[misc]
    """Times every optimiser step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._begun = (0.0, 0.0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps.append((time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]))


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--method", choices=["reward", "dpo", "dpo-cached"], required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pairs = [json.loads(line) for line in options.pairs.read_text().splitlines()]
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(options, pairs, scratch)
        trainer.add_callback(clock)
        trainer.train()
    measured = clock.steps[1:]
    status = Path("/proc/self/status").read_text()
    print(
        json.dumps(
            {
                "pairs": len(pairs),
                "seconds": sum(wall for wall, _ in measured) / len(measured) / options.batch,
                "cpu": sum(cpu for _, cpu in measured) / len(measured) / options.batch,
                "peak": int(status.split("VmHWM:")[1].split()[0]) // 1024,
            }
        )
    )


def make_trainer(options: argparse.Namespace, pairs: list[dict[str, Any]], scratch: str) -> Any:
    """TRL's trainer as its documentation sets it up, with our adapter's shape."""
    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = "<|endoftext|>"
    common = {
        "output_dir": scratch,
        "per_device_train_batch_size": options.batch,
        "max_steps": options.steps,
        "max_length": options.max_length,
        "use_cpu": True,
        "bf16": False,
        # Ours keeps its activations too.
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": options.seed,
        "model_init_kwargs": {"dtype": options.dtype},
    }
    reward = options.method == "reward"
    adapter = LoraConfig(
        task_type="SEQ_CLS" if reward else "CAUSAL_LM",
        r=16,
        lora_alpha=32,
        target_modules=TARGETS,
        modules_to_save=["score"] if reward else None,
    )
    settings = (
        RewardConfig(**common)
        if reward
        else DPOConfig(**common, precompute_ref_log_probs=options.method == "dpo-cached")
    )
    return (RewardTrainer if reward else DPOTrainer)(
        model=options.model,
        args=settings,
        train_dataset=datasets.Dataset.from_list(pairs),
        processing_class=tokenizer,
        peft_config=adapter,
    )


if __name__ == "__main__":
    main()
