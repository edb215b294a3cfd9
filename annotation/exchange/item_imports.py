"""Judged answers come in, many at a time: what every format's reader gives, written as rows.

Each batch is a transaction of its own, so that a long import neither holds the database nor begins again when
it is cut off: what is there already is found by its key and stays as it is.
"""

import hashlib
import json
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Any

from django.contrib.auth.hashers import make_password
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import NOT_ORDERED, AssignmentState, Purpose, RatingScale
from annotation.exchange.formats.fields import FieldError, excerpt, row_error
from annotation.exchange.formats.items import (
    ImportedConversation,
    ImportedItem,
    ImportedJudgment,
    ImportedTurn,
)
from annotation.exchange.prompts import Placed, add_metadata, add_prompts, create_tasks, store_completions
from annotation.models import (
    Assignment,
    Comparison,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Judgment,
    Project,
    Prompt,
    QuestionVersion,
    User,
    bulk,
)
from annotation.record.judgment import COLUMNS, AnswerPart, JudgmentRecord, Target
from annotation.record.questions import Question, fitted, in_order_of_choices
from annotation.selectors import access
from annotation.selectors.configuration import parts_of, question_in
from annotation.services.judgments.checks import dense_ranks, expected_answer
from annotation.services.judgments.storing import PartKeys, StoredJudgment, store_parts
from annotation.services.quality import record_agreement
from annotation.services.texts import NewComparison, completion_set, write_comparisons

# Counting more things than fit into memory: in a private file of SQLite's, gone when it is closed.


class Occurrences:
    """Counts of the occurrences of many digests. Memory stays the same however many they are."""

    def __init__(self) -> None:
        # An empty name is a temporary database on disk, with a few megabytes of it in memory.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, times INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def __enter__(self) -> "Occurrences":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def count(self, digest: bytes) -> int:
        """Return the number of occurrences of this digest, this one included."""
        return int(
            self._database.execute(
                "INSERT INTO seen VALUES (?, 1) ON CONFLICT (digest) DO UPDATE SET times = times + 1 "
                "RETURNING times",
                (digest,),
            ).fetchone()[0]
        )


# ── Item imports ──

BATCH = 2_000
_KEYS = uuid.UUID("a6c1d8f0-96b0-5d3c-8b53-5b1f0e7a2c64")
"""Namespace of the idempotency keys of what any format's reader gives."""
_MOST_ANONYMOUS = 1_000

Numbered = tuple[int, ImportedItem]


_NAMED = {
    "comparison": (False, False, False),
    "completion": (True, False, False),
    "step": (True, True, False),
    "span": (True, False, True),
}
"""Subject of a question → whether an answer names a completion, a step and a span."""


