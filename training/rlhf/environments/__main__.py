"""List environments, or train a policy in one and print its success before and after.

    python -m training.rlhf.environments --list
    python -m training.rlhf.environments guess_number --model var/models/SmolLM2-135M-Instruct --smoke

NAME is an example or a folder with `environment.py`, and `recipe.json` with settings of the method
policy_gradient if it has any. The run's folder, with its checkpoint, is OUT/NAME-SEED.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from training.contract import ContractError
from training.contract.files import canonical_json, write_atomically
from training.contract.methods import settings_from_json
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.run import CHECKPOINT_FOLDER, EXIT_FINISHED, RunSpec, write_spec
from training.contract.snapshot import Message, SnapshotPrompt, write_snapshot
from training.rlhf.environments.calls import parse_calls, spoken
from training.rlhf.environments.episodes import EpisodeSample, held_out_seeds, success_figures
from training.rlhf.environments.protocol import (
    HTTP,
    RECIPE,
    Description,
    built_in,
    describe,
    environment_folder,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.loop import sampling_parameters
from training.rlhf.policy_gradient.sampling import RolloutPrompt
from training.rlhf.policy_gradient.world import World
from training.rlhf.runtime.run_folder import resolve_device
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.train import train_run

# Episodes as traces that people label step by step: OpenAI messages, as the web application imports them.
#
# One line for each beginning, with the episodes that started from it as traces to be compared:
#
#     {"traces": [{"messages": […], "tools": […], "source": "guess_number"}, …]}


def write_traces(
    path: Path, groups: Iterable[Sequence[EpisodeSample]], description: Description, *, source: str
) -> int:
    """Write episodes, those of one beginning as one line; return the number of episodes.

    source: what the responses are attributed to, such as a checkpoint's name.
    """
    lines, count = [], 0
    for group in groups:
        traces = [trace(sample, description, source=source) for sample in group]
        count += len(traces)
        lines.append(canonical_json(traces[0] if len(traces) == 1 else {"traces": traces}))
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    return count


def trace(sample: EpisodeSample, description: Description, *, source: str) -> dict[str, Any]:
    """Return one episode. What follows the policy's last turn stays where it is a tool's result: a trace ends
    with the agent, and with what its last call gave."""
    messages: list[dict[str, Any]] = [dict(message) for message in sample.start]
    for turn, (completion, replies) in enumerate(zip(sample.completions, sample.replies, strict=True)):
        names = list(_agent(messages, completion, turn))
        is_last = turn == len(sample.completions) - 1
        results = iter(names)
        for reply in replies:
            if reply["role"] == "tool":
                call = next(results, None)
                messages.append(
                    {"role": "tool", "content": reply["content"], **({"tool_call_id": call} if call else {})}
                )
            elif not is_last:
                messages.append(dict(reply))
    tools = {"tools": list(description.tools)} if description.tools else {}
    return {"messages": messages, "source": source, **tools}


def _agent(messages: list[dict[str, Any]], completion: str, turn: int) -> Iterator[str]:
    """Append a turn of the policy and yield the ids of its calls."""
    calls = parse_calls(completion)
    ids = [f"call-{turn}-{number}" for number in range(len(calls))]
    # A turn without a word is a step all the same: what it did not say can be labelled.
    text = spoken(completion) if calls else completion.strip() or "(empty)"
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for name, call in zip(ids, calls, strict=True)
        ]
    messages.append(message)
    yield from ids


_SMOKE: dict[str, Any] = {"max_steps": 3, "batch_size": 4}
_SMOKE_EPISODES, _EPISODES = 16, 100


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and do what it says; 0 when all went well, 1 with the reason when not."""
    options = _parser().parse_args(arguments)
    transformers_logging.disable_progress_bar()
    try:
        if options.list:
            for name in built_in():
                print(f"{name:14} {describe(name, Path()).sentence}")
            return 0
        if options.name is None or options.model is None:
            raise ContractError("name an environment and --model FOLDER, or write --list")
        return _train(options)
    except ContractError as error:
        print(error, file=sys.stderr)
        return 1


