"""Measure a reward model on a yardstick: `python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER …`.

    python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER --set reward-bench-2 test.parquet
    python -m training.rlhf.yardsticks CHECKPOINT --base FOLDER --set rm-bench total.json --most 500

Prints a table; `--out` writes the result as JSON. The files are their authors'; download them first.
No file is part of Rondo, and none is trained on: a checkpoint that has seen a test set proves nothing by it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from annotation.agreement.intervals import wilson_interval
from training.contract import ContractError
from training.contract.checkpoint import manifest_digest
from training.contract.snapshot import Message
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.combination import learned_reward, reward_settings
from training.rlhf.rewards.protocol import Reward

# ── Items of a yardstick: a prompt, responses that are right, and responses that are wrong ──


@dataclass(frozen=True, kw_only=True, slots=True)
class YardstickItem:
    """A prompt with its responses. A right one is to score above every wrong one it is compared with."""

    name: str
    """In messages, and the pair of RewardBench 2's ties."""
    subset: str
    prompt: tuple[Message, ...]
    chosen: tuple[str, ...]
    rejected: tuple[str, ...]

    @property
    def responses(self) -> tuple[str, ...]:
        """Return all responses, the right ones first."""
        return self.chosen + self.rejected


# ── Files of yardsticks: JSON, JSON Lines (plain or gzip) and Parquet, as their authors publish them ──

Row = Mapping[str, Any]
TIES = "Ties"
"""RewardBench 2's subset of questions with several right answers."""
STYLES = 3
"""RM-Bench writes every response three times: concise, detailed, detailed with Markdown."""


def read_items(path: Path, reader: Callable[[Row, str], YardstickItem | None]) -> list[YardstickItem]:
    """Return the items of a file; rows in which people found both responses alike are left out.

    Raises `ContractError` that names file and row for one that cannot be read, and for a file without items.
    """
    items = []
    for number, row in enumerate(_rows(path), start=1):
        where = f"{path.name}: row {number}"
        try:
            item = reader(row, str(number))
        except KeyError as error:
            raise ContractError(f"{where}: field {error} is missing; is it a file of another set?") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"{where}: {error}") from None
        if item is not None:
            items.append(item)
    if not items:
        raise ContractError(f"{path.name} holds no item with a preference")
    return items


def reward_bench_2(row: Row, number: str) -> YardstickItem:
    """RewardBench 2 (Malik et al. 2025, arXiv 2506.01937): the best of four, and ties."""
    return YardstickItem(
        name=str(row.get("id", number)),
        subset=str(row["subset"]),
        prompt=_messages(row["prompt"]),
        chosen=_texts(row["chosen"], "chosen"),
        rejected=_texts(row["rejected"], "rejected"),
    )


def rm_bench(row: Row, number: str) -> YardstickItem:
    """RM-Bench (Liu et al. 2024, arXiv 2410.16184): a right and a wrong response in three styles each."""
    chosen, rejected = _texts(row["chosen"], "chosen"), _texts(row["rejected"], "rejected")
    if not len(chosen) == len(rejected) == STYLES:
        raise ValueError(f"fields 'chosen' and 'rejected' need {STYLES} styles each")
    domain = str(row["domain"])
    # Two kinds of safety are one domain in the published figures.
    return YardstickItem(
        name=str(row.get("id", number)),
        subset="safety" if domain.startswith("safety") else domain,
        prompt=_messages(row["prompt"]),
        chosen=chosen,
        rejected=rejected,
    )


def ppe_preference(row: Row, number: str) -> YardstickItem | None:
    """The human preferences of PPE (Frick et al. 2024, arXiv 2410.14872); ties are left out."""
    winner = str(row["winner"])
    responses = (str(row["response_1"]), str(row["response_2"]))
    if winner.startswith("tie"):
        return None
    if winner not in ("model_a", "model_b"):
        raise ValueError(f"field 'winner' is {winner!r}; it is model_a, model_b or a tie")
    return _pair(
        name=str(row.get("question_id", number)),
        subset=str(row.get("language") or "all"),
        prompt=_messages(row["prompt"]),
        responses=responses,
        second=winner == "model_b",
    )


def alpaca_pairs(row: Row, number: str) -> YardstickItem | None:
    """Pairs in AlpacaEval's format: `preference` is 1 for the first output, 2 for the second, else a tie."""
    preference = row["preference"]
    if preference is None or float(preference) not in (1.0, 2.0):
        return None
    second = float(preference) == 2.0
    outputs = (str(row["output_1"]), str(row["output_2"]))
    instruction = "\n\n".join(part for part in (str(row["instruction"]), str(row.get("input") or "")) if part)
    return _pair(
        name=number,
        subset=str(row.get("dataset") or "all"),
        prompt=_messages(instruction),
        responses=outputs,
        second=second,
    )


