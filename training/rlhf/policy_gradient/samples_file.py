"""Writes `samples.jsonl`: some samples of every step, as `contract.samples.SampledAnswer` reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from training.contract import SAMPLES_FILE, canonical_json
from training.rlhf.policy_gradient.credit import Credit
from training.rlhf.policy_gradient.episodes import Episodes
from training.rlhf.policy_gradient.method import worth
from training.rlhf.policy_gradient.sampling import Sampled, token_places
from training.rlhf.rewards.combination import Combined
from training.rlhf.rewards.protocol import Score
from training.rlhf.runtime.run_folder import RunFolder
from training.rlhf.spans import Stretch

_PROMPTS = 4
"""Prompts of a step with a recorded sample."""
_DIGITS = 5


class SamplesFile:
    """Writes the samples of a run, step by step."""

    def __init__(self, folder: RunFolder, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._path = folder.path / SAMPLES_FILE
        self._writes = folder.writes

    def trim(self, step: int) -> None:
        """Forget what was written after `step` steps: it is drawn again."""
        if not self._writes or not self._path.is_file():
            return
        lines = []
        for line in self._path.read_text(encoding="utf-8").splitlines(keepends=True):
            # A last line may be torn; what comes after it was never written.
            if not line.endswith("\n") or json.loads(line)["step"] > step:
                break
            lines.append(line)
        self._path.write_text("".join(lines), encoding="utf-8")

    def write(
        self, step: int, sampled: Sampled, combined: Combined, episodes: Episodes, credit: Credit
    ) -> None:
        """Append samples of `step`: one of each of a few prompts, which their seeds choose."""
        if not self._writes:
            return
        first = {group: row for row, group in reversed(list(enumerate(sampled.group)))}
        chosen = sorted(first.values(), key=lambda row: sampled.samples[row].seed)[:_PROMPTS]
        with self._path.open("a", encoding="utf-8") as stream:
            for row in chosen:
                places = token_places(sampled.samples[row], self._tokenizer)
                line = _line(row, places, sampled, combined, episodes, credit)
                stream.write(canonical_json({"step": step, **line}) + "\n")


def _line(
    row: int,
    places: Sequence[Stretch],
    sampled: Sampled,
    combined: Combined,
    episodes: Episodes,
    credit: Credit,
) -> dict[str, Any]:
    prompt, sample, score = sampled.prompts[row], sampled.samples[row], combined.totals[row]
    columns = {"reward": episodes.rewards, "advantage": credit.advantages}
    drawn, reference = episodes.drawn_logp, episodes.ref_logp
    if drawn is not None:
        columns["logp"] = drawn
        if reference is not None:
            trainer = episodes.trainer_logp
            columns["kl"] = (drawn if trainer is None else trainer) - reference
    numbers = {name: values[row].tolist() for name, values in columns.items()}
    version = {"version": sampled.versions[row]} if sampled.versions else {}
    return {
        **version,
        "prompt": prompt.id,
        "message": prompt.chat[-1].content,
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "reward": _worth(score),
        "reason": score.reason,
        "parts": {name: _worth(scores[row]) for name, scores in combined.parts.items()},
        "tokens": [
            {
                "text": sample.text[start:end],
                "kl": None,
                **{name: _rounded(values[index]) for name, values in numbers.items()},
            }
            for index, (start, end) in enumerate(places)
        ],
    }


def _worth(score: Score) -> float | None:
    return _rounded(worth(score)) if score.scored else None


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
