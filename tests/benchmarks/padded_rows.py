"""What padded rows cost beside packed ones, on the same base: a learning pass, and a rollout.

OMP_WAIT_POLICY=PASSIVE python -m tests.benchmarks.padded_rows var/models/SmolLM2-135M-Instruct

Families that packed attention does not know are computed on padded rows. Here one that packs is made to pad.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from training.contract.methods.common import LoraSettings
from training.rlhf.loop.log_probabilities import token_log_probabilities
from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.padded_rows import pad_rows
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters


def main() -> None:
    """Print seconds of both ways, each the median of several rounds by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=200, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=100, help="tokens of a response")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="responses to a prompt")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads; load average {os.getloadavg()[0]:.1f}", flush=True)
    ways = {"packed": _backbone(options.model), "padded": _backbone(options.model)}
    pad_rows(ways["padded"]._model, "sdpa", keeps=True)
    sizes = options.prompts, options.samples, options.prompt, options.answer
    measures: dict[str, Callable[[Backbone], object]] = {
        "learning": lambda backbone: learn(backbone, *sizes),
        "rollout": lambda backbone: write(backbone, *sizes),
    }
    for name, measure in measures.items():
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _, (way, backbone) in itertools.product(range(options.rounds), ways.items()):
            begun = time.perf_counter()
            measure(backbone)
            seconds[way].append(time.perf_counter() - begun)
        packed, padded = (statistics.median(seconds[way]) for way in ("packed", "padded"))
        print(
            f"{name}: packed {packed:.2f} s, padded {padded:.2f} s, {padded / packed:.2f} times", flush=True
        )


def _backbone(model: Path) -> Backbone:
    backbone = Backbone.load(model, device="cpu", dtype=torch.float32)
    backbone.add_adapter("policy", LoraSettings(), seed=0, trainable=True)
    return backbone


def learn(backbone: Backbone, prompts: int, samples: int, prompt: int, answer: int) -> None:
    """Run a forward and a backward pass over prompts with several responses each."""
    segments: list[Segment] = []
    places: list[int] = []
    for _ in range(prompts):
        first = len(segments)
        segments.append(Segment(len(places), prompt))
        places += range(prompt)
        for _ in range(samples):
            segments.append(Segment(len(places), answer, first))
            places += range(prompt, prompt + answer)
    ids = torch.arange(len(places))[None] % 1000 + 100
    with backbone.using("policy"):
        layout = Layout(segments, backbone.device)
        states = backbone.packed_states(ids, torch.tensor([places]), layout)
        head = backbone.lm_head("policy")
        backbone.backward(-token_log_probabilities(states[:-1], ids[0, 1:], head).mean())


def write(backbone: Backbone, prompts: int, samples: int, prompt: int, answer: int) -> None:
    """Sample responses of full length."""
    wanted = [[100 + (number * 37 + place) % 1000 for place in range(prompt)] for number in range(prompts)]
    rollout(backbone, wanted, SamplingParameters(max_tokens=answer), n=samples, adapter="policy")


if __name__ == "__main__":
    main()
