"""Features of completions: of their surface, and of a frozen base."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.contract.files import canonical_json
from training.contract.snapshot import SnapshotRow
from training.rlhf.measures.calibration import Floats, cosine
from training.rlhf.model.backbone import Backbone, Place
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack

SURFACE_FEATURES = (
    "words",
    "log_words",
    "list_items",
    "overlap_prompt",
    "overlap_context",
    "refusal",
    "truncated",
)
"""Names of the features, in the order of the columns."""

TEXT_FEATURES = (
    *("words", "log_words", "list_items", "overlap_prompt", "refusal", "truncated", "repeated", "form"),
)
"""Those that a reward model can read from a text and its prompt alone, in the order of the columns. New ones
come last: reward models that were trained before give them no weight."""
LENGTH = TEXT_FEATURES.index("log_words")
_REPEATED_WORDS = 3

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_REFUSAL = re.compile(
    r"""\b(?:
        i(?:['’]m|\ am)\ (?:very\ |so\ |really\ )?sorry | i\ apologi[sz]e
      | i\ (?:can(?:['’]t|not|\ not)|could\ not|couldn['’]t|won['’]t|will\ not)
      | i(?:['’]m|\ am)\ (?:not\ (?:able|sure|comfortable|going)|unable)
      | i\ (?:do\ not|don['’]t)\ (?:know|think\ i|feel\ comfortable|have\ (?:access|enough))
      | as\ an\ ai | (?:it|that)\ (?:would\ be|is|['’]s)\ (?:illegal|unethical|wrong)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_END = re.compile(r"""(?:[.!?…:;。！？]|```|[)\]}|*_~])["'”’»)\]*_]*\s*$|^\s*$""")
_WHOLE_WITHOUT_END = 8
"""Completions of fewer words, such as a name or a number, need no full stop."""


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def surface_features(row: SnapshotRow, completions: Iterable[str]) -> Floats:
    """Return the features of completions of one judgment, (completions, features).

    words and their logarithm (of one more); items of lists; share of the words that the prompt has, and that
    the context passages have; 1 for a phrase of refusal or apology; 1 for a text that ends amid a sentence.
    """
    prompt = {word for message in row.messages for word in words(message.content)}
    passages = (part for passage in row.context for part in (passage.title, *passage.sentences))
    context = {word for part in passages for word in words(part)}
    texts = {completion.id: completion.text for completion in row.completions}
    return np.array([_of_text(texts[name], prompt, context) for name in completions], dtype=np.float64)


def _of_text(text: str, prompt: set[str], context: set[str]) -> list[float]:
    text_words = words(text)
    count = len(text_words)

    def share(known: set[str]) -> float:
        return sum(word in known for word in text_words) / count if count else 0.0

    return [
        float(count),
        math.log1p(count),
        float(len(_ITEM.findall(text))),
        share(prompt),
        share(context),
        float(bool(_REFUSAL.search(text))),
        float(count >= _WHOLE_WITHOUT_END and not _END.search(text)),
    ]


def text_features(prompt: str, completion: str) -> list[float]:
    """Return the features of one completion, as `TEXT_FEATURES` names them.

    repeated: share of its runs of three words that stand in it before. form: as `closeness_to_asked_form`.
    """
    named = dict(zip(SURFACE_FEATURES, _of_text(completion, set(words(prompt)), set()), strict=True))
    said = words(completion)
    runs = [tuple(said[place : place + _REPEATED_WORDS]) for place in range(len(said) - _REPEATED_WORDS + 1)]
    named["repeated"] = 1 - len(set(runs)) / len(runs) if runs else 0.0
    named["form"] = closeness_to_asked_form(prompt, completion)
    return [named[name] for name in TEXT_FEATURES]


_NUMERALS = {
    **{"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9},
    **{"ten": 10, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "fifty": 50, "a hundred": 100},
}
_NUMERAL = rf"({'|'.join(_NUMERALS)}|\d{{1,3}})"
_ASKED_SENTENCES = re.compile(rf"\b{_NUMERAL} (?:\w+ )?(?:sentences?|lines?)\b", re.IGNORECASE)
_ASKED_ITEMS = re.compile(
    rf"\b{_NUMERAL} (?:\w+ ){{0,2}}?(?:items|things|ways|tips|steps|reasons|points|bullets|bullet points|"
    r"examples|ideas|questions|facts|names|rules|arguments|options|differences|reminders)\b",
    re.IGNORECASE,
)
_MOST_WORDS = re.compile(
    rf"\b(?:at most|no more than|fewer than|less than|under|up to|within|in) {_NUMERAL} (?:\w+ )?words\b|"
    rf"\b{_NUMERAL} words or (?:fewer|less)\b",
    re.IGNORECASE,
)
_ASKED_NUMBERED = re.compile(r"\b(?:numbered|steps)\b", re.IGNORECASE)
_ASKED_LIST = re.compile(r"\b(?:list|bullets?|bullet points?)\b", re.IGNORECASE)
_ASKED_TABLE = re.compile(r"\btable\b", re.IGNORECASE)
_NUMBERED = re.compile(r"^[ \t]*\d{1,3}[.)][ \t]+\S", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]")


def closeness_to_asked_form(prompt: str, completion: str) -> float:
    """Return how close a completion comes to the form that its prompt asks for, 0 to 1; 1/2 if it asks for
    none.

    The mean over what is asked of: a number of sentences or lines, a number of items, at most so many words,
    a list, a numbered one, a table. English only, by patterns: what they do not know counts as not asked. A
    number has the smaller over the larger of the asked and the found one. (Rules of this kind check
    instructions in IFEval, Zhou et al. 2023, arXiv 2311.07911.)
    """
    items = len(_ITEM.findall(completion))
    found = []
    if asked := _MOST_WORDS.search(prompt):
        found.append(min(1.0, _numeral(asked[1] or asked[2]) / max(len(words(completion)), 1)))
    if asked := _ASKED_SENTENCES.search(prompt):
        found.append(_share(max(len(_SENTENCE.findall(completion)), 1), _numeral(asked[1])))
    if asked := _ASKED_ITEMS.search(prompt):
        found.append(_share(max(items, 1), _numeral(asked[1])))
    if _ASKED_NUMBERED.search(prompt):
        found.append(float(len(_NUMBERED.findall(completion)) > 1))
    elif _ASKED_LIST.search(prompt):
        found.append(float(items > 1))
    if _ASKED_TABLE.search(prompt):
        found.append(float(completion.count("|") > 3))
    return sum(found) / len(found) if found else 0.5


def _numeral(text: str) -> int:
    return _NUMERALS.get(text.lower()) or max(int(text), 1)


def _share(found: int, asked: int) -> float:
    return min(found, asked) / max(found, asked)


# ── Dependence of a reward model on surface features: their score differences beside its own ──


def length_controlled_accuracy(margins: Floats, longer: Floats, share: Floats) -> float | None:
    """Return the mean of two accuracies: where the longer completion was chosen, and where the shorter was.

    Length alone has ½. margins, longer, share: (pairs,), `longer` the length of the chosen less the rejected.
    None where one of the two kinds has no pair.
    """
    right = (np.sign(margins) + 1) / 2
    parts = [kind for kind in (longer > 0, longer < 0) if kind.any()]
    if len(parts) < 2:
        return None
    return float(np.mean([np.average(right[part], weights=share[part]) for part in parts]))


def correlations(margins: Floats, features: Mapping[str, Floats]) -> dict[str, float]:
    """Return the correlation of score differences with each feature's differences over pairs.

    Every pair counts in both orders, so both means are 0 (see `calibration.length_bias`). Features that never
    differ, and all where no scores differ, are left out.
    """
    if not margins.any():
        return {}
    return {name: cosine(margins, values) for name, values in features.items() if values.any()}


# ── Hidden states of a frozen base on judged completions: means and last tokens after several blocks,
# cached ──
#
# CACHE/features-KEY/   KEY follows from the base, its precision and the places read
#         keys.npy          (N, 2) digest of each judgment's completions
#         rows.npy          (N, 2) their rows in values.npy, [start, end)
#         values.npy        (rows, places, hidden) float32
#
# Every judgment is computed by itself, so that its features do not depend on what is computed beside it or
# was there before. The folder may be deleted at any time; a damaged one is written again.


_FORMAT = 1
_DEPTHS = (0.4, 0.6, 0.8, 1.0)
_PREFERRED_DEPTH = 0.6
_KEYS, _ROWS, _VALUES = "keys.npy", "rows.npy", "values.npy"

Values = NDArray[np.float32]


def places_to_read(blocks: int) -> tuple[Place, ...]:
    """Return the places that are read of a base with so many blocks: mean and last token at four depths."""
    layers = sorted({max(1, math.ceil(depth * blocks)) for depth in _DEPTHS})
    return tuple(Place(layer, mean) for layer in layers for mean in (True, False))


def preferred_place(places: Sequence[Place]) -> Place:
    """Return the place that is read unless another is clearly better: the mean at three fifths of the depth.

    It is the best on two published sets, see tests/benchmarks/quality.md.
    """
    means = [place for place in places if place.mean]
    depth = _PREFERRED_DEPTH * max(place.layer for place in means)
    return min(means, key=lambda place: abs(place.layer - depth))


def pooled(states: Tensor, batch: Batch, *, mean: bool) -> Tensor:
    """Return a state of each completion, (R, hidden) float32: the mean over its learned tokens, or the last.

    states: (T, hidden), of the packed row.
    """
    if not mean:
        return states[batch.last].float()
    sums = torch.zeros(batch.answers, states.shape[1], device=states.device)
    sums = sums.index_add(0, batch.target_answer, states[batch.targets].float())
    return sums / batch.answer_tokens.clamp(min=1).unsqueeze(-1)


class FeatureCache:
    """Features of judgments: computed where they are not known yet, and kept."""

    def __init__(self, folder: Path, backbone: Backbone, *, writes: bool = True) -> None:
        """Open the cache below `folder`. With `writes` off it only reads: one process of a run writes."""
        self._backbone = backbone
        self._writes = writes
        self.places = places_to_read(backbone.blocks)
        """Places that are read, in the order of the features."""
        what = [_FORMAT, backbone.base_digest, backbone.precision, str(backbone.device.type), self.places]
        self._folder = folder / f"features-{hashlib.sha256(canonical_json(what).encode()).hexdigest()[:32]}"
        self._known: dict[bytes, Values] = {}
        self._stored: set[bytes] = set()
        self.computed = 0
        """Judgments whose features were not there."""
        self._open()

    def features(self, examples: Sequence[Example], check: Callable[[], None] = lambda: None) -> Values:
        """Return the features of all completions of judgments, (rows, places, hidden), in their order.

        `check` is called before every forward pass.
        """
        features = []
        for example in examples:
            key = _digest(example)
            if key not in self._known:
                check()
                self._known[key] = self._compute(example)
                self.computed += 1
            features.append(self._known[key])
        hidden = self._backbone.hidden_size
        return np.concatenate(features) if features else np.empty((0, len(self.places), hidden), np.float32)

    @torch.no_grad()
    def _compute(self, example: Example) -> Values:
        batch = pack([example], device=self._backbone.device)
        layers = {place.layer for place in self.places}
        with self._backbone.using(None):
            states = self._backbone.packed_layers(batch.input_ids, batch.position_ids, batch.layout, layers)
        read = [pooled(states[place.layer], batch, mean=place.mean) for place in self.places]
        return np.asarray(torch.stack(read, dim=1).cpu().numpy())

    def save(self) -> None:
        """Write what was added, whole or not at all. Without room on the disk the run goes on without it."""
        if not self._writes or self._known.keys() == self._stored:
            return
        try:
            self._write()
        except OSError as error:
            log.warning("The features cannot be kept for the next run (%s)", error)

    def _write(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=self._folder.parent, prefix=".features-"))
        try:
            ends = np.cumsum([len(values) for values in self._known.values()])
            keys = [np.frombuffer(key, np.uint64) for key in self._known]
            np.save(partial / _KEYS, np.stack(keys))
            np.save(partial / _ROWS, np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1))
            np.save(partial / _VALUES, np.concatenate(list(self._known.values())))
            shutil.rmtree(self._folder, ignore_errors=True)
            partial.rename(self._folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _open(self) -> None:
        if not (self._folder / _KEYS).is_file():
            return
        try:
            keys, rows = (np.load(self._folder / name, allow_pickle=False) for name in (_KEYS, _ROWS))
            values: Values = np.load(self._folder / _VALUES, mmap_mode="r", allow_pickle=False)
            if values.shape != (rows[-1, 1], len(self.places), self._backbone.hidden_size):
                raise ValueError(f"{_VALUES} has shape {values.shape}")
            self._known = {
                key.tobytes(): values[start:end] for key, (start, end) in zip(keys, rows, strict=True)
            }
            self._stored = set(self._known)
        except (OSError, ValueError, IndexError) as error:
            self._known = {}
            log.info("%s is damaged (%s); the features are computed again", self._folder, error)


def _digest(example: Example) -> bytes:
    rows = [[list(answer.ids), answer.answer_start, answer.learned_runs] for answer in example.answers]
    return hashlib.blake2b(canonical_json(rows).encode(), digest_size=16).digest()