def settings_of(name: str, *, smoke: bool, steps: int | None = None) -> PolicyGradientSettings:
    """Return the settings of an environment's recipe, or the method's where it has none."""
    path = environment_folder(name, Path.cwd()) / RECIPE
    values: dict[str, Any] = {}
    if name != HTTP and path.is_file():
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ContractError(f"{path}: is no JSON ({error})") from None
    place = name if name in built_in() or name == HTTP else str(Path(name).resolve())
    values = {**values, "environment": {**values.get("environment", {}), "name": place}}
    optimiser = {**values.get("optimiser", {}), **(_SMOKE if smoke else {})}
    optimiser |= {} if steps is None else {"max_steps": steps}
    settings = settings_from_json("policy_gradient", {**values, "optimiser": optimiser})
    assert isinstance(settings, PolicyGradientSettings)  # noqa: S101 - for the type checker
    return settings


def _train(options: argparse.Namespace) -> int:
    settings = settings_of(options.name, smoke=options.smoke, steps=options.steps)
    label = Path(options.name).name
    folder: Path = options.out / f"{label}-{options.seed}"
    if options.smoke:
        shutil.rmtree(folder, ignore_errors=True)
    episodes = options.episodes or (_SMOKE_EPISODES if options.smoke else _EPISODES)
    before, _ = _measured(options.model, settings, options, episodes)
    print(f"success before: {before['success']:.1%} of {episodes} held-out episodes", flush=True)
    began = time.monotonic()
    snapshot = folder.with_name(f"{folder.name}-snapshot")
    description = describe(options.name, Path.cwd())
    header = write_snapshot(
        snapshot, (), project=f"environment {label}", rounds=(1,), prompts=(_placeholder(label),)
    )
    spec = RunSpec(
        method="policy_gradient",
        base_model=str(options.model.resolve()),
        snapshot=str(snapshot.resolve()),
        snapshot_digest=header.digest,
        settings=settings,
        seed=options.seed,
        name=f"{label}-{options.seed}",
        device=options.device,
    )
    write_spec(folder, spec)
    if train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0) != EXIT_FINISHED:
        return 1
    minutes = (time.monotonic() - began) / 60
    after, groups = _measured(folder / CHECKPOINT_FOLDER, settings, options, episodes)
    print(
        f"success after:  {after['success']:.1%} of {episodes} held-out episodes; seed {options.seed}, "
        f"{minutes:.1f} minutes"
    )
    if options.traces is not None:
        written = write_traces(options.traces, groups, description, source=spec.name)
        print(f"{written} episodes are in {options.traces}")
    return 0


def _measured(
    model: Path, settings: PolicyGradientSettings, options: argparse.Namespace, count: int
) -> tuple[dict[str, float], list[list[EpisodeSample]]]:
    """Return success on held-out episodes at the temperature of training, and the episodes.

    model: a base's folder, or a checkpoint on --model.
    """
    device = resolve_device(options.device)
    backbone = Backbone.load(options.model, device=device, dtype=torch.float32)
    adapter = None
    if model != options.model:
        adapter = "policy"
        backbone.load_adapter(adapter, model)
    world = World(settings, backbone.tokenizer, Path.cwd())
    seeds = held_out_seeds(count)
    prompts = [RolloutPrompt(f"seed-{seed}", (), (), seed) for seed in seeds]
    groups = world.play(
        backbone,
        prompts,
        sampling_parameters(settings),
        n=1,
        seeds=[seed + options.seed for seed in seeds],
        max_tokens=settings.max_tokens,
        adapter=adapter,
    )
    samples = [sample for group in groups for sample in group]
    return success_figures(samples, world.description.success), groups


def _placeholder(name: str) -> SnapshotPrompt:
    """Return the prompt of the run's snapshot, which such a run does not read."""
    message = Message(role="user", content=f"The environment {name} begins the episodes.")
    return SnapshotPrompt(id="environment", split="train", messages=(message,))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.rlhf.environments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="an example, or a folder with environment.py")
    parser.add_argument("--list", action="store_true", help="list the examples")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="the base model")
    parser.add_argument("--smoke", action="store_true", help="a handful of steps, from the start")
    parser.add_argument("--steps", type=int, metavar="N", help="optimiser steps; the recipe's if left out")
    parser.add_argument("--episodes", type=int, metavar="N", help="held-out episodes that are measured")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("var/environments"), metavar="FOLDER")
    parser.add_argument("--traces", type=Path, metavar="FILE", help="write the last episodes to be labelled")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto")
    return parser


if __name__ == "__main__":
    sys.exit(main())
