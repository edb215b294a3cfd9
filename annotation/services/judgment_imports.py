"""Judgments come in from published sets."""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.db import transaction
from django.utils import timezone

from annotation.choices import AssignmentState, SourceKind, Verdict
from annotation.errors import ImportErrors, Refusal
from annotation.formats import qa_feedback
from annotation.formats.prompts_jsonl import ParsedPrompt
from annotation.formats.qa_feedback import QaItem
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    CompletionSource,
    Judgment,
    Project,
    Prompt,
    User,
)
from annotation.services.answers import (
    CorrectionInput,
    EvidencePointer,
    JudgmentAnswer,
    MissingInfoInput,
    SpanFlagInput,
    check_answer,
)
from annotation.services.assignments import take_slot
from annotation.services.completions import NewCompletion, create_comparison, record_completions
from annotation.services.judgments import write_judgment
from annotation.services.projects import create_project
from annotation.services.prompts import find_or_add_prompt

QA_FEEDBACK_ANNOTATOR = "imported-qa-feedback"
QA_FEEDBACK_SOURCE = "qa-feedback initial policy"
_FORMAT = "qa-feedback"
_KEYS = uuid.UUID("6f1d6d3e-6f0b-5a52-9a53-3f2b1c1b7a10")
"""Namespace of the idempotency keys of imported judgments."""


@dataclass(kw_only=True, slots=True)
class JudgmentImportReport:
    """What an import did. All counts but `already_there` are of what was added."""

    judgments: int = 0
    already_there: int = 0
    spans: int = 0
    missing_info: int = 0
    evidence: int = 0
    """Sentences and titles that missing info points at."""
    corrections: int = 0
    not_weak_orders: list[str] = field(default_factory=list)
    """For each ranking in which a tie had to be broken: the item and its pairs."""


@transaction.atomic
def import_qa_feedback(*, project_slug: str, items: Sequence[QaItem], name: str) -> JudgmentImportReport:
    """Bring questions, answers, rankings, spans, missing info and corrections into a project.

    One transaction. The project is created when there is none of that slug. Judgments
    belong to an annotator of their own who cannot sign in. An item that was imported before
    adds nothing. Refuses (`ImportErrors`) a question on whose same four answers this import
    has spoken differently before.
    """
    project = _project(project_slug)
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    categories = _categories(project)
    annotator = _annotator()
    source, _ = CompletionSource.objects.get_or_create(
        name=QA_FEEDBACK_SOURCE, defaults={"kind": SourceKind.IMPORT}
    )
    keys = {item.number: _key(project, item) for item in items}
    known = set(
        Judgment.objects.filter(annotator=annotator, comparison__project=project).values_list(
            "idempotency_key", flat=True
        )
    )
    report = JudgmentImportReport()
    errors: list[str] = []
    for item in items:
        key = keys[item.number]
        if key in known:
            report.already_there += 1
            continue
        try:
            _import_item(project, item, annotator, source, categories, key)
        except Refusal as refusal:
            errors.append(f"item {item.number}, field {refusal.field or 'question'}: {refusal.message}")
            continue
        known.add(key)
        _count(report, item)
    if errors:
        listed = errors[: qa_feedback.LISTED_ERRORS]
        raise ImportErrors(name, listed, more=len(listed) < len(errors))
    return report


def _import_item(
    project: Project,
    item: QaItem,
    annotator: User,
    source: CompletionSource,
    categories: Mapping[str, Category],
    key: uuid.UUID,
) -> None:
    prompt = find_or_add_prompt(
        project=project,
        parsed=ParsedPrompt(
            messages=[{"role": "user", "content": item.question}],
            context=[{"title": title, "sentences": list(texts)} for title, texts in item.passages],
            references=[item.gold] if item.gold else [],
            tags=[_FORMAT],
        ),
    )
    completions = _completions(prompt, source, item)
    comparison = create_comparison(prompt=prompt, completions=completions, round_number=1, withhold=False)
    assignment = _submitted_assignment(comparison, annotator, completions)
    write_judgment(
        assignment=assignment,
        answer=check_answer(
            comparison=comparison, answer=_answer(item, completions, categories), imported=True
        ),
        idempotency_key=key,
        guideline=None,
        imported_from={
            "format": _FORMAT,
            "item": item.number,
            "preference": list(item.preference),
            "broken_ties": [list(pair) for pair in item.broken_ties],
        },
    )


