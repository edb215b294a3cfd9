"""A stand-in for TRL's command line: reads the configuration, saves as transformers does, learns nothing.

FAKE_TRL says what else it does: `fail`, `hang` after its first save, `half` an adapter, `nothing` at all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import safe_open
from safetensors.numpy import save_file


def main() -> None:
    """Do what `trl COMMAND --config FILE --num_processes N` would."""
    command, flag, file, *more = sys.argv[1:]
    assert flag == "--config"
    assert more[0] == "--num_processes"
    config: dict[str, Any] = yaml.safe_load(Path(file).read_text())
    for name, value in config.items():
        print(f"{name}={value!r}", flush=True)
    behaviour = os.environ.get("FAKE_TRL", "")
    if behaviour == "fail" or not isinstance(config["learning_rate"], float):
        print("ValueError: the learning rate is no number", flush=True)
        sys.exit(1)
    if behaviour == "nothing":
        return
    output = Path(config["output_dir"])
    first = 0
    if "resume_from_checkpoint" in config:
        state = json.loads((Path(config["resume_from_checkpoint"]) / "trainer_state.json").read_text())
        first = state["global_step"]
    history = [entry for step in range(1, first + 1) for entry in lines(step)]
    for step in range(first + 1, config["max_steps"] + 1):
        print(f"{{'loss': '{1 / step:.4f}', 'epoch': '0.1'}}", flush=True)
        history += lines(step)
        if step % config["save_steps"] == 0 or step == config["max_steps"]:
            save(output / f"checkpoint-{step}", config, step, history)
        if behaviour == "hang":
            half = output / f"checkpoint-{step + 1}"
            half.mkdir()
            (half / "adapter_model.safetensors").write_bytes(b"half")
            time.sleep(600)
    save(output, config, config["max_steps"], None)
    if behaviour == "half":
        adapter = output / "adapter_model.safetensors"
        adapter.write_bytes(adapter.read_bytes()[:-100])
    print(f"{command} is done; its key is {os.environ.get('RONDO_JUDGE_KEY')}", flush=True)


def lines(step: int) -> list[dict[str, Any]]:
    """Return the log history of a step as transformers writes it."""
    entry = {"step": step, "epoch": 0.1, "loss": 1 / step, "grad_norm": 0.5, "rewards/margins": 0.25}
    return [entry, {"step": step, "epoch": 0.1, "eval_loss": 2 / step, "eval_rewards/accuracies": 0.75}]


def save(folder: Path, config: dict[str, Any], step: int, history: list[dict[str, Any]] | None) -> None:
    """Write an adapter whose weights are all the step's number, and the state."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, targets = config["lora_r"], config["lora_target_modules"]
    state = {}
    with safe_open(Path(config["model_name_or_path"]) / "model.safetensors", "numpy") as base:
        for name in targets:
            outputs, inputs = base.get_slice(f"{name}.weight").get_shape()
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                state[f"base_model.model.{name}.lora_{part}.weight"] = np.full(shape, step, np.float32)
    save_file(state, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {"peft_type": "LORA", "r": rank, "lora_alpha": config["lora_alpha"], "target_modules": targets}
        )
    )
    if history is not None:
        (folder / "trainer_state.json").write_text(
            json.dumps({"global_step": step, "log_history": history, "best_global_step": None})
        )


if __name__ == "__main__":
    main()
