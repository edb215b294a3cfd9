"""One measurement of the course's loop, as its notebook has it, in plain transformers.

Samples with `generate` and its default top-k of 50, computes the old log-probabilities by a pass of their own
over left-padded rows, then three updates over all of those rows. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLES, NEW, EPOCHS = 8, 10, 3


def main() -> None:
    """Take the steps and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(options.seed)
    loop = Loop(options.model)
    prompts = json.loads(options.prompts.read_text())
    loop.step(prompts[:2])
    timings = []
    for index in range(options.steps):
        begun = (time.perf_counter(), time.process_time())
        generation = loop.step(prompts[(index + 1) * options.batch :][: options.batch])
        timings.append((time.perf_counter() - begun[0], time.process_time() - begun[1], generation))
    seconds, cpu, generation = (sum(column) / len(timings) for column in zip(*timings, strict=True))
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024
    print(json.dumps({"seconds": seconds, "generation": generation, "cpu": cpu, "peak": peak}))


class Loop:
    """The model, its optimiser, and one step of both."""

    def __init__(self, folder: str) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def step(self, prompts: list[str]) -> float:
        """Sample, then update three times; seconds of the sampling."""
        begun = time.perf_counter()
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.no_grad():
            rows = self.model.generate(
                **inputs,
                do_sample=True,
                top_k=50,
                max_new_tokens=NEW,
                num_return_sequences=SAMPLES,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        generation = time.perf_counter() - begun
        width = inputs["input_ids"].shape[1]
        answers = rows[:, width:]
        ended = (answers == self.tokenizer.eos_token_id).long().cumsum(-1)
        answered = (ended == 0) | ((ended == 1) & (answers == self.tokenizer.eos_token_id))
        mask = torch.cat([inputs["attention_mask"].repeat_interleave(SAMPLES, 0), answered.long()], 1)
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        rewards = torch.tensor([float(len(text)) for text in texts]).view(-1, SAMPLES)
        advantages = (rewards - rewards.mean(-1, keepdim=True)).flatten()
        advantages = (advantages / (advantages.std() + 1e-8))[:, None]
        with torch.no_grad():
            old = self.log_probabilities(rows, mask, width)
        for _ in range(EPOCHS):
            ratio = (self.log_probabilities(rows, mask, width) - old).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 2.0) * advantages)
            loss = -(gain * answered).sum() / answered.sum()
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()
        return generation

    def log_probabilities(self, rows: Tensor, mask: Tensor, width: int) -> Tensor:
        """log π of every answer token: (rows, answer tokens)."""
        logits = self.model(input_ids=rows, attention_mask=mask).logits[:, :-1]
        every = logits.log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
        of_answers: Tensor = every[:, width - 1 :]
        return of_answers


if __name__ == "__main__":
    main()
