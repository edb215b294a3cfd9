"""Classical metrics of text against references: BLEU, chrF and ROUGE, each from 0 to 1.

The reference of a prompt is one text or a list of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from training.rlhf.rewards.protocol import (
    Chat,
    NoReferenceError,
    Reference,
    Score,
    score_each,
    text_references,
)

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""Those of sacreBLEU's that need no further package or download."""
RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]


@dataclass(frozen=True, kw_only=True)
class Bleu:
    """BLEU of single sentences as sacreBLEU computes it, divided by 100.

    Orders longer than the completion are left out (effective order) and counts smoothed
    (exponential): without both a short answer would be 0. Papineni et al. 2002; Post 2018.
    """

    tokenize: BleuTokenizer = "13a"
    """sacreBLEU's tokenizer; "zh" or "char" where words have no spaces."""

    @cached_property
    def _metric(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize=self.tokenize, effective_order=True)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        return float(self._metric.sentence_score(completion, text_references(reference)).score) / 100


@dataclass(frozen=True, kw_only=True)
class Chrf:
    """chrF: F-score over character n-grams, divided by 100. Popović 2015."""

    word_order: int = 0
    """2 also counts words and their pairs: chrF++ (Popović 2017)."""

    @cached_property
    def _metric(self) -> Any:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(word_order=self.word_order)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        return float(self._metric.sentence_score(completion, text_references(reference)).score) / 100


@dataclass(frozen=True, kw_only=True)
class Rouge:
    """ROUGE's F-score against the reference that fits best. Lin 2004.

    The tokenizer knows Latin letters and digits alone, as the original's does: a text in
    another script scores 0 against itself, so a reference without a token cannot be scored.
    """

    kind: RougeType = "rougeL"
    stem: bool = True
    """Porter's stemmer, for English."""

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([self.kind], use_stemmer=self.stem)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return score_each(self._score, completions, references)

    def _score(self, completion: str, reference: Reference) -> float:
        texts = text_references(reference)
        if not any(character.isascii() and character.isalnum() for text in texts for character in text):
            raise NoReferenceError("ROUGE knows Latin letters and digits alone, and the reference has none")
        return float(self._scorer.score_multi(texts, completion)[self.kind].fmeasure)
