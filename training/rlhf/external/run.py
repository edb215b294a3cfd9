"""A run that TRL trains: from the snapshot to a checkpoint that the registry accepts.

In the run's folder, `state/trl` is TRL's working folder: `data` (the datasets), `trl.yaml`, `output` (its
saves). The checkpoint has `trl.yaml` and `trl.json` beside the adapter: version, command, packages and their
digest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import training
from training.contract import (
    CHECKPOINT_FOLDER,
    STATE_FOLDER,
    ContractError,
    EvaluationReport,
    PolicyGradientSettings,
    RunSpec,
    read_prompts,
    read_snapshot,
    write_atomically,
    write_evaluation,
)
from training.contract.external import trl_command
from training.rlhf.external.configuration import DATA, OUTPUT, START, Machine, configuration, to_yaml
from training.rlhf.external.environment import (
    TrlEnvironment,
    child_variables,
    find_environment,
    reward_variables,
)
from training.rlhf.external.process import (
    STATE_FILE,
    TrlProcess,
    held_out_of,
    last_save,
    read_state,
    remove_broken_saves,
    step_of,
)
from training.rlhf.external.rows import Rows, rows_of_judgments, rows_of_prompts, write_rows
from training.rlhf.loop.checkpoints import save_adapter, save_checkpoint
from training.rlhf.loop.method import start_adapter
from training.rlhf.loop.run import rows_of_part
from training.rlhf.model.adapter_files import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.config import resolve_device, resolve_dtype
from training.rlhf.runtime.run_folder import RunFolder, log
from training.rlhf.runtime.stopping import StopRequest

ADAPTER = "policy"
WORK_FOLDER = "trl"
CONFIGURATION_FILE = "trl.yaml"
PROVENANCE_FILE = "trl.json"
_REWARD_FILE = "rondo_reward.py"
_BEFORE_LORA, _AFTER_LORA = "base_model.model.", ".lora_A.weight"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The command, variables and data that TRL is started with."""

    command: list[str]
    variables: dict[str, str]
    yaml: str
    """Its configuration, with the base's name in place of its folder."""
    steps: int
    rows: Rows


def train_by_trl(folder: RunFolder, spec: RunSpec, snapshot: Path, stop: StopRequest) -> str:
    """Train a run by TRL's command line; return what to say at the end.

    Raises `ContractError` where TRL is missing, fails, or leaves no whole adapter; `StoppedError` once asked
    to stop: started again, it goes on from TRL's last save.
    """
    environment = find_environment()
    work = folder.path / STATE_FOLDER / WORK_FOLDER
    work.mkdir(parents=True, exist_ok=True)
    folder.trim_metrics()
    folder.tell("starting", "writing TRL's data")
    prepared = _prepare(folder, spec, snapshot, work, environment)
    stop.check()
    log.info("Training %s by TRL %s, %d steps", spec.method, environment.packages["trl"], prepared.steps)
    output = work / OUTPUT
    process = TrlProcess(folder, work, output, steps=prepared.steps, stop=stop)
    process.run(prepared.command, prepared.variables)
    folder.tell("running", "reading TRL's adapter", step=prepared.steps, total_steps=prepared.steps)
    _take_in(folder, spec, output, prepared, environment)
    shutil.rmtree(work, ignore_errors=True)
    return f"{prepared.steps} steps by TRL {environment.packages['trl']} on {len(prepared.rows.train)} rows"


