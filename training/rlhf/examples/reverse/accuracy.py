"""Share of names that a model reverses without a mistake."""

from __future__ import annotations

from collections.abc import Sequence

from training.rlhf.examples.reverse.names import question
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout import rollout
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import Encoder

_AT_ONCE = 256
"""Names that are answered together."""


def exact_match(
    backbone: Backbone,
    names: Sequence[str],
    *,
    adapter: str | None,
    wording: str,
    temperature: float,
    max_tokens: int,
    seed: int = 0,
) -> float:
    """Share of the names whose one answer is right, drawn at `temperature`; 0 is greedy."""
    encoder = Encoder(backbone.tokenizer)
    parameters = SamplingParameters(temperature=temperature, max_tokens=max_tokens)
    right = 0
    for start in range(0, len(names), _AT_ONCE):
        batch = names[start : start + _AT_ONCE]
        prompts = [encoder.encode_prompt(question(name, wording), max_tokens=1_000_000)[0] for name in batch]
        seeds = range(seed + start, seed + start + len(batch))
        answers = rollout(backbone, prompts, parameters, adapter=adapter, seeds=list(seeds))
        right += sum(
            samples[0].text.strip() == name[::-1] for name, samples in zip(batch, answers, strict=True)
        )
    return right / len(names)
