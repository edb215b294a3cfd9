"""Measure a reward model on a yardstick: `python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER …`.

    python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER --set reward-bench-2 test.parquet
    python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER --set rm-bench total.json --most 500

Prints a table; `--out` writes the result as JSON. The files are their authors'; download them first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from training.contract import ContractError, manifest_digest
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.from_settings import learned_reward, reward_settings
from training.rlhf.yardsticks.measure import measure
from training.rlhf.yardsticks.sets import YARDSTICKS


def main(arguments: list[str] | None = None) -> None:
    """Read the arguments, measure, print. Ends with status 1 and a message where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m training.rlhf.yardsticks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("checkpoint", type=Path, help="folder of a reward model")
    parser.add_argument("file", type=Path, help="the test set: .json, .jsonl, .jsonl.gz or .parquet")
    parser.add_argument("--set", required=True, choices=sorted(YARDSTICKS), help="which test set it is")
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--most", type=int, help="a fixed sample of so many items")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    options = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    try:
        settings = reward_settings(options.checkpoint, "CHECKPOINT")
        backbone = Backbone.load(options.base, device=options.device, dtype=torch.float32)
        reward = learned_reward(options.checkpoint, backbone, settings)
        result = measure(YARDSTICKS[options.set], reward, options.file, most=options.most)
    except ContractError as error:
        sys.exit(str(error))
    result |= {"set": options.set, "checkpoint": manifest_digest(options.checkpoint)}
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(table_of(result))


def table_of(result: Mapping[str, Any]) -> str:
    """Return a result as a table for a terminal."""
    lines = [f"{result['title']}: {result['items']} items, {result['left_out']} left out"]
    for name, figure in result["figures"].items():
        bounds = "" if figure["low"] is None else f"  ({figure['low']:.3f} to {figure['high']:.3f})"
        lines.append(f"  {name:<24}{figure['value']:.3f}{bounds}  of {figure['items']}")
    lines.append(f"  {'chance':<24}{result['chance']:.3f}")
    lines += [
        f"  {entry['model']}, {entry['figure']}: {entry['value']:.3f} ({entry['source']})"
        for entry in result["published"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
