"""Rows of a snapshot: one judgment each, with all training data in it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from annotation.record.base import ContractError, NotNegative, Text, decode, record, require
from annotation.record.judgment import CorrectionPart, JudgmentParts, StepLabel, Verdict
from training.contract.files import (
    FORMAT_VERSION,
    canonical_json,
    read_record,
    sha256_of_file,
    write_atomically,
)

Split = Literal["train", "held-out"]


@record
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@record
class Passage:
    """A context passage, as sentences, so that evidence can point at one of them."""

    title: str
    sentences: tuple[str, ...]


@record
class SnapshotCompletion:
    """A model output that was judged."""

    id: str
    text: str
    source: str
    """The checkpoint's name, or the name of an imported set."""
    steps: tuple[tuple[int, int], ...] = ()
    """Steps of an agent trace: [start, end) in code points, in order and disjoint; none of a plain text."""

    def __post_init__(self) -> None:
        done = 0
        for number, (start, end) in enumerate(self.steps, start=1):
            where = f"completion {self.id}: field 'steps', item {number}"
            require(
                done <= start < end <= len(self.text), where, "must lie in the text, after the one before"
            )
            done = end


@record
class SnapshotStepLabels:
    """An annotator's labels of the steps of one completion."""

    completion: str
    labels: tuple[StepLabel | None, ...]
    """One for each of the completion's `steps`; None where the annotator gave none, as of tool results."""


@record
class SnapshotReview:
    """A reviewer's decision on the row's comparison, the same in every judgment of it."""

    verdict: Verdict
    ranks: dict[str, int]
    """Completion id to rank, as in the row; empty when the reviewer could not judge either."""


_READ = ("read_for_spans", "read_for_missing")
"""Fields that may be unknown, None."""
_STEPS = ("steps", "step_labels")
"""Fields that rows without traces do not have."""
_UNKNOWN = ("shown", "group", "answers")
"""Fields that are empty where nothing is known, or nothing was asked."""
_OF_SPANS = ("parent", "is_liked", "relations")
"""Fields of spans that are empty of most."""
_OF_ANSWERS = ("step", "span")
"""Fields of answers that are None of most."""
_OMITTED = (*_READ, "feedback")
"""Fields that are not written where they are None: rows without them keep their bytes."""