def _answer(
    item: QaItem, completions: Sequence[Completion], categories: Mapping[str, Category]
) -> JudgmentAnswer:
    first = completions[0]
    return JudgmentAnswer(
        verdict=Verdict.EQUAL if set(item.ranks) == {1} else Verdict.RANKED,
        ranks={completion.pk: rank for completion, rank in zip(completions, item.ranks, strict=True)},
        span_flags=tuple(
            SpanFlagInput(
                completion_id=first.pk,
                category_id=categories[span.category].pk,
                start=span.start,
                end=span.end,
                quote=span.quote,
                text_hash=first.text_hash,
                note=span.explanation,
            )
            for span in item.spans
        ),
        missing_info=tuple(
            MissingInfoInput(
                completion_id=first.pk,
                category_id=categories[missing.category].pk,
                passage=missing.passage,
                sentence=missing.sentences[0],
                further_evidence=tuple(
                    EvidencePointer(passage=missing.passage, sentence=sentence)
                    for sentence in missing.sentences[1:]
                ),
            )
            for missing in item.missing
        ),
        corrections=(CorrectionInput(completion_id=first.pk, text=item.correction),),
    )


def _completions(prompt: Prompt, source: CompletionSource, item: QaItem) -> list[Completion]:
    """The four answers in the file's order; those of an earlier import are used again."""
    wanted = list(zip(qa_feedback.PREDICTIONS, item.predictions, strict=True))
    stored = {
        (completion.sampling.get("prediction"), completion.text): completion
        for completion in Completion.objects.filter(prompt=prompt, source=source)
    }
    fresh = [place for place in wanted if place not in stored]
    added = record_completions(
        prompt=prompt,
        source=source,
        answers=[NewCompletion(text=text, sampling={"prediction": number}) for number, text in fresh],
    )
    stored.update(zip(fresh, added, strict=True))
    return [stored[place] for place in wanted]


def _submitted_assignment(
    comparison: Comparison, annotator: User, completions: Sequence[Completion]
) -> Assignment:
    if Assignment.objects.filter(comparison=comparison, annotator=annotator).exists():
        raise Refusal(
            "this question and its four answers were imported before, with other feedback; "
            "judgments are never overwritten, so import it into another project",
            field="feedback",
        )
    slot = take_slot(comparison)
    if slot is None:
        raise Refusal("all places of this comparison are taken by annotators of this project")
    now = timezone.now()
    return Assignment.objects.create(
        comparison=comparison,
        annotator=annotator,
        slot=slot,
        state=AssignmentState.SUBMITTED,
        display_order=[completion.pk for completion in completions],
        leased_at=now,
        lease_expires_at=now,
        closed_at=now,
    )


def _project(slug: str) -> Project:
    existing = Project.objects.filter(slug=slug).first()
    if existing is not None:
        return existing
    return create_project(
        name="QA-Feedback" if slug == _FORMAT else slug,
        slug=slug,
        description="Long-form question answering with fine-grained feedback (Wu et al. 2023).",
        categories=(),
    )


def _categories(project: Project) -> dict[str, Category]:
    found = {}
    for position, fields in enumerate(qa_feedback.categories(), start=1):
        category, _ = Category.objects.get_or_create(
            project=project, key=fields["key"], defaults={**fields, "position": position}
        )
        if category.scope != fields["scope"]:
            raise Refusal(
                f"The category {category.key!r} of {project} is for {category.get_scope_display()}, "
                f"and {_FORMAT} needs it for something else. Import into another project.",
                field="project",
            )
        found[category.key] = category
    return found


def _annotator() -> User:
    user, created = User.objects.get_or_create(
        username=QA_FEEDBACK_ANNOTATOR,
        defaults={"is_active": False, "first_name": "Imported", "last_name": "qa-feedback"},
    )
    if created:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    return user


def _key(project: Project, item: QaItem) -> uuid.UUID:
    """The same content in the same project has the same key, wherever in a file it stands."""
    content = [
        item.question,
        item.passages,
        item.gold,
        item.predictions,
        item.preference,
        [(s.category, s.start, s.end, s.explanation) for s in item.spans],
        [(m.category, m.passage, m.sentences) for m in item.missing],
        item.correction,
    ]
    digest = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()
    return uuid.uuid5(_KEYS, f"{_FORMAT}:{project.pk}:{digest}")


def _count(report: JudgmentImportReport, item: QaItem) -> None:
    report.judgments += 1
    report.spans += len(item.spans)
    report.missing_info += len(item.missing)
    report.evidence += sum(len(missing.sentences) for missing in item.missing)
    report.corrections += 1
    if item.broken_ties:
        pairs = ", ".join(f"{left}v{right}" for left, right in item.broken_ties)
        report.not_weak_orders.append(f"item {item.number}: tie {pairs}")
