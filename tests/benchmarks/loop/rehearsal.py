"""Rounds without the application: one process samples, judges, trains, evaluates and decides.

OMP_NUM_THREADS=1 python -m tests.benchmarks.loop.rehearsal WRITER --policy dpo grpo --seeds 0 1 2

Losses, advantages, the head on frozen features with its cross-validation and the intervals are the product's;
API, database, model server and second evaluator are left out. A course takes half a minute of processor time,
so settings are tried here before `tests.benchmarks.loop` runs them in the application. WRITER is a folder
that `tests.benchmarks.loop.writer` made.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from annotation.agreement.intervals import wilson_interval
from tests.benchmarks.loop.grammar import prompts as write_prompts
from tests.benchmarks.loop.preferences import SCENES
from tests.benchmarks.loop.truth import accuracy, decision_agrees, win_rate
from training.rlhf.advantages import group_relative
from training.rlhf.kl import estimate
from training.rlhf.losses import dpo, policy_gradient
from training.rlhf.measures.features import places_to_read
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.methods.baselines import FrozenHead, fit_frozen_head
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example

_TOKENS = 48
_HELD_OUT, _FRESH = 78, 150
_LEAST_PROMPTS, _LEAST_JUDGMENTS = 20, 30
"""As in a recipe: on fewer differing prompts, or held-out judgments, nothing is decided."""


@dataclass(frozen=True, slots=True)
class Size:
    """Amounts of a course."""

    rounds: int
    pairs: int
    """Judged in a round; a fifth of them on held-out prompts."""
    steps: int
    rate: float
    beta: float


@dataclass(slots=True)
class Judged:
    """Pairs of texts that were judged, the preferred one first."""

    prompts: list[str] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)


class Writer:
    """A writer with one adapter: samples, log-probabilities and frozen features."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.manual_seed(seed)
        self.words = AutoTokenizer.from_pretrained(folder)
        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        self.model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), lora).eval()
        self.trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.places = places_to_read(self.model.config.num_hidden_layers)

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the adapter."""
        return {name: value.detach().clone() for name, value in self.trained.items()}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Take a copy of an adapter."""
        with torch.no_grad():
            for name, value in self.trained.items():
                value.copy_(state[name])

    def _prompt_ids(self, prompt: str) -> list[int]:
        chat = [{"role": "user", "content": prompt}]
        rendered = self.words.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.words(rendered, add_special_tokens=False).input_ids
        return ids

    @torch.no_grad()
    def sample(self, prompts: list[str], seed: int) -> list[str]:
        """Return one response to each prompt, all prompts being of one length."""
        torch.manual_seed(seed)
        ids = torch.tensor([self._prompt_ids(prompt) for prompt in prompts])
        drawn = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **{"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
            max_new_tokens=_TOKENS,
            pad_token_id=self.words.pad_token_id,
        )
        texts = []
        for row in drawn[:, ids.shape[1] :].tolist():
            end = row.index(self.words.eos_token_id) if self.words.eos_token_id in row else len(row)
            texts.append(self.words.decode(row[:end]))
        return texts

    def _packed(self, prompts: list[str], texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and the mask of the responses' tokens, the end token among them."""
        rows, starts = [], []
        for prompt, text in zip(prompts, texts, strict=True):
            prompt_ids = self._prompt_ids(prompt)
            text_ids = self.words(text, add_special_tokens=False).input_ids
            rows.append([*prompt_ids, *text_ids, self.words.eos_token_id])
            starts.append(len(prompt_ids))
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.words.pad_token_id)
        mask = torch.zeros((len(rows), longest))
        for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, start : len(row)] = 1
        return ids, mask

    def logps(self, prompts: list[str], texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities of the tokens of responses and their mask, (N, T − 1) each."""
        ids, mask = self._packed(prompts, texts)
        logits = self.model(input_ids=ids).logits[:, :-1]
        logps = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        return logps, mask[:, 1:]

    @torch.no_grad()
    def features(self, prompts: list[str], texts: list[str]) -> np.ndarray:
        """Return the frozen states at the places that a head may read, (N, places, hidden)."""
        ids, mask = self._packed(prompts, texts)
        with self.model.disable_adapter():
            states = self.model(input_ids=ids, output_hidden_states=True).hidden_states
        last = (mask * torch.arange(mask.shape[1])).argmax(1)
        rows = torch.arange(len(last))
        read = [
            (states[place.layer] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            if place.mean
            else states[place.layer][rows, last]
            for place in self.places
        ]
        return torch.stack(read, 1).float().numpy()


def reward_head(writer: Writer, judged: Judged) -> FrozenHead:
    """Fit a head to judged pairs as the product does."""
    prompts = [prompt for prompt in judged.prompts for _ in range(2)]
    table = writer.features(prompts, [text for both in judged.texts for text in both])
    examples = [
        Example(f"j{number}", (EncodedAnswer((1, 2), 1),) * 2, (1, 2), prompt=prompt)
        for number, prompt in enumerate(judged.prompts)
    ]
    return fit_frozen_head(table, choices_of(examples, whole=False), writer.places)


def train_dpo(writer: Writer, judged: Judged, size: Size, random: Random) -> None:
    """Train the policy on all pairs so far against its parent."""
    optimiser = torch.optim.AdamW(writer.trained.values(), lr=size.rate, weight_decay=0.0)
    parent = writer.state()
    for step in range(size.steps):
        chosen = random.sample(range(len(judged.prompts)), min(16, len(judged.prompts)))
        prompts = [judged.prompts[index] for index in chosen] * 2
        texts = [judged.texts[index][0] for index in chosen] + [judged.texts[index][1] for index in chosen]
        present = writer.state()
        writer.restore(parent)
        with torch.no_grad():
            reference = _sums(*writer.logps(prompts, texts))
        writer.restore(present)
        policy = _sums(*writer.logps(prompts, texts))
        count = len(chosen)
        loss = dpo(policy[:count], policy[count:], reference[:count], reference[count:], beta=size.beta)
        _step(writer, optimiser, loss, size, step)


def train_grpo(writer: Writer, head: FrozenHead, prompts: list[str], size: Size, random: Random) -> None:
    """Train the policy for the head's reward: eight prompts with eight samples a step."""
    optimiser = torch.optim.AdamW(writer.trained.values(), lr=size.rate, weight_decay=0.0)
    for step in range(size.steps):
        batch = [prompt for prompt in random.sample(prompts, 8) for _ in range(8)]
        texts = writer.sample(batch, random.getrandbits(31))
        rewards = torch.tensor(head.scores(writer.features(batch, texts))).reshape(8, 8)
        advantages = group_relative(rewards).reshape(-1).float()
        with torch.no_grad(), writer.model.disable_adapter():
            base, _ = writer.logps(batch, texts)
        logps, mask = writer.logps(batch, texts)
        each = advantages[:, None].expand_as(logps)
        loss, _ = policy_gradient(
            logps, logps.detach(), each, mask, clip_low=0.2, clip_high=0.2, aggregate="sequence"
        )
        penalty = (estimate(logps, base, "k3") * mask).sum() / mask.sum()
        _step(writer, optimiser, loss + size.beta * penalty, size, step)


def _sums(logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (logps * mask).sum(1)


def _step(
    writer: Writer, optimiser: torch.optim.Optimizer, loss: torch.Tensor, size: Size, step: int
) -> None:
    for group in optimiser.param_groups:
        group["lr"] = size.rate * min(1.0, (step + 1) / 3)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(writer.trained.values(), 1.0)
    optimiser.step()


class Course:
    """One arm with one seed."""

    def __init__(self, folder: Path, scene: str, policy: str, size: Size, seed: int) -> None:
        self.writer = Writer(folder, seed)
        self.scene, self.policy, self.size, self.seed = SCENES[scene], policy, size, seed
        self.random = Random(f"{scene} {policy} {seed}")
        drawn = write_prompts(780 + _FRESH, seed=seed)
        self.held_out, self.train = drawn[:_HELD_OUT], drawn[_HELD_OUT:780]
        self.fresh = drawn[780:]
        self.judged, self.checked = Judged(), Judged()
        self.start = self.writer.state()

    def go(self, tell: Any) -> list[dict[str, Any]]:
        """Take the writer through all rounds; return the figures of each."""
        base = self.writer.sample(self.fresh, self.seed)
        parent_texts, rounds = base, []
        for number in range(1, self.size.rounds + 1):
            parent = self.writer.state()
            self._label(number)
            head = reward_head(self.writer, self.judged)
            before = self.writer.sample(self.held_out, 1000 + number)
            if self.policy == "dpo":
                train_dpo(self.writer, self.judged, self.size, self.random)
            else:
                train_grpo(self.writer, head, self.train, self.size, self.random)
            after = self.writer.sample(self.held_out, 1000 + number)
            figures = self._decided(head, before, after)
            texts = self.writer.sample(self.fresh, self.seed)
            figures |= self._truth(number, head, base, parent_texts, texts, figures["acted"])
            if figures["acted"] == "reject":
                self.writer.restore(parent)
            else:
                parent_texts = texts
            rounds.append({"round": number, "labels_in_all": self._labels(), **figures})
            tell(rounds)
        return rounds

    def _labels(self) -> int:
        return len(self.judged.prompts) + len(self.checked.prompts)

    def _label(self, number: int) -> None:
        """Have the annotators judge pairs of the present policy, by turns."""
        people = self.scene.annotators(number)
        few = self.size.pairs // 5
        for prompts, judged in (
            (self.random.sample(self.held_out, few), self.checked),
            (self.random.sample(self.train, self.size.pairs - few), self.judged),
        ):
            texts = self.writer.sample(prompts * 2, self.random.getrandbits(31))
            for index, prompt in enumerate(prompts):
                pair = texts[index], texts[index + len(prompts)]
                ranks = people[index % len(people)].ranks(prompt, pair, self.random)
                if ranks[0] != ranks[1] and pair[0] != pair[1]:
                    judged.prompts.append(prompt)
                    judged.texts.append(pair if ranks[0] < ranks[1] else (pair[1], pair[0]))

    def _scores(self, head: FrozenHead, prompts: list[str], texts: list[str]) -> np.ndarray:
        return np.asarray(head.scores(self.writer.features(prompts, texts)))

    def _decided(self, head: FrozenHead, before: list[str], after: list[str]) -> dict[str, Any]:
        """Decide as a recipe does: by the interval of the win rate, of a reward model that is checked."""
        better, worse = (
            self._scores(head, self.checked.prompts, [both[side] for both in self.checked.texts])
            for side in (0, 1)
        )
        right = float(np.mean(better > worse))
        old, new = (self._scores(head, self.held_out, texts) for texts in (before, after))
        rate = win_rate(list(new), list(old))["value"]
        differ = float(np.sum(new != old))
        low, high = wilson_interval(rate * differ, differ)
        checked = (
            len(better) >= _LEAST_JUDGMENTS and wilson_interval(right * len(better), len(better))[0] > 0.5
        )
        verdict = "not_enough_evidence"
        if checked and np.sum(new != old) >= _LEAST_PROMPTS:
            verdict = "promote" if low > 0.5 else "reject" if high < 0.5 else verdict
        acted = verdict if verdict != "not_enough_evidence" else "promote" if rate >= 0.5 else "reject"
        return {"verdict": verdict, "acted": acted, "held_out_accuracy": right, "reward_win_rate": rate}

    def _truth(
        self,
        number: int,
        head: FrozenHead,
        base: list[str],
        parent: list[str],
        texts: list[str],
        acted: str,
    ) -> dict[str, Any]:
        reward = self.scene.truth(number)
        of = [
            [reward(prompt, text) for prompt, text in zip(self.fresh, some, strict=True)]
            for some in (base, parent, texts)
        ]
        served = of[1] if acted == "reject" else of[2]
        proxies = [list(self._scores(head, self.fresh, some)) for some in (parent, texts)]
        with torch.no_grad():
            under_policy, mask = self.writer.logps(self.fresh, texts)
            with self.writer.model.disable_adapter():
                under_base, _ = self.writer.logps(self.fresh, texts)
        gain, proxy_gain = fmean(of[2]) - fmean(of[1]), fmean(proxies[1]) - fmean(proxies[0])
        return {
            "true_reward": fmean(served),
            "true_reward_base": fmean(of[0]),
            "true_gain": gain,
            "proxy_gain": proxy_gain,
            "true_win_rate_base": win_rate(served, of[0]),
            "true_win_rate_parent": win_rate(of[2], of[1]),
            "reward_accuracy": accuracy([*of[2], *of[1]], [*proxies[1], *proxies[0]], pairs=len(texts)),
            "kl": float(_sums(under_policy - under_base, mask).mean()),
        }


def main() -> None:
    """Run all arms and print a line for each round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("writer", type=Path)
    parser.add_argument("--scene", choices=SCENES, default="style")
    parser.add_argument("--policy", nargs="+", choices=["dpo", "grpo"], default=["dpo", "grpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=160)
    parser.add_argument("--dpo-steps", type=int, default=12)
    parser.add_argument("--grpo-steps", type=int, default=6)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    courses: list[dict[str, Any]] = []
    for seed in options.seeds:
        for policy in options.policy:
            steps = options.dpo_steps if policy == "dpo" else options.grpo_steps
            beta = 0.1 if policy == "dpo" else 0.02
            size = Size(options.rounds, options.pairs, steps, 1e-3 if policy == "dpo" else 2e-3, beta)
            course: dict[str, Any] = {"arm": {"scene": options.scene, "policy": policy}, "seed": seed}
            begun = time.process_time()

            def tell(rounds: list[dict[str, Any]], course: dict[str, Any] = course) -> None:
                course["rounds"] = rounds
                print(_row(course, rounds[-1]), flush=True)
                if options.results:
                    command = " ".join(["python -m tests.benchmarks.loop.rehearsal", *sys.argv[1:]])
                    results = {"command": command, "courses": [*courses, course]}
                    options.results.write_text(json.dumps(results))

            Course(options.writer, options.scene, policy, size, seed).go(tell)
            courses.append(course)
            print(f"{time.process_time() - begun:.0f} s of processor time", flush=True)


def _row(course: dict[str, Any], figures: dict[str, Any]) -> str:
    agrees = decision_agrees(figures["acted"], figures["true_win_rate_parent"])
    rates = [figures[f"true_win_rate_{name}"] for name in ("base", "parent")]
    shares = " | ".join(f"{rate['value']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]" for rate in rates)
    numbers = f"{figures['proxy_gain']:+.2f} | {figures['reward_accuracy'] or 0:.2f} | {figures['kl']:.1f}"
    name = f"{course['arm']['scene']} {course['arm']['policy']} | {course['seed']} | {figures['round']}"
    labels = f"{figures['labels_in_all']} | {figures['true_reward']:.2f}"
    return f"| {name} | {labels} | {shares} | {numbers} | {figures['verdict']} | {agrees} |"


if __name__ == "__main__":
    main()