@record
class SnapshotRow(JudgmentParts):
    """A current judgment with all training data in it."""

    judgment: str
    comparison: str
    annotator: str
    """A pseudonym: the same person has the same one in every snapshot of a project."""
    round: int
    prompt: str
    split: Split
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    completions: Annotated[tuple[SnapshotCompletion, ...], Field(min_length=1)]
    ranks: dict[str, int]
    guideline_version: int | None = None
    context: tuple[Passage, ...] = ()
    step_labels: tuple[SnapshotStepLabels, ...] = ()
    """Labels of single steps; of a completion that is not among them no step was labelled."""
    review: SnapshotReview | None = None
    """A reviewer's decision about the comparison; None without one."""
    weight: NotNegative = 1.0
    """Weight of the judgment in training; below 1 where annotators are weighed by reliability."""
    read_for_spans: tuple[str, ...] | None = None
    """Ids of the completions that were read for stretches to mark: one of them without a span is faultless,
    one that is not among them may have any fault. None: nobody wrote it down, as in older snapshots."""
    read_for_missing: tuple[str, ...] | None = None
    """The same of what completions leave out."""
    feedback: Literal["thumb", "rating", "rewrite", "alternative"] | None = None
    """Kind of feedback of an application's end user; None for a judgment of an annotator."""
    shown: tuple[str, ...] = ()
    """Ids of the completions as the annotator saw them, first to last; empty where no order is known."""
    group: str = ""
    """The annotator's group; empty for none, and for a group of too few annotators to be named."""

    def __post_init__(self) -> None:
        where = f"judgment {self.judgment}"
        texts = {completion.id: completion.text for completion in self.completions}
        require(len(texts) == len(self.completions), where, "field 'completions' names one id twice")
        require(
            not self.shown or sorted(self.shown) == sorted(texts),
            where,
            "field 'shown' must name every completion of the row once",
        )
        self._check_ranks(self.ranks, texts, f"{where}: field 'ranks'")
        if self.review is not None:
            self._check_ranks(self.review.ranks, texts, f"{where}: field 'review', ranks")
        for name in ("spans", "missing", "corrections", "ratings", "critiques", "step_labels"):
            for item in getattr(self, name):
                require(
                    item.completion in texts, where, f"field {name!r} has a completion that is not in the row"
                )
        self._check_answers(where)
        flagged = [{span.completion for span in self.spans}, {lack.completion for lack in self.missing}]
        for name, ids in zip(_READ, flagged, strict=True):
            read = getattr(self, name)
            if read is not None:
                field = f"field {name!r}"
                require(set(read) <= set(texts), where, f"{field} has a completion that is not in the row")
                require(ids <= set(read), where, f"{field} lacks a completion that has a flag")
        for span in self.spans:
            require(
                texts[span.completion][span.start : span.end] == span.quote != "",
                where,
                f"span {span.start}:{span.end} does not stand on its quote {span.quote!r}",
            )
        steps = {completion.id: len(completion.steps) for completion in self.completions}
        for labelled in self.step_labels:
            require(
                len(labelled.labels) == steps[labelled.completion],
                where,
                f"completion {labelled.completion} has {steps[labelled.completion]} steps and "
                f"{len(labelled.labels)} step labels",
            )
        for correction in self.corrections:
            require(
                not correction.edits or _edited(texts[correction.completion], correction) == correction.text,
                where,
                f"the edits of completion {correction.completion} do not give its corrected text",
            )

    def _check_answers(self, where: str) -> None:
        steps = {completion.id: len(completion.steps) for completion in self.completions}
        spans = {(span.completion, span.place) for span in self.spans}
        for answer in self.answers:
            for what, is_there in (
                ("completion", answer.completion is None or answer.completion in steps),
                ("step", answer.step is None or answer.step < steps.get(answer.completion or "", 0)),
                ("span", answer.span is None or (answer.completion, answer.span) in spans),
            ):
                require(is_there, where, f"field 'answers' has a {what} that is not in the row")

    @staticmethod
    def _check_ranks(ranks: Mapping[str, int], texts: Mapping[str, str], where: str) -> None:
        require(set(ranks) <= set(texts), where, "names a completion that is not in the row")
        require(min(ranks.values(), default=1) >= 1, where, "must count from 1")

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "row") -> Self:
        """Build a row from decoded JSON; `where` begins every error message."""
        return decode(cls, values, where)

    def to_json(self) -> str:
        """Return the row's canonical JSON, over which the snapshot's digest is computed.

        Omits what is None of `_OMITTED` and `_OF_ANSWERS`, what is empty of `_UNKNOWN` and `_OF_SPANS`, and
        steps where there are none: older rows keep their digest. What `_provenance` names is not training
        data.
        """
        values = dataclasses.asdict(self)
        for part, name in _provenance(values):
            del part[name]
        for name in _UNKNOWN:
            if not values[name]:
                del values[name]
        for part, name in _empty_of_most(values):
            del part[name]
        for part in (values, *values["completions"]):
            for name in _STEPS:
                if not part.get(name, True):
                    del part[name]
        return canonical_json({k: v for k, v in values.items() if v is not None or k not in _OMITTED})

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Return every (winner id, loser id) that the ranks decide; ties give none."""
        return decided_pairs(self.ranks, [completion.id for completion in self.completions])


def decided_pairs(ranks: Mapping[str, int], completions: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Return every (winner id, loser id) that ranks decide; ties give none.

    Completions without a rank are below all that have one; among themselves they give none.
    """
    unordered = [pk for pk in completions if pk not in ranks]
    for winner, winner_rank in ranks.items():
        for loser, loser_rank in ranks.items():
            if winner_rank < loser_rank:
                yield winner, loser
        for loser in unordered:
            yield winner, loser