def _prepare(
    folder: RunFolder, spec: RunSpec, snapshot: Path, work: Path, environment: TrlEnvironment
) -> _Prepared:
    """Write the datasets and the configuration."""
    settings = spec.settings
    device = resolve_device(spec.device)
    dtype = str(resolve_dtype(spec.dtype, device)).removeprefix("torch.")
    backbone = Backbone.load(Path(spec.base_model), device="cpu", dtype=getattr(torch, dtype))
    start_adapter(backbone, ADAPTER, spec, settings.trained)
    names = backbone.adapter_state(ADAPTER)
    modules = sorted(
        name.removeprefix(_BEFORE_LORA).removesuffix(_AFTER_LORA) for name in names if _AFTER_LORA in name
    )
    rows = _rows(spec, snapshot, backbone)
    folder.list_dropped(rows.dropped)
    if rows.is_weighed:
        log.warning("Judgments of this snapshot have weights, and TRL counts all alike")
    write_rows(work / DATA, rows)
    remove_broken_saves(work / OUTPUT)
    saved = last_save(work / OUTPUT)
    resume = None if saved is None else f"{OUTPUT}/{saved.name}"
    if saved is not None:
        log.info("Going on after step %d, from TRL's save", step_of(saved))
    elif spec.parent is not None:
        resume = START
    machine = Machine(dtype=dtype, has_gpu=device.type == "cuda")
    values = configuration(spec, rows, modules=modules, machine=machine, resume=resume)
    if resume == START:
        _write_start(work / START, backbone, values)
    write_atomically(work / CONFIGURATION_FILE, to_yaml(values))
    command = [str(environment.program), str(trl_command(settings)), "--config", CONFIGURATION_FILE]
    variables = child_variables(os.environ, program=environment.program)
    variables["HF_DATASETS_CACHE"] = str(work / "cache")
    if isinstance(settings, PolicyGradientSettings):
        environment.require("httpx")
        model = Path(str(settings.rewards[0].checkpoint)).name
        variables |= reward_variables(os.environ, model=model)
        shutil.copyfile(Path(training.__file__).parent / "serving" / _REWARD_FILE, work / _REWARD_FILE)
    return _Prepared(
        command=[*command, "--num_processes", str(spec.processes)],
        variables=variables,
        yaml=to_yaml({**values, "model_name_or_path": Path(spec.base_model).name}),
        steps=values["max_steps"],
        rows=rows,
    )


def _rows(spec: RunSpec, snapshot: Path, backbone: Backbone) -> Rows:
    if isinstance(spec.settings, PolicyGradientSettings):
        return rows_of_prompts(read_prompts(snapshot), backbone.tokenizer, spec.settings)
    rows = rows_of_part(read_snapshot(snapshot), spec.judgments)
    return rows_of_judgments(rows, backbone.tokenizer, spec.settings)


def _write_start(folder: Path, backbone: Backbone, values: Mapping[str, Any]) -> None:
    """Write the parent's adapter as a save of TRL's after no step, from which it goes on.

    values: TRL's configuration; what a save says of it takes the place of the configuration's own.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_adapter(folder, backbone, ADAPTER)
    state = {
        "global_step": 0,
        "epoch": 0.0,
        "log_history": [],
        "train_batch_size": values["per_device_train_batch_size"],
        "stateful_callbacks": {"TrainerControl": {"args": {}, "attributes": {}}},
        **{name: values[name] for name in ("max_steps", "logging_steps", "eval_steps", "save_steps")},
    }
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")


def _take_in(
    folder: RunFolder, spec: RunSpec, output: Path, prepared: _Prepared, environment: TrlEnvironment
) -> None:
    """Make TRL's adapter the run's checkpoint. Raises `ContractError` where it is not as asked for."""
    path = output / ADAPTER_FILE
    saved = last_save(output)
    if not path.is_file() or not (output / ADAPTER_CONFIG_FILE).is_file() or saved is None:
        raise ContractError(f"TRL ended without an adapter in {output}; see log.txt, then start again")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ContractError(f"{path}: TRL's adapter is not whole ({error}); start again") from None
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise ContractError(f"{path}: TRL's adapter has weights that are not finite; lower the learning rate")
    backbone = Backbone.load(Path(spec.base_model), device="cpu", dtype=torch.float32)
    lora = backbone.fitted(spec.settings.lora)
    backbone.add_adapter(ADAPTER, lora, seed=spec.seed)
    try:
        backbone.restore(ADAPTER, {name: tensor.float() for name, tensor in tensors.items()}, {})
    except ContractError as error:
        raise ContractError(f"{path}: TRL's adapter is not the one that was asked for ({error})") from None
    state = read_state(saved)
    best = state.get("best_global_step") if spec.settings.optimiser.keep_best else None
    step = cast("int", best or state["global_step"])
    held_out = held_out_of(state, step)
    if held_out:
        write_evaluation(folder.path, EvaluationReport(step=step, figures=held_out, details={}))
    save_checkpoint(
        folder.path / CHECKPOINT_FOLDER,
        backbone=backbone,
        adapter=ADAPTER,
        kind="policy",
        spec=spec,
        steps=step,
        metrics=held_out,
        dropped=prepared.rows.dropped,
        warnings=folder.warnings,
        texts={CONFIGURATION_FILE: prepared.yaml, PROVENANCE_FILE: _provenance(prepared, environment)},
        versions=environment.versions,
    )


def _provenance(prepared: _Prepared, environment: TrlEnvironment) -> str:
    values = {
        "trl": environment.packages["trl"],
        "command": ["trl", *prepared.command[1:]],
        "packages": environment.frozen.split(),
        "packages_digest": environment.digest,
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
