"""Feedback as rows of a snapshot: a source of its own, marked, weighted and filtered as a recipe says."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Literal, cast

from django.db.models import QuerySet

from annotation.choices import Split
from annotation.models import Project, Prompt
from annotation.record.judgment import RatingPart
from annotation.text.identity import in_held_out_share
from training.choices import FeedbackKind
from training.contract import Message, SnapshotCompletion, SnapshotRow
from training.models import ApplicationRequest, Feedback
from training.recipe.recipe import FeedbackUse
from training.selectors.feedback import trust_of_authors, usable_feedback
from training.services.feedback.abuse import check_project

CRITERION = "feedback"
"""The criterion of thumbs and ratings in a snapshot, for heads on ratings."""
REWRITE_SOURCE = "rewrite"
"""The source of a rewritten completion in a snapshot."""


def feedback_rows(project: Project, use: FeedbackUse, *, round_number: int) -> list[SnapshotRow]:
    """Return the rows of the feedback that a recipe lets in, in its order, after a search for abuse.

    Feedback on held-out prompts is left out: it would measure what annotators measure. The weights of one
    author add up to that of `most_per_user` pieces of feedback at most.
    """
    check_project(project)
    trust = trust_of_authors(project)
    chosen = [row for row in _filtered(project, use) if trust.get(row.author, 0.5) >= use.least_trust]
    prompts = _prompts(project, {row.request.content_hash for row in chosen})
    trained = [row for row in chosen if _split(row.request, prompts) == Split.TRAIN]
    number = Counter(row.author for row in trained)
    return [
        _row(
            row,
            prompts,
            round_number=round_number,
            weight=use.weight * min(1.0, use.most_per_user / number[row.author]),
        )
        for row in trained
    ]


def split_of(content_hash: str) -> Split:
    """Return the split of a stored request whose prompt the project does not have: by its hash alone."""
    return Split.HELD_OUT if in_held_out_share(content_hash) else Split.TRAIN


def _filtered(project: Project, use: FeedbackUse) -> "QuerySet[Feedback]":
    rows = usable_feedback(project).filter(kind__in=use.kinds)
    if use.sources:
        rows = rows.filter(source_name__in=use.sources)
    since, until = use.days
    if since:
        rows = rows.filter(created_at__date__gte=since)
    if until:
        rows = rows.filter(created_at__date__lt=until + timedelta(days=1))
    related = ("request__checkpoint", "alternative__checkpoint")
    return rows.select_related(*related).order_by("pk")


def _prompts(project: Project, hashes: set[str]) -> dict[str, Prompt]:
    """Return the prompts of the project that stored requests ask, too, by content hash."""
    names, prompts = sorted(hashes), {}
    for first in range(0, len(names), 500):
        rows = Prompt.objects.filter(project=project, content_hash__in=names[first : first + 500])
        prompts.update({prompt.content_hash: prompt for prompt in rows.only("pk", "content_hash", "split")})
    return prompts


def _split(request: ApplicationRequest, prompts: Mapping[str, Prompt]) -> str:
    prompt = prompts.get(request.content_hash)
    return prompt.split if prompt else split_of(request.content_hash)


def _row(
    feedback: Feedback, prompts: Mapping[str, Prompt], *, round_number: int, weight: float
) -> SnapshotRow:
    request = feedback.request
    prompt = prompts.get(request.content_hash)
    completions = list(_completions(feedback))
    is_preference = len(completions) > 1
    return SnapshotRow(
        judgment=f"feedback-{feedback.pk}",
        comparison=f"request-{request.pk}-{feedback.choice}",
        annotator=f"user-{feedback.author[:16]}",
        round=round_number,
        prompt=str(prompt.pk) if prompt else f"request-{request.content_hash[:16]}",
        split="train",
        messages=tuple(Message(role=turn["role"], content=turn["content"]) for turn in request.messages),
        completions=tuple(completions),
        verdict="ranked" if is_preference else "not_asked",
        # What the end user wrote or chose comes last, and is the better one.
        ranks={completions[0].id: 2, completions[1].id: 1} if is_preference else {},
        ratings=() if feedback.value is None else (_rating(feedback, completions[0].id),),
        weight=weight,
        read_for_spans=(),
        read_for_missing=(),
        feedback=cast(Literal["thumb", "rating", "rewrite", "alternative"], feedback.kind),
    )


def _completions(feedback: Feedback) -> Iterator[SnapshotCompletion]:
    """Yield the completion that the feedback is on, then what was preferred to it."""
    yield _completion(feedback.request, feedback.choice)
    if feedback.kind == FeedbackKind.REWRITE:
        yield SnapshotCompletion(id=f"feedback-{feedback.pk}", text=feedback.text, source=REWRITE_SOURCE)
    elif feedback.alternative is not None:
        yield _completion(feedback.alternative, feedback.alternative_choice)


def _completion(request: ApplicationRequest, choice: int) -> SnapshotCompletion:
    text = request.choices[choice]["text"]
    return SnapshotCompletion(id=f"request-{request.pk}-{choice}", text=text, source=request.checkpoint.name)


def _rating(feedback: Feedback, completion: str) -> RatingPart:
    return RatingPart(
        completion=completion,
        criterion=CRITERION,
        scale=feedback.scale,
        value=cast(int, feedback.value),
    )