def _provenance(values: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the parts of a row, and the field of each, that rows do not have."""
    yield from ((span, "text_hash") for span in values["spans"])
    yield from ((pointer, "quote") for lack in values["missing"] for pointer in lack["evidence"])
    yield from ((edit, "origin") for correction in values["corrections"] for edit in correction["edits"])


def _empty_of_most(values: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the spans and answers of a row, and the fields of each that are empty."""
    yield from ((span, name) for span in values["spans"] for name in _OF_SPANS if not span[name])
    yield from (
        (answer, name) for answer in values.get("answers", ()) for name in _OF_ANSWERS if answer[name] is None
    )


def _edited(text: str, correction: CorrectionPart) -> str | None:
    """Return the text after a correction's edits; None if they overlap or do not match their quotes."""
    parts, done = [], 0
    for edit in correction.edits:
        if not done <= edit.start <= edit.end <= len(text) or text[edit.start : edit.end] != edit.quote:
            return None
        parts += [text[done : edit.start], edit.replacement]
        done = edit.end
    return "".join([*parts, text[done:]])


# ── Prompts of a snapshot: inputs for sampling a policy, with their references ──


@record
class SnapshotPrompt:
    """A prompt of a project, judged or not."""

    id: Text
    """The same as `SnapshotRow.prompt` of the judgments on it."""
    split: Split
    """A policy is sampled on "train" alone; "held-out" measures it."""
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    context: tuple[Passage, ...] = ()
    reference: Any = None
    """The reference answer for rewards, as decoded JSON: mostly a text, or a list of texts that are all
    right; None if unknown."""

    def __post_init__(self) -> None:
        try:
            canonical_json(self.reference)
        except (TypeError, ValueError) as error:
            raise ContractError.of([(("reference",), f"is no JSON ({error})")]) from None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "prompt") -> Self:
        """Build a prompt from decoded JSON; `where` begins every error message."""
        return decode(cls, values, where)

    def to_json(self) -> str:
        """Return the prompt's canonical JSON, over which the snapshot's digest is computed."""
        return canonical_json(dataclasses.asdict(self))


# ── Context passages as part of a prompt's chat ──


def with_context(messages: Sequence[Message], context: Sequence[Passage]) -> list[Message]:
    """Return the chat with its context passages before the text of the last user message."""
    if not context:
        return list(messages)
    passages = "\n\n".join(f"{passage.title}\n{' '.join(passage.sentences)}".strip() for passage in context)
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise ContractError("the prompt has context but no user message to put it before")
    question = Message(role="user", content=f"{passages}\n\n{messages[last].content}")
    return [*messages[:last], question, *messages[last + 1 :]]


# ── Parts of the training judgments: one for the policy and its reward model, one for a second evaluator ──


JudgmentPart = Literal["policy", "evaluator"]


def part_of_prompt(prompt: str) -> JudgmentPart:
    """Return the part of all judgments of a prompt, by the hash of the prompt's id.

    Unseeded, so that a prompt stays in its part in all rounds: a policy trained over several rounds never
    learns from its evaluator's judgments.
    """
    first = hashlib.sha256(f"part/{prompt}".encode()).digest()[0]
    return "policy" if first % 2 == 0 else "evaluator"


# ── Snapshot folder: an immutable, content-addressed export of judgments and their prompts ──


SNAPSHOT_HEADER_FILE = "snapshot.json"
SNAPSHOT_ROWS_FILE = "judgments.jsonl"
SNAPSHOT_PROMPTS_FILE = "prompts.jsonl"


@record
class SnapshotHeader:
    """The content of `snapshot.json`."""

    project: str
    rounds: tuple[int, ...]
    rows: int
    digest: str
    """The snapshot's identity: SHA-256 of judgments.jsonl, and where there is a prompts.jsonl the SHA-256 of
    the two files' digests, in hexadecimal with a space between."""
    prompts: int = 0
    """Lines of prompts.jsonl; 0 where there is none."""
    ai_judgments: int = 0
    """Rows that programs judged; 0 where only people's are in."""
    feedback: int = 0
    """Rows of feedback from applications' end users; not written where it is 0."""
    format: int = FORMAT_VERSION


