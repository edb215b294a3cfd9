"""The interface of export formats: the rows of one judgment.

A writer turns one record of `rondo_jsonl` into rows, and reports all that it cannot carry and why: no tie and
no "both bad" is lost silently. Writers are pure; `exchange.file_exports` writes the files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from annotation.choices import Granularity, Polarity, Verdict

# Ends of the segments of a completion, by the rules under which spans are rewarded.
#
# Those rules belong to `training`, which this application does not know: `training.apps` registers them.

Segments = Sequence[tuple[int, int]]
"""[start, end) in code points."""
StepGranularity = Literal["sub-sentence", "sentence"]
Cut = Callable[[str, StepGranularity], Segments]
_registered: list[Cut] = []


def register(cut: Cut) -> None:
    """Cut texts by these rules from now on: a text and a granularity → its segments."""
    _registered[:] = [cut]


def segments(text: str, granularity: StepGranularity) -> list[tuple[int, int]]:
    """The segments of a text without the white space around them. Raises `LookupError` without rules."""
    if not _registered:
        raise LookupError("no rules for segments are registered; add the app that holds them")
    positions = []
    for start, end in _registered[0](text, granularity):
        quote = text[start:end]
        if core := quote.strip():
            begin = start + len(quote) - len(quote.lstrip())
            positions.append((begin, begin + len(core)))
    return positions


def step_granularity(granularities: Mapping[str, str], polarities: Mapping[str, str]) -> StepGranularity:
    """The finest granularity of a project's error categories: by it, completions are cut into steps.

    Where errors are rewarded over the whole completion alone, or there are no categories, sentences.
    """
    of_errors = {
        granularity
        for key, granularity in granularities.items()
        if polarities.get(key, Polarity.ERROR) == Polarity.ERROR
    }
    return "sub-sentence" if Granularity.SUB_SENTENCE in of_errors else "sentence"


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
    """Facts about the project that a writer needs."""

    slug: str
    polarities: Mapping[str, str] = field(default_factory=dict)
    """Category key → polarity of its spans: blame or praise."""
    step_granularity: StepGranularity = "sentence"
    """The segments that are steps where no steps are marked."""
    criteria: tuple[str, ...] = ()
    questions: Mapping[str, str] = field(default_factory=dict)
    """Key of an additional question → its kind."""
    questions_of_parts: frozenset[str] = frozenset()
    """Keys of those that are asked of spans or steps: a table has no column for them."""
    has_decisions: bool = False
    """True if reviewers decided something in the project: a table then has columns for it."""
    has_completion_metadata: bool = False
    """True if responses of the project have metadata: a table then has a column for it."""
    tokens: Tokens | None = None


Written = Iterator[dict[str, Any] | Dropped]


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """One export format."""

    name: str
    sentence: str
    container: str
    """`jsonl`, `json` (one list), `csv` or `parquet`."""
    rows: Callable[[Record, Scene], Written]
    has_steps: bool = False
    """True if completions are exported in steps: the manifest then says how they were cut."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For Parquet: column → `text`, `messages`, `whole number`, or a `struct` of texts as `struct:a,b`."""
    carries_context: bool = False
    carries_answers: bool = False
    """True if answers to additional questions go out."""
    carries_reviews: bool = False
    """True if decisions of reviewers go out."""
    once_per_prompt: bool = False
    carries: str = ""
    """Parts of a judgment that go out, for the guide."""
    loses: str = ""
    """Parts of a judgment that have no place in the format, for the guide."""


def about_parts(record: Record, *kinds: Literal["span", "step"]) -> list[Mapping[str, Any]]:
    """Return the answers to additional questions that are about spans or about steps."""
    return [answer for answer in record.get("answers", ()) if any(kind in answer for kind in kinds)]


def about_wholes(record: Record) -> list[Mapping[str, Any]]:
    """Return the answers to additional questions that are about the comparison or a response."""
    return [answer for answer in record.get("answers", ()) if not answer.keys() & {"span", "step"}]


NO_ORDER = {
    Verdict.EQUAL: "equal: neither is better",
    Verdict.BOTH_GOOD: "both good: neither is better",
    Verdict.BOTH_BAD: "both bad: neither is better",
    Verdict.CANNOT_JUDGE: "cannot judge",
    Verdict.NOT_ASKED: "no verdict was asked for",
}


UNORDERED = "not ordered: a partial ranking has it below all ranked ones"
UNORDERED_PAIR = "not ordered against completion"


def rank_in(record: Record, completion: Mapping[str, Any]) -> int:
    """Return a completion's rank; of one that a partial ranking does not order, the rank after the last."""
    ranks: Mapping[str, int] = record["ranks"]
    return ranks.get(completion["id"], max(ranks.values(), default=0) + 1)


def answer_messages(text: str) -> list[dict[str, str]]:
    """An answer as a conversation of one message."""
    return [{"role": "assistant", "content": text}]


def pairs(record: Record) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]] | Dropped]:
    """Better and worse completion of each decided pair; each tie, each pair that a partial ranking does not
    order, and a verdict without order, as dropped."""
    if record["verdict"] != Verdict.RANKED:
        yield Dropped(NO_ORDER[Verdict(record["verdict"])])
        return
    if len(record["completions"]) < 2:
        yield Dropped("one completion alone, so no pair")
        return
    ranks = record["ranks"]
    for left, right in combinations(record["completions"], 2):
        if left["id"] not in ranks and right["id"] not in ranks:
            yield Dropped(f"{UNORDERED_PAIR} {right['id']}", left["id"])
            continue
        difference = rank_in(record, left) - rank_in(record, right)
        if difference == 0:
            yield Dropped(f"tie with completion {right['id']}", left["id"])
        else:
            yield (left, right) if difference < 0 else (right, left)