class QuestionsInProject:
    """The additional questions of a project in all their versions, for the answers of a file."""

    def __init__(
        self, versions: Iterable[QuestionVersion], parts: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Take versions of questions, the earlier ones of each first, and the sub-categories."""
        self._newest: dict[str, Question] = {}
        self._versions: dict[tuple[str, int], Question] = {}
        self.version_ids: dict[tuple[str, int], int] = {}
        """Key and version → id of the version."""
        for version in versions:
            question = question_in(version.question, version, parts)
            self._newest[question.key] = question
            self._versions[question.key, question.version] = question
            self.version_ids[question.key, question.version] = version.pk

    @classmethod
    def of(cls, project: Project) -> "QuestionsInProject":
        """Read those of a project."""
        rows = QuestionVersion.objects.filter(question__project=project).order_by("question", "number")
        return cls(rows.select_related("question__shown_when"), parts_of(project.categories.all()))

    def fitted(self, item: ImportedItem) -> ImportedItem:
        """Return an item whose answers have the type and version of their questions.

        Raises `FieldError` for one to a question that the project does not ask, about another subject, and
        for a value that the question does not accept. Of a version that is not there the newest is taken:
        numbers of another database say nothing here.
        """
        if not any(judgment.answers for judgment in item.judgments):
            return item
        places = range(len(item.completions))
        judgments = [
            replace(judgment, answers=self._answers(judgment.answers, places))
            if judgment.answers
            else judgment
            for judgment in item.judgments
        ]
        return replace(item, judgments=tuple(judgments))

    def _answers(self, answers: Sequence[AnswerPart], places: range) -> tuple[AnswerPart, ...]:
        read: dict[tuple[str, Target], AnswerPart] = {}
        for answer in answers:
            part = self._answer(answer, places)
            place = (part.question, part.target)
            if read.get(place, part).value != part.value:
                raise FieldError(
                    "answers_differ",
                    _("“%(key)s” is answered twice, by %(value)s and %(other)s. Leave one out."),
                    field="answers",
                    key=part.question,
                    value=excerpt(read[place].value),
                    other=excerpt(part.value),
                )
            read[place] = part
        return tuple(read.values())

    def _answer(self, answer: AnswerPart, places: range) -> AnswerPart:
        newest = self._newest.get(answer.question)
        if newest is None:
            raise FieldError(
                "unknown_question",
                _("The project does not ask %(key)s. Add the question first; it asks %(known)s."),
                field="answers",
                key=excerpt(answer.question),
                known=", ".join(self._newest) or "–",
            )
        question = self._versions.get((answer.question, answer.version or 0), newest)
        # A table has the same cell in every row of a judgment.
        completion = None if question.subject == "comparison" else answer.completion
        is_there = completion is None or int(completion) in places
        named = (completion is not None, answer.step is not None, answer.span is not None)
        if not is_there or named != _NAMED[question.subject]:
            raise FieldError(
                "answer_of_other_subject",
                {
                    "comparison": _("%(key)s is asked of the comparison. Name no step and no span."),
                    "completion": _("%(key)s is asked of each response. Name the response."),
                    "step": _("%(key)s is asked of each step of a trace. Name the response and the step."),
                    "span": _("%(key)s is asked of each span. Name the response and its span."),
                }[question.subject],
                field="answers",
                key=question.key,
            )
        if not newest.is_asked_of(answer.target):
            raise FieldError(
                "answer_of_other_category",
                _("%(key)s is asked of spans of these categories alone: %(categories)s. Leave it out."),
                field="answers",
                key=question.key,
                categories=", ".join(newest.categories),
            )
        value = fitted(question, answer.value)
        if not question.accepts(value):
            raise FieldError(
                "invalid_answer_value",
                _("%(value)s does not answer %(key)s. Write %(expected)s."),
                field="answers",
                value=excerpt(answer.value),
                key=question.key,
                expected=expected_answer(question),
            )
        value = in_order_of_choices(question, value)
        return replace(answer, completion=completion, value=value, version=question.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportScene:
    """The project that gets it, with ids of what items name by key."""

    project: Project
    categories: Mapping[str, int]
    criteria: Mapping[str, int]
    questions: QuestionsInProject


@dataclass(frozen=True, kw_only=True, slots=True)
class _Accepted:
    """One judgment that is to be written."""

    item: ImportedItem
    judgment: ImportedJudgment
    comparison: int
    completions: Sequence[int]
    annotator: int
    slot: int
    key: uuid.UUID
    origin: Mapping[str, Any]


@dataclass(kw_only=True, slots=True)
class ItemCounts:
    """Counts of imported items. All but `already_there`, `metadata_differs` and `left_out` were added."""

    prompts: int = 0
    prompts_already_there: int = 0
    """Items whose prompt the project, or an item before them, has: they add no prompt."""
    comparisons: int = 0
    waiting: int = 0
    """Comparisons that nobody judged yet: they wait for people."""
    judgments: int = 0
    already_there: int = 0
    rankings_with_broken_ties: int = 0
    """Rankings among `judgments` of pairs whose ties are not transitive."""
    metadata_differs: int = 0
    """Items whose metadata differs from that of the prompt or comparison that is there; it keeps its own."""
    left_out: list[str] = field(default_factory=list)
    """Judgments that contradict one that the same person gave of the same answers: row and reason."""


class ItemImport:
    """One import into one project. Give it the items of a file in their order, from the first on.

    scene: the project with the categories and criteria that the items name. file_import: its record's id.
    """

    def __init__(
        self, *, scene: ImportScene, format_name: str, occurrences: Occurrences, file_import: int
    ) -> None:
        self._scene = scene
        self._format = format_name
        self._file_import = file_import
        self._occurrences = occurrences
        self._people = ImportedPeople(format_name)

    def skip(self, items: Iterable[Numbered]) -> None:
        """Pass over what an earlier try has written: its repetitions must be counted all the same."""
        for _number, item in items:
            self._keys(item)

    def write(self, items: Sequence[Numbered]) -> ItemCounts:
        """Write a batch, whole or not at all."""
        with transaction.atomic():
            # Two imports into one project take turns; what the first adds the second finds.
            Project.objects.select_for_update(no_key=True).get(pk=self._scene.project.pk)
            return self._write(items)

    def _write(self, items: Sequence[Numbered]) -> ItemCounts:
        prompts, new = add_prompts(
            project=self._scene.project,
            prompts=[item for _, item in items],
            file_import=self._file_import,
        )
        counts = ItemCounts(prompts=len(new), prompts_already_there=len(items) - len(new))
        judged = []
        tasks = []
        for (number, item), prompt in zip(items, prompts, strict=True):
            if item.judgments:
                judged.append((number, item, prompt))
            elif item.completions:
                tasks.append((item, prompt))
        if tasks:
            counts.waiting, counts.metadata_differs = create_tasks(
                project=self._scene.project, tasks=tasks, new_prompts=new, file_import=self._file_import
            )
        # What came with answers stands with their comparison.
        alone = [
            (prompt, item.metadata)
            for (_, item), prompt in zip(items, prompts, strict=True)
            if not item.completions
        ]
        repeated = Counter(prompt for prompt, _metadata in alone)
        counts.metadata_differs += add_metadata(
            Prompt, [each for each in alone if each[0] not in new or repeated[each[0]] > 1]
        )
        if judged:
            self._write_judged(judged, new, counts)
        write_turns(
            project=self._scene.project,
            placed=[(item, prompt) for (_, item), prompt in zip(items, prompts, strict=True)],
            people=self._people,
        )
        return counts

    def _write_judged(
        self, judged: Sequence[tuple[int, ImportedItem, int]], new_prompts: set[int], counts: ItemCounts
    ) -> None:
        completions = store_completions([(item, prompt) for _, item, prompt in judged], new_prompts)
        places = _Places(self._scene.project, completions, self._file_import)
        keys = [self._keys(item) for _, item, _ in judged]
        all_keys = [key for of_item in keys for key in of_item]
        known = set(
            Judgment.everything.filter(idempotency_key__in=all_keys).values_list("idempotency_key", flat=True)
        )
        people = self._people.ids(
            (judgment.annotator, judgment.is_machine) for _, item, _ in judged for judgment in item.judgments
        )
        accepted = []
        for (number, item, prompt), ids, of_item in zip(judged, completions, keys, strict=True):
            comparison = places.comparison(ids, prompt, item.metadata)
            more = places.beyond(comparison, item.metadata)
            for judgment, key in zip(item.judgments, of_item, strict=True):
                person = self._people.persons.get(judgment.annotator)
                if key in known or (person is not None and places.has(comparison, person)):
                    counts.already_there += 1
                    continue
                annotator = people[judgment.annotator, judgment.is_machine]
                if not judgment.annotator:
                    annotator = self._somebody(judgment, annotator, comparison, places)
                if places.has(comparison, annotator):
                    if places.says(comparison, annotator, judgment, ids):
                        counts.already_there += 1
                        continue
                    counts.left_out.append(row_error(number, _judged_before(judgment.annotator)))
                    continue
                accepted.append(
                    _Accepted(
                        item=item,
                        judgment=judgment,
                        comparison=comparison,
                        completions=ids,
                        annotator=annotator,
                        slot=places.take(comparison, annotator, judgment, ids),
                        key=key,
                        origin=self._origin(number, judgment, more),
                    )
                )
        counts.comparisons += places.write()
        counts.judgments += len(accepted)
        counts.rankings_with_broken_ties += sum(
            bool(row.judgment.more.get("broken_ties")) for row in accepted
        )
        _write_accepted(self._scene, accepted)
        record_agreement(comparisons=places.judged_by_several & {row.comparison for row in accepted})

    def _keys(self, item: ImportedItem) -> list[uuid.UUID]:
        """The same content in the same project has the same key, wherever in a file it stands; the second of
        two that are the same in one file has another, for two people may say the same."""
        if not item.judgments:
            return []
        item_json = json.dumps(
            [item.messages, item.context, [(c.text, c.source, c.seed) for c in item.completions]],
            ensure_ascii=False,
        )
        keys = []
        for judgment in item.judgments:
            content = json.dumps(
                _key_content(judgment, len(item.completions)), ensure_ascii=False, sort_keys=True
            )
            digest = hashlib.sha256(f"{item_json}\n{content}".encode()).digest()
            times = self._occurrences.count(digest[:16])
            keys.append(uuid.uuid5(_KEYS, f"{self._scene.project.pk}:{digest.hex()}:{times}"))
        return keys

    def _somebody(self, judgment: ImportedJudgment, first: int, comparison: int, places: "_Places") -> int:
        """Nobody is named, so it is anyone who has not judged these answers yet."""
        annotator = first
        for number in range(2, _MOST_ANONYMOUS):
            if not places.has(comparison, annotator):
                break
            name = (f"no. {number}", judgment.is_machine)
            annotator = self._people.ids([name])[name]
        return annotator

    def _origin(self, number: int, judgment: ImportedJudgment, more: Mapping[str, Any]) -> dict[str, Any]:
        origin = {"format": self._format, "row": number, "import": self._file_import}
        if not judgment.display_order:
            origin["display_order"] = "unknown"
        return origin | ({"more": {**more, **judgment.more}} if more or judgment.more else {})


class _Places:
    """Comparisons of a batch, who has judged them, and the places that new judgments take.

    What was judged elsewhere takes no place from annotators of the project: the comparison gets one more for
    it, and a comparison that is new here has no open place at all.
    """

    def __init__(self, project: Project, completions: Sequence[Sequence[int]], file_import: int) -> None:
        self._project = project
        self._file_import = file_import
        sets = {completion_set(ids) for ids in completions}
        there = Comparison.objects.filter(
            project=project, completion_set__in=sets, purpose=Purpose.WORK
        ).order_by("round_number")
        rows = list(there.values_list("pk", "completion_set", "overlap", "metadata"))
        self._ids = {digest: pk for pk, digest, *_ in rows}
        self._overlap = {pk: overlap for pk, _, overlap, _ in rows}
        self._metadata: dict[int, Mapping[str, Any]] = {pk: metadata or {} for pk, *_, metadata in rows}
        self._said: dict[tuple[int, int], tuple[ImportedJudgment, Sequence[int]]] = {}
        self._before = dict(self._overlap)
        self._judged: set[tuple[int, int]] = set(
            Assignment.objects.filter(comparison__in=self._overlap, retest_of__isnull=True)
            .exclude(state__in=[AssignmentState.RELEASED, AssignmentState.EXPIRED])
            .values_list("comparison_id", "annotator_id")
        )
        self._fresh = iter(bulk.reserve_ids(Comparison, len(sets - self._ids.keys())))
        self._new: dict[int, tuple[int, Sequence[int]]] = {}

    def comparison(self, ids: Sequence[int], prompt: int, metadata: Mapping[str, Any]) -> int:
        """Return the comparison of these completions; a new one, with this metadata, where there is none."""
        digest = completion_set(ids)
        if digest not in self._ids:
            pk = self._ids[digest] = next(self._fresh)
            self._overlap[pk] = 0
            self._new[pk] = (prompt, ids)
            self._metadata[pk] = metadata
        return self._ids[digest]

    def beyond(self, comparison: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of a row that its comparison has otherwise, or not at all: the judgment keeps it."""
        there = self._metadata[comparison]
        return {name: value for name, value in metadata.items() if there.get(name) != value}

    def has(self, comparison: int, annotator: int) -> bool:
        """Return True where this person has, or had, the comparison."""
        return (comparison, annotator) in self._judged

    def says(self, comparison: int, annotator: int, judgment: ImportedJudgment, ids: Sequence[int]) -> bool:
        """Return True where this person has said the very same of the comparison."""
        said, parts = content = _content(judgment, ids)
        if before := self._said.get((comparison, annotator)):
            return _content(*before) == content
        row = (
            Judgment.objects.current()
            .filter(comparison=comparison, annotator=annotator)
            .prefetch_related("ranks")
            .first()
        )
        if row is None or parts:
            return False
        ranks = {ranked.completion_id: ranked.rank for ranked in row.ranks.all()}
        return bool(said == (*_column_content(row), ranks))

    @property
    def judged_by_several(self) -> set[int]:
        """Comparisons that more than one person may have judged: of others there is no agreement."""
        return {pk for pk, overlap in self._overlap.items() if overlap > 1}

    def take(self, comparison: int, annotator: int, judgment: ImportedJudgment, ids: Sequence[int]) -> int:
        """The place of one more judgment."""
        self._judged.add((comparison, annotator))
        self._said[comparison, annotator] = (judgment, ids)
        self._overlap[comparison] += 1
        return self._overlap[comparison] - 1

    def write(self) -> int:
        """Write new comparisons and what changed of old ones; how many are new."""
        round_number = access.current_round(self._project)
        write_comparisons(
            {
                pk: NewComparison(
                    project_id=self._project.pk,
                    prompt_id=prompt,
                    completions=ids,
                    round_number=round_number,
                    overlap=max(self._overlap[pk], 1),
                    metadata=self._metadata[pk],
                    file_import_id=self._file_import,
                )
                for pk, (prompt, ids) in self._new.items()
            }
        )
        for pk, overlap in self._before.items():
            if self._overlap[pk] != overlap:
                Comparison.objects.filter(pk=pk).update(overlap=self._overlap[pk])
        return len(self._new)


def _content(judgment: ImportedJudgment, ids: Sequence[int]) -> tuple[Any, ...]:
    """What a judgment says of completions, whatever their order in its row, and its parts; () without any."""
    ranks = {ids[int(place)]: rank for place, rank in judgment.ranks.items()}
    # Parts name completions by their place in the row.
    parts = (
        *(tuple(ids), judgment.spans, judgment.missing, judgment.corrections, judgment.ratings),
        *(judgment.critiques, judgment.step_labels, judgment.answers, judgment.demonstration),
    )
    return (*_column_content(judgment), ranks), parts if judgment.has_details else ()


def _column_content(judgment: Judgment | ImportedJudgment) -> tuple[Any, ...]:
    """What the columns of a judgment say, however long it took."""
    return tuple(getattr(judgment, name) for name in COLUMNS if name != "active_seconds")


def _key_content(judgment: ImportedJudgment, answers: int) -> dict[str, Any]:
    """A judgment as its key has it, in the form of version 1.0 and without what is left at its default.

    A field that comes later and is left at its default changes no key.
    """
    ranks = [judgment.ranks.get(str(place), NOT_ORDERED) for place in range(answers)]
    return _filled(
        **judgment.columns,
        ranks=ranks if judgment.ranks else None,
        annotator=judgment.annotator,
        is_machine=judgment.is_machine,
        spans=[
            {
                **_place(span, category=span.category, start=span.start, end=span.end),
                **_filled(severity=span.severity, note=span.note),
            }
            for span in judgment.spans
        ],
        missing=[
            {
                **_place(missing, category=missing.category),
                **_filled(
                    text=missing.text,
                    insert_at=missing.insert_at,
                    evidence=[[pointer.passage, pointer.sentence] for pointer in missing.evidence],
                ),
            }
            for missing in judgment.missing
        ],
        corrections=[[int(correction.completion), correction.text] for correction in judgment.corrections],
        edits=[
            {
                **_place(correction, start=edit.start, end=edit.end, replacement=edit.replacement),
                **_filled(
                    is_model=edit.origin.is_unstored,
                    seed=edit.origin.seed,
                    sampling=edit.origin.sampling,
                    span=edit.origin.span,
                ),
            }
            for correction in judgment.corrections
            for edit in correction.edits
        ],
        ratings=[
            {
                **_place(rating, criterion=rating.criterion, value=rating.value),
                **_filled(scale=None if rating.scale == RatingScale.FIVE else rating.scale),
            }
            for rating in judgment.ratings
        ],
        critiques=[[int(critique.completion), critique.text] for critique in judgment.critiques],
        step_labels=[_place(label, step=label.step, label=label.label) for label in judgment.step_labels],
        answers=[
            {
                "question": answer.question,
                "value": answer.value,
                **_filled(
                    version=answer.version,
                    completion=answer.completion,
                    step=answer.step,
                    span=answer.span,
                ),
            }
            for answer in judgment.answers
        ],
        demonstration=judgment.demonstration,
        created_at=judgment.created_at,
        display_order=judgment.display_order,
        more=judgment.more,
    )


def _place(part: Any, **values: Any) -> dict[str, Any]:
    return {"completion": int(part.completion), **values}


def _filled(**values: Any) -> dict[str, Any]:
    """The values that are not empty; 0 is a value."""
    return {name: value for name, value in values.items() if value or (value == 0 and value is not False)}


def _write_accepted(scene: ImportScene, accepted: Sequence[_Accepted]) -> None:
    """Write judgments with all that belongs to them."""
    assignments = bulk.reserve_ids(Assignment, len(accepted))
    judgments = bulk.reserve_ids(Judgment, len(accepted))
    now = timezone.now()
    times = [_time(row.judgment.created_at, now) for row in accepted]
    bulk.insert(
        Assignment,
        [
            *("id", "comparison_id", "annotator_id", "slot", "retest_of_id", "arm", "state"),
            *("display_order", "reason", "leased_at", "lease_expires_at", "closed_at"),
        ],
        (
            (
                *(pk, row.comparison, row.annotator, row.slot, None, "", str(AssignmentState.SUBMITTED)),
                *(bulk.json_value(_display_order(row)), "", time, time, time),
            )
            for pk, row, time in zip(assignments, accepted, times, strict=True)
        ),
    )
    bulk.insert(
        Judgment,
        [
            *("id", "assignment_id", "comparison_id", "annotator_id", "guideline_id", *COLUMNS),
            *("idempotency_key", "supersedes_id", "imported_from", "created_at", "blind", "in_bulk"),
        ],
        (
            (
                *(pk, assignment, row.comparison, row.annotator, None, *row.judgment.columns.values()),
                *(bulk.uuid_value(row.key), None, bulk.json_value(dict(row.origin)), time),
                row.judgment.more.get("blind") is not False,
                row.judgment.more.get("in_bulk") is True,
            )
            for pk, assignment, row, time in zip(judgments, assignments, accepted, times, strict=True)
        ),
    )
    store_parts(
        [
            StoredJudgment(
                judgment=pk,
                assignment=assignment,
                record=_with_dense_ranks(row),
                completions={str(place): completion for place, completion in enumerate(row.completions)},
                passages=row.item.context,
                texts={
                    correction.completion: row.item.completions[int(correction.completion)].text
                    for correction in row.judgment.corrections
                },
            )
            for pk, assignment, row in zip(judgments, assignments, accepted, strict=True)
        ],
        PartKeys(categories=scene.categories, criteria=scene.criteria, questions=scene.questions.version_ids),
    )


def _with_dense_ranks(row: _Accepted) -> JudgmentRecord:
    """Return the judgment with ranks as they are stored."""
    ranks = dense_ranks(row.judgment.ranks, [str(place) for place in range(len(row.completions))])
    return row.judgment if ranks == row.judgment.ranks else replace(row.judgment, ranks=ranks)


def _display_order(row: _Accepted) -> list[int]:
    """As it was shown; where nobody wrote that down, drawn by the judgment's key: no side is favoured."""
    if row.judgment.display_order:
        return [row.completions[place] for place in row.judgment.display_order]
    return sorted(row.completions, key=lambda pk: hashlib.sha256(row.key.bytes + str(pk).encode()).digest())


def _time(timestamp: str, now: datetime) -> Any:
    return bulk.time_value(datetime.fromisoformat(timestamp) if timestamp else now)


def _judged_before(annotator: str) -> FieldError:
    return FieldError(
        "judged_before",
        _("%(annotator)s judged the same answers differently before. Judgments are never overwritten."),
        annotator=annotator,
    )


# Annotators of imported judgments: people and programs who cannot sign in here.

_DERIVED = uuid.UUID("0a4f3f0c-5a57-5f0e-8e7c-7d0c5c4b9a31")
_LONGEST = 150

Name = tuple[str, bool]
"""The file's name for an annotator, and True if that is a program."""


class ImportedPeople:
    """The accounts that stand for the annotators in the files of one format.

    They are inactive and have no password. A name that is a pseudonym of ours keeps it, unless somebody here
    has it: judgments in a file are never attributed to that person.
    """

    def __init__(self, format_name: str) -> None:
        self._format = format_name
        self._ids: dict[Name, int] = {}
        self.persons: dict[str, int] = {}
        """Pseudonym → the account here that has it, and was not made by an import."""

    def ids(self, names: Iterable[Name]) -> dict[Name, int]:
        """Return the accounts of these names; create missing ones. Call it inside a transaction."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._ids]
        if unknown:
            self._look_up(unknown)
        return self._ids

    def _look_up(self, names: list[Name]) -> None:
        usernames = {name: self._username(name) for name in names}
        accounts = dict(User.objects.filter(username__in=usernames.values()).values_list("username", "pk"))
        pseudonyms = {name: pseudonym for name in names if (pseudonym := _as_uuid(name[0]))}
        owners = {
            pseudonym: (pk, username)
            for pseudonym, pk, username in User.objects.filter(pseudonym__in=pseudonyms.values()).values_list(
                "pseudonym", "pk", "username"
            )
        }
        new = []
        for name in names:
            pseudonym = pseudonyms.get(name)
            owner = owners.get(pseudonym) if pseudonym else None
            if owner is not None and owner[1] != usernames[name]:
                self.persons[name[0]] = owner[0]
                pseudonym = uuid.uuid5(_DERIVED, str(pseudonym))
            if usernames[name] not in accounts:
                new.append(self._account(name, usernames[name], pseudonym))
        User.objects.bulk_create(new)
        accounts |= {user.username: user.pk for user in new}
        self._ids |= {name: accounts[usernames[name]] for name in names}

    def _account(self, name: Name, username: str, pseudonym: uuid.UUID | None) -> User:
        return User(
            username=username,
            first_name="Imported",
            last_name=f"{self._format} {name[0]}".strip()[:_LONGEST],
            password=make_password(None),
            is_active=False,
            is_machine=name[1],
            **({"pseudonym": pseudonym} if pseudonym else {}),
        )

    def _username(self, name: Name) -> str:
        kind = "machine" if name[1] else "imported"
        if _as_uuid(name[0]):
            # Whichever format bears it, a pseudonym is the same person.
            return f"{kind}-{name[0]}"
        username = f"{kind}-{self._format}-{name[0]}" if name[0] else f"{kind}-{self._format}"
        if len(username) <= _LONGEST:
            return username
        return f"{kind}-{self._format}-{hashlib.sha256(name[0].encode()).hexdigest()[:32]}"


def _as_uuid(name: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(name) if len(name) == 36 else None
    except ValueError:
        return None


# Conversations that come in with their turns: written once, whichever line tells of them first.


def write_turns(*, project: Project, placed: Sequence[Placed], people: ImportedPeople) -> None:
    """Write the turns that items are, and their conversations. What is there stays as it is.

    placed: items with their prompts, whose completions and comparisons are written. Call it in their
    transaction.
    """
    placed = [(item, prompt) for item, prompt in placed if item.turns]
    if not placed:
        return
    conversations = _conversations(
        project, [turn.conversation for item, _ in placed for turn in item.turns], people
    )
    completions = store_completions(placed, set())
    comparisons = _comparisons(project, completions)
    stored_keys = set(
        ConversationTurn.objects.filter(conversation__in=conversations.values()).values_list(
            "conversation_id", "index"
        )
    )
    rows: dict[tuple[uuid.UUID, int], tuple[Any, ...]] = {}
    for (item, prompt), ids in zip(placed, completions, strict=True):
        for turn in item.turns:
            key = (conversations[turn.conversation.id], turn.index)
            if key not in stored_keys:
                comparison = comparisons.get(completion_set(ids)) if ids else None
                rows.setdefault(key, (prompt, comparison, *_continuation(turn, ids)))
    now = bulk.time_value(timezone.now())
    bulk.insert_numbered(
        ConversationTurn,
        [
            *("conversation_id", "index", "prompt_id", "comparison_id"),
            *("continued_with_id", "continued_text", "created_at"),
        ],
        [(bulk.uuid_value(pk), index, *row, now) for (pk, index), row in rows.items()],
    )


def _continuation(turn: ImportedTurn, completions: Sequence[int]) -> tuple[int | None, str]:
    chosen = turn.continued_with
    return None if chosen is None else completions[chosen], turn.continued_text


def _comparisons(project: Project, completions: Iterable[Sequence[int]]) -> dict[str, int]:
    """Completion set → the oldest comparison of it."""
    sets = {completion_set(ids) for ids in completions if ids}
    comparisons = Comparison.objects.filter(project=project, completion_set__in=sets, purpose=Purpose.WORK)
    return dict(comparisons.order_by("-round_number", "-pk").values_list("completion_set", "pk"))


def _conversations(
    project: Project, conversations: Iterable[ImportedConversation], people: ImportedPeople
) -> Mapping[str, uuid.UUID]:
    """The conversations by the ids that the file has for them; those that are not here yet are written."""
    by_id = {conversation.id: conversation for conversation in conversations}
    here = Conversation.objects.filter(project=project).filter(
        Q(pk__in=list(by_id)) | Q(imported_from__id__in=list(by_id))
    )
    known = {str((origin or {}).get("id", pk)): pk for pk, origin in here.values_list("pk", "imported_from")}
    new = [conversation for conversation in by_id.values() if conversation.id not in known]
    annotators = people.ids((conversation.annotator, False) for conversation in new)
    tasks = dict(
        ConversationTask.objects.filter(
            project=project, name__in={conversation.task for conversation in new}
        ).values_list("name", "pk")
    )
    ids = {conversation.id: uuid.uuid4() for conversation in new}
    now = timezone.now()
    bulk.insert(
        Conversation,
        [
            *("id", "project_id", "annotator_id", "task_id", "system", "seed", "rating", "attack_success"),
            *("comment", "imported_from", "created_at", "ended_at"),
        ],
        (
            (
                *(
                    bulk.uuid_value(ids[conversation.id]),
                    project.pk,
                    annotators[conversation.annotator, False],
                    tasks.get(conversation.task),
                ),
                *(
                    conversation.system,
                    conversation.seed,
                    conversation.rating,
                    conversation.attack_success,
                    conversation.comment,
                ),
                bulk.json_value({"id": conversation.id, "task": conversation.task}),
                _conversation_time(conversation.created_at) or bulk.time_value(now),
                _conversation_time(conversation.ended_at),
            )
            for conversation in new
        ),
    )
    return known | ids


def _conversation_time(timestamp: str) -> Any:
    return bulk.time_value(datetime.fromisoformat(timestamp)) if timestamp else None