def write_snapshot(
    folder: Path,
    rows: Iterable[SnapshotRow],
    *,
    project: str,
    rounds: tuple[int, ...],
    prompts: Iterable[SnapshotPrompt] = (),
    ai_judgments: int = 0,
    feedback: int = 0,
) -> SnapshotHeader:
    """Write rows and prompts, in their order, and the header with the counts of AI judgments and feedback.

    The header comes last: without it the folder is no snapshot. The digest depends on content alone; writing
    twice changes nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    row_count = _write_lines(folder / SNAPSHOT_ROWS_FILE, (row.to_json() for row in rows))
    prompt_count = _write_lines(folder / SNAPSHOT_PROMPTS_FILE, (prompt.to_json() for prompt in prompts))
    if not prompt_count:
        (folder / SNAPSHOT_PROMPTS_FILE).unlink()
    header = SnapshotHeader(
        project=project,
        rounds=rounds,
        rows=row_count,
        digest=_digest(folder),
        prompts=prompt_count,
        ai_judgments=ai_judgments,
        feedback=feedback,
    )
    values = dataclasses.asdict(header)
    if not feedback:
        del values["feedback"]
    write_atomically(folder / SNAPSHOT_HEADER_FILE, canonical_json(values) + "\n")
    return header


def _write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write a file atomically and sync it; return the number of its lines."""
    count = 0
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            for line in lines:
                stream.write(line + "\n")
                count += 1
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return count


def _digest(folder: Path) -> str:
    rows = sha256_of_file(folder / SNAPSHOT_ROWS_FILE)
    prompts = folder / SNAPSHOT_PROMPTS_FILE
    if not prompts.is_file():
        return rows
    return hashlib.sha256(f"{rows} {sha256_of_file(prompts)}".encode()).hexdigest()


def read_snapshot_header(folder: Path) -> SnapshotHeader:
    """Return the header of a snapshot folder. Raises `ContractError` if it is missing."""
    return read_record(SnapshotHeader, folder / SNAPSHOT_HEADER_FILE)


def read_snapshot(folder: Path, *, verify: bool = True) -> Iterator[SnapshotRow]:
    """Stream the rows. With `verify`, check the files against the header's digest before the first row.
    Errors name file, line and field."""
    _check(folder, verify=verify)
    for where, values in _lines(folder / SNAPSHOT_ROWS_FILE):
        yield SnapshotRow.from_json(values, where=where)


def read_prompts(folder: Path, *, verify: bool = True) -> Iterator[SnapshotPrompt]:
    """Stream the prompts of both splits, with the checks and errors of `read_snapshot`.

    Without a prompts.jsonl, each prompt of the judgments once, in order of appearance, without references.
    """
    seen: set[str] = set()
    if _check(folder, verify=verify).prompts:
        for where, values in _lines(folder / SNAPSHOT_PROMPTS_FILE):
            prompt = SnapshotPrompt.from_json(values, where=where)
            require(prompt.id not in seen, where, f"prompt {prompt.id!r} is there twice")
            seen.add(prompt.id)
            yield prompt
        return
    for row in read_snapshot(folder, verify=False):
        if row.prompt not in seen:
            seen.add(row.prompt)
            yield SnapshotPrompt(id=row.prompt, split=row.split, messages=row.messages, context=row.context)


def _check(folder: Path, *, verify: bool) -> SnapshotHeader:
    """Return the header after checking that its files exist and, with `verify`, match its digest."""
    header = read_snapshot_header(folder)
    for name in [SNAPSHOT_ROWS_FILE, *([SNAPSHOT_PROMPTS_FILE] if header.prompts else [])]:
        path = folder / name
        require(path.is_file(), str(path), "the file is missing; freeze the snapshot again")
    if verify:
        digest = _digest(folder)
        path = folder / SNAPSHOT_ROWS_FILE
        require(digest == header.digest, str(path), f"digest {digest} is not the header's {header.digest}")
    return header


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each line's location and decoded JSON."""
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{path.name} line {number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise ContractError(f"{where}: not JSON ({error})") from None
