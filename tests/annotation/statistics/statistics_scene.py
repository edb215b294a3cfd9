"""A project that several people have worked in: pairs, a ranking, marks, gold, and what came back.

Rows are written in bulk, past the services: hundreds of judgments in a moment.
"""

import random
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from annotation.choices import AssignmentState, Purpose, Verdict
from annotation.models import (
    Assignment,
    Candidate,
    Comparison,
    Completion,
    GoldAnswer,
    Judgment,
    Project,
    Prompt,
    RankedCompletion,
    SpanFlag,
    User,
)
from annotation.services.judgments.checks import dense_ranks
from annotation.services.quality import record_agreement
from tests import factories

SLOTS = 9


def item(
    project: Project,
    texts: Sequence[str] = ("One.", "Two."),
    *,
    prompt: Prompt | None = None,
    completions: Sequence[Completion] | None = None,
    purpose: Purpose = Purpose.WORK,
    round_number: int = 1,
    known: Sequence[int] | None = None,
) -> Comparison:
    """A comparison that nobody has judged; `known` are the ranks of a gold answer."""
    item_prompt = prompt or factories.make_prompt(project, f"Question {uuid.uuid4()}")
    answers = list(completions or factories.make_completions(item_prompt, texts))
    comparison = Comparison.objects.create(
        project=project,
        prompt=item_prompt,
        size=len(answers),
        overlap=SLOTS,
        open_slots=SLOTS if purpose == Purpose.WORK else 0,
        purpose=purpose,
        round_number=round_number,
        completion_set=uuid.uuid4().hex,
    )
    Candidate.objects.bulk_create(
        Candidate(comparison=comparison, completion=answer, index=index)
        for index, answer in enumerate(answers)
    )
    if known is not None:
        GoldAnswer.objects.create(
            comparison=comparison,
            verdict=Verdict.RANKED if len(set(known)) > 1 else Verdict.BOTH_GOOD,
            ranks={str(answer.pk): rank for answer, rank in zip(answers, known, strict=True)},
        )
    return comparison


def ids_of(comparison: Comparison) -> list[int]:
    """Its completions in the order in which the tests write ranks."""
    return list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))


def say(
    comparison: Comparison,
    annotator: User,
    ranks: Sequence[int],
    *,
    order: Sequence[int] | None = None,
    again: Judgment | None = None,
    verdict: str = "",
    marks: Sequence[tuple[int, int, int, str]] = (),
    days_ago: float = 0,
    **fields: Any,
) -> Judgment:
    """`annotator` gave `ranks` (in the order of the candidates; none for "cannot judge").

    `order` tells how the candidates were shown, by index; `again` is their first judgment of it; a mark is
    (index of the candidate, start, end, key of the category).
    """
    completions = ids_of(comparison)
    now = timezone.now()
    occupied_slots = comparison.assignments.filter(slot__isnull=False).count()
    assignment = Assignment.objects.create(
        comparison=comparison,
        annotator=annotator,
        slot=None if again or comparison.purpose != Purpose.WORK else occupied_slots,
        retest_of=again.assignment if again else None,
        state=AssignmentState.SUBMITTED,
        display_order=[completions[place] for place in order or range(len(completions))],
        leased_at=now,
        lease_expires_at=now,
        closed_at=now,
    )
    dense = dense_ranks(dict(zip(completions, ranks, strict=bool(ranks))))
    if not verdict:
        verdict = Verdict.CANNOT_JUDGE if not ranks else Verdict.RANKED
        if len(ranks) > 1 and len(set(ranks)) == 1:
            verdict = Verdict.EQUAL
    judgment: Judgment = Judgment.objects.create(
        assignment=assignment,
        comparison=comparison,
        annotator=annotator,
        verdict=verdict,
        idempotency_key=uuid.uuid4(),
        **fields,
    )
    if days_ago:
        _backdate(judgment, days_ago)
    RankedCompletion.objects.bulk_create(
        RankedCompletion(judgment=judgment, completion_id=pk, rank=rank) for pk, rank in dense.items()
    )
    categories: Mapping[str, Any] = {c.key: c for c in comparison.project.categories.all()} if marks else {}
    SpanFlag.objects.bulk_create(
        SpanFlag(
            judgment=judgment,
            completion_id=completions[index],
            category=categories[key],
            start=start,
            end=end,
            quote=Completion.objects.get(pk=completions[index]).text[start:end],
        )
        for index, start, end, key in marks
    )
    return judgment


def _backdate(judgment: Judgment, days: float) -> None:
    """Set a judgment's time in its table: judgments are never changed, not even by tests."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE annotation_judgment SET created_at = %s WHERE id = %s",
            [timezone.now() - timedelta(days=days), judgment.pk],
        )


def busy_project(project: Project, people: Sequence[User], *, items: int = 40, seed: int = 4) -> None:
    """Pairs and rankings of two rounds that `people` judged, each a little less careful than the one before.

    With marks, gold items, what was asked again, and a comparison that nobody has judged.
    """
    generator = random.Random(seed)
    prompts = [
        factories.make_prompt(project, f"How long should tea number {number} steep?")
        for number in range(items)
    ]
    for number, prompt in enumerate(prompts):
        size = 4 if number % 4 == 0 else 2
        texts = [
            f"Answer {letter}: about {1 + place} minutes, in hot water."
            for place, letter in enumerate("ABCD"[:size])
        ]
        comparison = item(project, texts, prompt=prompt, round_number=1 + number % 2)
        _judge(comparison, generator.sample(list(people), min(3, len(people))), people, generator, number)
    for number in range(6):
        gold = item(project, purpose=Purpose.GOLD, known=[1, 2])
        for place, annotator in enumerate(people):
            right = generator.random() < 0.95 - 0.15 * place
            say(gold, annotator, [1, 2] if right else [2, 1], active_seconds=20, days_ago=number)
    item(project)
    record_agreement(comparisons=project.comparisons.values_list("pk", flat=True))


def _judge(
    comparison: Comparison,
    annotators: Sequence[User],
    people: Sequence[User],
    generator: random.Random,
    number: int,
) -> None:
    size = comparison.size
    quality = generator.sample(range(size), size)
    for annotator in annotators:
        noise = 0.2 + 0.5 * list(people).index(annotator)
        felt = [value + generator.gauss(0, noise) for value in quality]
        ranks = [1 + sorted(felt).index(value) for value in felt]
        if generator.random() < 0.1:
            ranks = [1] * size
        decided = size == 2 and len(set(ranks)) > 1
        judgment = say(
            comparison,
            annotator,
            ranks,
            order=generator.sample(range(size), size),
            marks=[(0, 0, 8, "untruthful")] if generator.random() < 0.4 else [],
            strength=generator.randint(1, 4) if decided else None,
            active_seconds=generator.randint(15, 120),
            days_ago=generator.choice([0, 1, 1, 2, 2, 2, 4, 5]) + generator.random(),
        )
        if number % 7 == 0:
            say(comparison, annotator, ranks if generator.random() < 0.8 else ranks[::-1], again=judgment)
