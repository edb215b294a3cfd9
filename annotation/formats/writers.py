"""Every format that goes out, by name: what becomes of one judgment.

A writer turns one record of `rondo_jsonl` into rows, and says of all that it cannot carry what and why: no
tie and no "both bad" is lost without a word. Writers are pure; `services.file_exports` writes the files.

TRL: https://huggingface.co/docs/trl/dataset_formats. OpenRLHF: `openrlhf/datasets/reward_dataset.py` of
https://github.com/OpenRLHF/OpenRLHF (messages, with `--apply_chat_template --prompt_key prompt`). verl:
`docs/preparation/prepare_data.rst` of https://github.com/volcengine/verl.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from annotation.choices import Polarity, Verdict
from annotation.formats.segments import StepGranularity, segments
from annotation.formats.trl import CORRECT_STEP, DESIRABLE, WRONG_STEP

Record = Mapping[str, Any]
Tokens = Callable[[str], Sequence[tuple[int, int]]]
"""A text's tokens: where each begins and ends, in code points."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something of a judgment that a format cannot carry."""

    reason: str
    completion: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What a writer must know of the project."""

    slug: str
    polarities: Mapping[str, str] = field(default_factory=dict)
    """Category key → whether a mark of it blames or praises."""
    step_granularity: StepGranularity = "sentence"
    """The segments that are steps where no steps are marked."""
    criteria: tuple[str, ...] = ()
    tokens: Tokens | None = None


Written = Iterator[dict[str, Any] | Dropped]


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """One format that goes out."""

    name: str
    sentence: str
    container: str
    """`jsonl`, `json` (one list), `csv` or `parquet`."""
    rows: Callable[[Record, Scene], Written]
    has_steps: bool = False
    """Whether completions go out in steps, so that the manifest says how they were cut."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For Parquet: column → `text`, `messages`, `whole number`, or a `struct` of texts as `struct:a,b`."""
    carries_context: bool = False
    once_per_prompt: bool = False


_WHY = {
    Verdict.EQUAL: "equal: neither is better",
    Verdict.BOTH_GOOD: "both good: neither is better",
    Verdict.BOTH_BAD: "both bad: neither is better",
    Verdict.CANNOT_JUDGE: "cannot judge",
    Verdict.NOT_ASKED: "no verdict was asked for",
}


def said(text: str) -> list[dict[str, str]]:
    """An answer as a conversation of one message."""
    return [{"role": "assistant", "content": text}]


def pairs(record: Record) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]] | Dropped]:
    """Better and worse completion of each decided pair; each tie, and a verdict without order, as dropped."""
    if record["verdict"] != Verdict.RANKED:
        yield Dropped(_WHY[Verdict(record["verdict"])])
        return
    if len(record["completions"]) < 2:
        yield Dropped("one completion alone, so no pair")
        return
    ranks = record["ranks"]
    for left, right in combinations(record["completions"], 2):
        difference = ranks[left["id"]] - ranks[right["id"]]
        if difference == 0:
            yield Dropped(f"tie with completion {right['id']}", left["id"])
        else:
            yield (left, right) if difference < 0 else (right, left)


def _trl_preference(record: Record, scene: Scene) -> Written:
    for pair in pairs(record):
        if isinstance(pair, Dropped):
            yield pair
        else:
            chosen, rejected = pair
            yield {
                "prompt": record["messages"],
                "chosen": said(chosen["text"]),
                "rejected": said(rejected["text"]),
            }


def _openrlhf(record: Record, scene: Scene) -> Written:
    for row in _trl_preference(record, scene):
        yield row if isinstance(row, Dropped) else {**row, "margin": record["strength"] or 0}


def _trl_unpaired(record: Record, scene: Scene) -> Written:
    for completion, label in _labels(record):
        if isinstance(label, str):
            yield Dropped(label, completion["id"])
        else:
            yield {"prompt": record["messages"], "completion": said(completion["text"]), "label": label}


def _labels(record: Record) -> Iterator[tuple[Mapping[str, Any], bool | str]]:
    """Each completion with whether it is desirable, or why nobody can tell."""
    thumbs = {r["completion"]: bool(r["value"]) for r in record["ratings"] if r["criterion"] == DESIRABLE}
    verdict, ranks = Verdict(record["verdict"]), record["ranks"]
    worst = max(ranks.values(), default=1)
    for completion in record["completions"]:
        pk = completion["id"]
        if pk in thumbs:
            yield completion, thumbs[pk]
        elif verdict in (Verdict.BOTH_GOOD, Verdict.BOTH_BAD):
            yield completion, verdict == Verdict.BOTH_GOOD
        elif verdict == Verdict.RANKED and worst > 1 and ranks[pk] in (1, worst):
            yield completion, ranks[pk] == 1
        elif verdict == Verdict.RANKED and worst > 1:
            yield completion, "neither the best nor the worst of the ranking"
        else:
            yield completion, _WHY.get(verdict, "nothing to compare it with")


