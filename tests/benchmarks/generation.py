"""Speed of a model's answers on this machine: one prompt, and a rollout beside `transformers.generate`.

OMP_WAIT_POLICY=PASSIVE python -m tests.benchmarks.generation var/models/SmolLM2-135M-Instruct
python -m tests.benchmarks.generation var/models/SmolLM2-135M-Instruct --rollout \
    $RONDO_TEST_DATA/qa_feedback/feedback.json --dtype float32
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
from transformers import AutoModelForCausalLM

from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import end_tokens
from training.rlhf.sampling import SamplingParameters

QUESTION = "Explain to a ten-year-old why the sky is blue, and then why it turns red at sunset."
TOKENS = 120

PROMPTS, PROMPT_TOKENS, SAMPLES, NEW_TOKENS = 16, 200, 8, 64
"""A step of the policy gradient as issue 5 measures it."""


def main() -> None:
    """Print one line per precision and number of samples, or per sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    parser.add_argument(
        "--rollout",
        type=Path,
        metavar="FEEDBACK",
        help="qa-feedback's questions: be measured beside generate",
    )
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{torch.get_num_threads()} threads; load average before: {load}", flush=True)
    for dtype in options.dtype:
        if options.rollout:
            beside_transformers(options.model, options.rollout, dtype)
        else:
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


def beside_transformers(folder: Path, feedback: Path, dtype: str) -> None:
    """The same prompts by `rollout` and by `transformers.generate`, to full length and with natural ends."""
    backbone = Backbone.load(folder, device="cpu", dtype=getattr(torch, dtype))
    prompts = read_prompts(feedback, backbone.tokenizer)
    ends = sorted(end_tokens(backbone))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    rollout(backbone, prompts[:1], SamplingParameters(max_tokens=2), n=2)
    generate(model, prompts[:1], ends, tokens=2)
    for natural in (False, True):
        # What no end token is known of runs to full length.
        known = ends if natural else []
        with patch("training.rlhf.rollout.generate.end_tokens", return_value=frozenset(known)):
            ours = timed(functools.partial(sample, backbone, prompts))
        theirs = timed(functools.partial(generate, model, prompts, known, tokens=NEW_TOKENS))
        label = f"{dtype}, {'natural ends' if natural else 'full length'}"
        for name, (speed, lengths, seconds) in (("rollout", ours), ("generate", theirs)):
            mean = sum(lengths) / len(lengths)
            cut = sum(length == NEW_TOKENS for length in lengths) / len(lengths)
            summary = f"{mean:.1f} tokens a sample, {cut:.0%} of full length"
            print(f"{label}: {name} {speed:.1f} tokens/s in {seconds:.1f} s ({summary})", flush=True)
        print(f"{label}: {ours[0] / theirs[0]:.2f} times as fast", flush=True)


def read_prompts(feedback: Path, tokenizer: Any) -> list[list[int]]:
    """Chats of exactly `PROMPT_TOKENS` tokens: a passage, cut where it is too long, and its question."""
    prompts: list[list[int]] = []
    for item in json.loads(feedback.read_text(encoding="utf-8")):
        passage = tokenizer(" ".join(item["passages"][0][1]), add_special_tokens=False)["input_ids"]
        for length in range(PROMPT_TOKENS, 0, -1):
            content = f"{tokenizer.decode(passage[:length])}\n\nAnswer in one sentence: {item['question']}"
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) <= PROMPT_TOKENS:
                break
        if len(ids) == PROMPT_TOKENS:
            prompts.append(ids)
        if len(prompts) == PROMPTS:
            return prompts
    raise SystemExit(f"{feedback} holds only {len(prompts)} questions with passages that are long enough")


def timed(write: Callable[[], list[int]]) -> tuple[float, list[int], float]:
    """Tokens per second, the length of each sample, and the seconds in all."""
    begun = time.perf_counter()
    lengths = write()
    seconds = time.perf_counter() - begun
    return sum(lengths) / seconds, lengths, seconds


def sample(backbone: Backbone, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of each of our samples."""
    groups = rollout(backbone, prompts, SamplingParameters(max_tokens=NEW_TOKENS, seed=1), n=SAMPLES)
    return [len(sample.tokens) for group in groups for sample in group]


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], ends: list[int], *, tokens: int) -> list[int]:
    """Return the length of each sample of transformers, up to and including its end token."""
    ids = torch.tensor(prompts)
    model.generation_config.eos_token_id = ends or None
    torch.manual_seed(1)
    # fmt: off
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, num_return_sequences=SAMPLES,
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0,
    )[:, ids.shape[1] :]
    # fmt: on
    lengths = []
    for row in written.tolist():
        ended = [place for place, id in enumerate(row) if id in ends]
        lengths.append(ended[0] + 1 if ended else tokens)
    return lengths


if __name__ == "__main__":
    main()
