"""How fast the starter model answers one prompt on this machine, in both precisions.

OMP_WAIT_POLICY=PASSIVE python -m tests.benchmarks.generation var/models/SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import psutil
import torch

from training.rlhf.backbone import Backbone
from training.rlhf.rollout import SamplingParameters, rollout

QUESTION = "Explain to a ten-year-old why the sky is blue, and then why it turns red at sunset."
TOKENS = 120


def main() -> None:
    """Print one line per precision and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{torch.get_num_threads()} threads; load average before: {load}")
    for dtype in options.dtype:
        measure(options.model, dtype)


def measure(model: Path, dtype: str) -> None:
    """Load the model, answer once to warm up, then with 1 and with 4 samples."""
    begun = time.perf_counter()
    backbone = Backbone.load(model, device="cpu", dtype=getattr(torch, dtype))
    loaded = time.perf_counter() - begun
    chat = [{"role": "user", "content": QUESTION}]
    text = backbone.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
    rollout(backbone, [prompt], SamplingParameters(max_tokens=3), n=4)
    memory = psutil.Process().memory_info().rss / 1e6
    print(f"{dtype}: loaded in {loaded:.1f} s, RSS {memory:.0f} MB")
    for n in (1, 4):
        parameters = SamplingParameters(temperature=0.8, top_p=0.95, max_tokens=TOKENS, seed=5)
        begun, busy = time.perf_counter(), time.process_time()
        [samples] = rollout(backbone, [prompt], parameters, n=n)
        seconds = time.perf_counter() - begun
        busy = time.process_time() - busy
        tokens = sum(len(sample.tokens) for sample in samples)
        speed = f"{tokens / seconds:.1f} tokens/s, {busy:.1f} CPU seconds"
        print(f"  n={n}: {tokens} tokens in {seconds:.1f} s, {speed}")


if __name__ == "__main__":
    main()