def _trl_sft(record: Record, scene: Scene) -> Written:
    found = False
    for text in _worth_imitating(record):
        found = True
        yield {"prompt": record["messages"], "completion": said(text)}
    if not found:
        yield Dropped(_WHY.get(Verdict(record["verdict"]), "no answer to imitate"))


def _worth_imitating(record: Record) -> Iterator[str]:
    """What a person wrote, else what they preferred to something else or called good."""
    own = [text for text in (record["demonstration"], *(c["text"] for c in record["corrections"])) if text]
    yield from own
    if own:
        return
    ranks = record["ranks"]
    preferred = record["verdict"] == Verdict.RANKED and len(set(ranks.values())) > 1
    if preferred or record["verdict"] == Verdict.BOTH_GOOD:
        yield from (c["text"] for c in record["completions"] if ranks[c["id"]] == 1)


def _trl_prm(record: Record, scene: Scene) -> Written:
    """The steps that are marked; else segments, wrong where a mark of an error touches one."""
    for completion in record["completions"]:
        marks = [span for span in record["spans"] if span["completion"] == completion["id"]]
        steps = [mark for mark in marks if mark["category"] in (CORRECT_STEP, WRONG_STEP)]
        if steps:
            steps.sort(key=lambda mark: (mark["start"], mark["end"]))
            found = [(mark["quote"], mark["category"] == CORRECT_STEP) for mark in steps]
        elif marks:
            wrong = [
                m for m in marks if scene.polarities.get(m["category"], Polarity.ERROR) == Polarity.ERROR
            ]
            found = [
                (completion["text"][start:end], not any(m["start"] < end and start < m["end"] for m in wrong))
                for start, end in segments(completion["text"], scene.step_granularity)
            ]
        else:
            yield Dropped("nothing is marked, so no step is known to be right or wrong", completion["id"])
            continue
        yield {
            "prompt": "\n\n".join(message["content"] for message in record["messages"]),
            "completions": [step for step, _ in found],
            "labels": [right for _, right in found],
        }


def _verl(record: Record, scene: Scene) -> Written:
    references = record["references"]
    yield {
        "data_source": f"rondo/{scene.slug}",
        "prompt": record["messages"],
        "ability": (record["tags"] or ["chat"])[0],
        "reward_model": {"style": "rule" if references else "model", "ground_truth": (references or [""])[0]},
        "extra_info": {"split": record["split"], "index": record["prompt"]},
    }


def _whole(record: Record, scene: Scene) -> Written:
    yield dict(record)


_PAIR = {"prompt": "messages", "chosen": "messages", "rejected": "messages"}

WRITERS = (
    Writer(
        name="jsonl",
        sentence="Rondo's own JSON Lines: everything, one judgment a line.",
        container="jsonl",
        rows=_whole,
        carries_context=True,
    ),
    Writer(
        name="trl-preference",
        sentence="TRL preference pairs (conversational), for reward models, DPO and their kin.",
        container="jsonl",
        rows=_trl_preference,
    ),
    Writer(
        name="trl-unpaired",
        sentence="TRL unpaired preferences (conversational), for KTO: of TRL's, it alone carries both bad.",
        container="jsonl",
        rows=_trl_unpaired,
    ),
    Writer(
        name="trl-sft",
        sentence="TRL prompt and completion: demonstrations and corrections, else the preferred answers.",
        container="jsonl",
        rows=_trl_sft,
    ),
    Writer(
        name="trl-prm",
        sentence="TRL stepwise supervision, for process reward models: steps and whether each is right.",
        container="jsonl",
        rows=_trl_prm,
        has_steps=True,
    ),
    Writer(
        name="openrlhf",
        sentence="Preference pairs in Parquet for OpenRLHF, the strength as margin.",
        container="parquet",
        rows=_openrlhf,
        columns={**_PAIR, "margin": "whole number"},
    ),
    Writer(
        name="verl",
        sentence="Prompts in Parquet for verl's policy optimisation, with the reference as ground truth.",
        container="parquet",
        rows=_verl,
        columns={
            "data_source": "text",
            "prompt": "messages",
            "ability": "text",
            "reward_model": "struct:style,ground_truth",
            "extra_info": "struct:split,index",
        },
        once_per_prompt=True,
    ),
)