def llmbar(row: Row, number: str) -> YardstickItem:
    """LLMBar (Zeng et al. 2024, arXiv 2310.07641): one response follows the instruction, objectively.

    A row has `input`, `output_1`, `output_2` and the `label` 1 or 2, as its authors' dataset.json, or
    `prompt`, `response_a`, `response_b` and the label a or b; `subset` where the sets are in one file.
    """
    by_letter = "response_a" in row
    names = ("response_a", "response_b") if by_letter else ("output_1", "output_2")
    second = _is_second(row["label"], ("a", "b") if by_letter else ("1", "2"))
    responses = (str(row[names[0]]), str(row[names[1]]))
    return _pair(
        name=number,
        subset=str(row.get("subset") or "all"),
        prompt=_messages(str(row["prompt" if by_letter else "input"])),
        responses=responses,
        second=second,
    )


def judge_bench(row: Row, number: str) -> YardstickItem:
    """JudgeBench (Tan et al. 2024, arXiv 2410.12784): one of two responses of one model is correct."""
    second = _is_second(row["label"], ("A>B", "B>A"))
    responses = (str(row["response_A"]), str(row["response_B"]))
    source = str(row["source"])
    return _pair(
        name=str(row.get("pair_id", number)),
        subset="mmlu-pro" if source.startswith("mmlu-pro") else source,
        prompt=_messages(str(row["question"])),
        responses=responses,
        second=second,
    )


def _pair(
    *, name: str, subset: str, prompt: tuple[Message, ...], responses: tuple[str, str], second: bool
) -> YardstickItem:
    """Return an item of two responses. second: whether the second is the right one."""
    right, wrong = reversed(responses) if second else responses
    return YardstickItem(name=name, subset=subset, prompt=prompt, chosen=(right,), rejected=(wrong,))


def _is_second(label: Any, labels: tuple[str, str]) -> bool:
    """Return whether a label is the second of two. Raises `ValueError` for any other."""
    if str(label) not in labels:
        raise ValueError(f"field 'label' is {label!r}; it is {labels[0]} or {labels[1]}")
    return str(label) == labels[1]


def _messages(prompt: Any) -> tuple[Message, ...]:
    """Return a prompt as messages: a text, or a list of turns with `role` and `content`."""
    if isinstance(prompt, str):
        return (Message(role="user", content=prompt),)
    return tuple(Message(role=turn["role"], content=str(turn["content"])) for turn in prompt)


def _texts(values: Sequence[Any], field: str) -> tuple[str, ...]:
    if isinstance(values, str) or not values:
        raise ValueError(f"field {field!r} must be a list of responses")
    return tuple(map(str, values))


def _rows(path: Path) -> Iterator[Row]:
    if not path.is_file():
        raise ContractError(f"{path} is no file")
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path).to_pylist()
        return
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        text = content.decode("utf-8")
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            for line in text.splitlines():
                if line.strip():
                    yield json.loads(line)
    except ValueError as error:
        raise ContractError(f"{path.name} is neither JSON nor JSON Lines: {error}") from None


# ── Figures of a reward model on a yardstick, as its authors define them, with 95 % intervals ──


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredItem:
    """An item and the scores of its responses."""

    item: YardstickItem
    chosen: tuple[float, ...]
    rejected: tuple[float, ...]

    @property
    def margin(self) -> float:
        """Return the lowest right score minus the highest wrong one."""
        return min(self.chosen) - max(self.rejected)

    @property
    def spread(self) -> float:
        """Return the highest right score minus the lowest right one."""
        return max(self.chosen) - min(self.chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareFigure:
    """A share of items, with its Wilson interval where it is a plain share."""

    value: float
    items: int
    low: float | None = None
    high: float | None = None


def hit_share(hits: Sequence[float]) -> ShareFigure:
    """Return the mean of hits between 0 and 1; an equal score counts as a miss."""
    value = sum(hits) / len(hits)
    low, high = wilson_interval(sum(hits), len(hits))
    return ShareFigure(value=value, items=len(hits), low=low, high=high)


def mean_over(figures: Sequence[ShareFigure]) -> ShareFigure:
    """Return the unweighted mean of subsets' figures, as leaderboards have it."""
    return ShareFigure(
        value=sum(figure.value for figure in figures) / len(figures),
        items=sum(figure.items for figure in figures),
    )


def by_subset(scored: Sequence[ScoredItem]) -> dict[str, list[ScoredItem]]:
    """Return the items of each subset, in the order of names."""
    subsets: dict[str, list[ScoredItem]] = defaultdict(list)
    for result in scored:
        subsets[result.item.subset].append(result)
    return dict(sorted(subsets.items()))


def accuracy_figures(scored: Sequence[ScoredItem]) -> dict[str, ShareFigure]:
    """Return the share of items whose right responses all score above the wrong ones, of subsets and all."""
    figures = {
        name: hit_share([result.margin > 0 for result in some]) for name, some in by_subset(scored).items()
    }
    return {
        "all": hit_share([result.margin > 0 for result in scored]),
        **{key: value for key, value in figures.items() if key != "all"},
    }


def reward_bench_figures(scored: Sequence[ScoredItem]) -> dict[str, ShareFigure]:
    """Return RewardBench 2's figures: accuracy of the best of four, the score of ties, and their mean."""
    figures = {
        name: ties_figure(some) if name == TIES else hit_share([result.margin > 0 for result in some])
        for name, some in by_subset(scored).items()
    }
    return {"all": mean_over(list(figures.values())), **figures}


def ties_figure(scored: Sequence[ScoredItem]) -> ShareFigure:
    """Return the score of RewardBench 2's ties.

    Each question is there twice, as `ref:N` with one right answer and as `tied:N` with several. 0.3 for the
    accuracy on each of the two; 0.2 each for the share of questions whose right answers lie closer together
    than they lie above the wrong ones, in `tied:N` alone and in both; 0.01 for the mean of
    tanh(margin / spread − 1), margin the smaller of both. From the authors' published scoring.
    """
    kinds: dict[str, dict[str, ScoredItem]] = {"ref": {}, "tied": {}}
    for result in scored:
        kind, _, number = result.item.name.partition(":")
        kinds["ref" if kind == "ref" else "tied"][number] = result
    accuracy = sum(
        0.3 * sum(result.margin > 0 for result in some.values()) / len(some)
        for some in kinds.values()
        if some
    )
    both = [(kinds["ref"][name], tied) for name, tied in kinds["tied"].items() if name in kinds["ref"]]
    value = accuracy
    if both:
        margins = [(tied.margin, min(ref.margin, tied.margin), tied.spread) for ref, tied in both]
        value += 0.2 * sum(margin > spread for margin, _, spread in margins) / len(both)
        value += 0.2 * sum(least > spread for _, least, spread in margins) / len(both)
        value += 0.01 * sum(_beyond(least, spread) for _, least, spread in margins) / len(both)
    return ShareFigure(value=value, items=len(scored))


def _beyond(margin: float, spread: float) -> float:
    """tanh(margin / spread − 1); without a spread what the limit is, and 0 for 0 / 0."""
    if spread == 0:
        return math.copysign(1.0, margin) if margin else 0.0
    return math.tanh(margin / spread - 1)


def rm_bench_figures(scored: Sequence[ScoredItem]) -> dict[str, ShareFigure]:
    """Return RM-Bench's figures: by domain, and how much style may say against the content.

    Of the nine pairs of styles, `hard` are the three in which the wrong response has the fancier style,
    `normal` those of one style, `easy` those in which the right one has it.
    """

    def hits(some: Sequence[ScoredItem], cells: Sequence[tuple[int, int]]) -> ShareFigure:
        return hit_share(
            [sum(result.chosen[i] > result.rejected[j] for i, j in cells) / len(cells) for result in some]
        )

    pairs = [(i, j) for i, j in product(range(STYLES), repeat=2)]
    levels = {
        "hard": [(i, j) for i, j in pairs if i < j],
        "normal": [(i, j) for i, j in pairs if i == j],
        "easy": [(i, j) for i, j in pairs if i > j],
    }
    domains = by_subset(scored)
    figures = {name: hits(some, pairs) for name, some in domains.items()}
    of_levels = {
        level: mean_over([hits(some, cells) for some in domains.values()]) for level, cells in levels.items()
    }
    return {"all": mean_over(list(figures.values())), **of_levels, **figures}


# ── The yardsticks: reader, figures, chance, and what others published, each with its source ──


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A figure of others."""

    model: str
    figure: str
    """Name of the figure here."""
    value: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Yardstick:
    """A test set."""

    title: str
    reader: Callable[[Row, str], YardstickItem | None]
    figures: Callable[[Sequence[ScoredItem]], dict[str, ShareFigure]]
    chance: Mapping[str, float]
    """Values that random scores reach, by figure; for figures that are not named, `all`."""
    published: Sequence[Published] = field(default_factory=tuple)


def _skywork(value: float) -> Published:
    """Return the figure of the smallest reward model of Skywork-Reward-V2, the nearest to the starter."""
    return Published(
        model="Skywork-Reward-V2-Qwen3-0.6B", figure="all", value=value, source="arXiv 2507.01352"
    )


YARDSTICKS = {
    "reward-bench-2": Yardstick(
        title="RewardBench 2",
        reader=reward_bench_2,
        figures=reward_bench_figures,
        chance={"all": 0.25},
        published=(_skywork(0.613),),
    ),
    "rm-bench": Yardstick(
        title="RM-Bench",
        reader=rm_bench,
        figures=rm_bench_figures,
        chance={"all": 0.5},
        published=(
            _skywork(0.744),
            Published(
                model="DeepSeek-R1 as a judge",
                figure="all",
                value=0.8528,
                source="github.com/THU-KEG/RM-Bench, README",
            ),
            Published(
                model="DeepSeek-R1 as a judge",
                figure="hard",
                value=0.8024,
                source="github.com/THU-KEG/RM-Bench, README",
            ),
            Published(
                model="best of nearly 40 reward models, October 2024",
                figure="hard",
                value=0.466,
                source="arXiv 2410.16184, abstract",
            ),
        ),
    ),
    "ppe-preference": Yardstick(
        title="PPE human preference",
        reader=ppe_preference,
        figures=accuracy_figures,
        chance={"all": 0.5},
    ),
    "alpaca-pairs": Yardstick(
        title="AlpacaEval pairs",
        reader=alpaca_pairs,
        figures=accuracy_figures,
        chance={"all": 0.5},
    ),
    "llmbar": Yardstick(
        title="LLMBar",
        reader=llmbar,
        figures=accuracy_figures,
        chance={"all": 0.5},
    ),
    "judgebench": Yardstick(
        title="JudgeBench",
        reader=judge_bench,
        figures=accuracy_figures,
        chance={"all": 0.5},
        published=(_skywork(0.676),),
    ),
}


# ── A reward model's scores on a yardstick, and the result as JSON ──


def scored_items(reward: Reward, items: Sequence[YardstickItem]) -> tuple[list[ScoredItem], int]:
    """Return the items with their scores, and how many were left out: a response that cannot be scored."""
    prompts = [list(item.prompt) for item in items for _ in item.responses]
    texts = [text for item in items for text in item.responses]
    scores = iter(reward(prompts, texts, [None] * len(texts)))
    scored, unread = [], 0
    for item in items:
        some = [next(scores) for _ in item.responses]
        if not all(score.scored for score in some):
            unread += 1
            continue
        # Rewards of segments add up to the response's.
        values = [score.value + sum(part.value for part in score.segments) for score in some]
        right = len(item.chosen)
        scored.append(ScoredItem(item=item, chosen=tuple(values[:right]), rejected=tuple(values[right:])))
    return scored, unread


def by_length(scored: Sequence[ScoredItem]) -> list[ScoredItem]:
    """Return the items with the characters of each response as its score: what preferring the longer would
    reach."""
    return [
        ScoredItem(
            item=result.item,
            chosen=tuple(float(len(text)) for text in result.item.chosen),
            rejected=tuple(float(len(text)) for text in result.item.rejected),
        )
        for result in scored
    ]


def measure(yardstick: Yardstick, reward: Reward, path: Path, *, most: int | None = None) -> dict[str, Any]:
    """Return the result of a reward model on a file of a yardstick.

    most: of its items, drawn with a fixed seed; all where it is left out. Raises `ContractError` for a file
    that cannot be read and where no item can be scored.
    """
    items = read_items(path, yardstick.reader)
    if most is not None and most < len(items):
        items = random.Random(0).sample(items, most)  # noqa: S311 - a sample, not a secret
    scored, unread = scored_items(reward, items)
    if not scored:
        raise ContractError(f"{path.name}: the reward model can score none of its responses")
    return {
        "title": yardstick.title,
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "items": len(scored),
        "left_out": unread,
        "sampled": most is not None,
        "chance": yardstick.chance["all"],
        "figures": {name: asdict(figure) for name, figure in yardstick.figures(scored).items()},
        "longer": {name: figure.value for name, figure in yardstick.figures(by_length(scored)).items()},
        "published": [asdict(entry) for entry in yardstick.published],
    }


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
    print(result_table(result))


def result_table(result: Mapping[str, Any]) -> str:
    """Return a result as a table for a terminal."""
    lines = [f"{result['title']}: {result['items']} items, {result['left_out']} left out"]
    for name, figure in result["figures"].items():
        bounds = "" if figure["low"] is None else f"  ({figure['low']:.3f} to {figure['high']:.3f})"
        longer = f"; the longer response {result['longer'][name]:.3f}"
        lines.append(f"  {name:<24}{figure['value']:.3f}{bounds}  of {figure['items']}{longer}")
    lines.append(f"  {'chance':<24}{result['chance']:.3f}")
    lines += [
        f"  {entry['model']}, {entry['figure']}: {entry['value']:.3f} ({entry['source']})"
        for entry in result["published"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
