"""Selection: rules put a share of stored requests before annotators, each with its reason, bounded per day.

The work of a project is a background job that ends when nothing is left and begins again when there is more.
"""

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, Literal, cast

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from annotation.choices import FinishReason, JobState, Split
from annotation.errors import Unavailable
from annotation.models import Completion, Project, Prompt
from annotation.record.judgment import RatingPart
from annotation.selectors import access
from annotation.services.job_runs import EXPECTED, call_with_heartbeat, run_job
from annotation.services.jobs import Heartbeat, sweep
from annotation.services.texts import NewCompletion, create_comparison, find_or_add_prompt, record_completions
from annotation.text.identity import in_held_out_share
from training.choices import FeedbackKind, SelectionReason, TrainingTask
from training.contract.snapshot import Message, SnapshotCompletion, SnapshotRow
from training.engine import EngineError, Engines, EngineUnavailableError
from training.models import (
    ApplicationRequest,
    Checkpoint,
    Feedback,
    FeedbackComparison,
    FeedbackRule,
    FeedbackSettings,
)
from training.recipe.recipe import FeedbackUse
from training.selectors.feedback import negative_feedback, trust_of_authors, usable_feedback
from training.selectors.projects import chat_of
from training.services.feedback.abuse import check_project
from training.services.scores import reward_models_of

# Feedback as rows of a snapshot: a source of its own, marked, weighted and filtered as a recipe says.

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


# ── Selection ──

TAG = "application"
"""Tag of the prompts that come from applications."""
LEAST_SCORED = 20
"""Without so many scored requests no share of them is known: they wait."""

_AT_ONCE = 100
_REFERENCE = 1_000
_BY_SCORES = (SelectionReason.LOW_REWARD, SelectionReason.DISAGREEMENT)


def sweep_selection() -> None:
    """Wake the selection of every project in which a rule has requests to decide on."""
    for settings in FeedbackSettings.objects.filter(state=JobState.FINISHED).select_related("project"):
        rules = _rules(settings)
        if rules and (_unexamined(settings).exists() or _disliked(settings, rules).exists()):
            FeedbackSettings.objects.filter(pk=settings.pk, state=JobState.FINISHED).update(
                state=JobState.WAITING
            )
    sweep(FeedbackSettings.objects.all(), TrainingTask.SELECT_FEEDBACK)


def select_requests(settings_id: int, *, engines: Engines | None = None) -> None:
    """Apply the rules of a project, unless another worker does. A worker that ends loses nothing."""

    def select(settings: FeedbackSettings, heartbeat: Heartbeat) -> str:
        with closing(engines or Engines()) as open_engines:
            return _Selection(settings, open_engines, heartbeat).run()

    run_job(
        FeedbackSettings.objects.select_related("project"),
        settings_id,
        select,
        expected=(*EXPECTED, EngineError),
    )


class _Selection:
    """One pass over what the rules of a project have to decide on."""

    def __init__(self, settings: FeedbackSettings, engines: Engines, heartbeat: Heartbeat) -> None:
        self._settings, self._project = settings, settings.project
        self._engines, self._heartbeat = engines, heartbeat
        self._rules = _rules(settings)
        self._made = 0

    def run(self) -> str:
        """Return what came of it, for people. Raises `Unavailable` where a model server is away."""
        try:
            for request in _disliked(self._settings, self._rules).order_by("pk")[:_AT_ONCE]:
                self._put_forward(request, SelectionReason.NEGATIVE)
            while some := list(_unexamined(self._settings).order_by("pk")[:_AT_ONCE]):
                if not self._examine(some):
                    break
        except EngineUnavailableError as error:
            raise Unavailable("storage_not_answering", str(error)) from error
        return f"{self._made} requests put before annotators"

    def _examine(self, some: Sequence[ApplicationRequest]) -> bool:
        """Apply the rules that need no feedback; False where the requests wait for more to compare with."""
        if rule := self._rules.get(SelectionReason.RANDOM):
            for request in some:
                if _draw(request) < rule.share:
                    self._put_forward(request, SelectionReason.RANDOM)
        if any(reason in self._rules for reason in _BY_SCORES):
            members = reward_models_of(self._project)
            for request in some:
                self._score(request, members)
            if members and not self._select_by_scores(some, members):
                return False
        ids = [request.pk for request in some]
        ApplicationRequest.objects.filter(pk__in=ids).update(examined_at=timezone.now())
        return True

    def _score(self, request: ApplicationRequest, members: Sequence[Checkpoint]) -> None:
        for member in members:
            if member.name in request.scores:
                continue
            score = partial(
                self._engines.of(member).score,
                model=member.name,
                messages=request.messages,
                completions=[request.choices[0]["text"]],
            )
            (value,) = call_with_heartbeat(score, self._heartbeat)
            request.scores[member.name] = value
        ApplicationRequest.objects.filter(pk=request.pk).update(scores=request.scores)

    def _select_by_scores(self, some: Sequence[ApplicationRequest], members: Sequence[Checkpoint]) -> bool:
        names = [member.name for member in members]
        reference = [scores for scores in self._reference() if all(name in scores for name in names)]
        if len(reference) < LEAST_SCORED:
            return False
        norms = {name: _norm([scores[name] for scores in reference]) for name in names}
        if rule := self._rules.get(SelectionReason.LOW_REWARD):
            bound = _quantile([_mean(scores, norms) for scores in reference], rule.share)
            for request in some:
                if (value := _mean(request.scores, norms)) <= bound:
                    self._put_forward(request, SelectionReason.LOW_REWARD, value)
        if (rule := self._rules.get(SelectionReason.DISAGREEMENT)) and len(names) > 1:
            bound = _quantile([-_spread(scores, norms) for scores in reference], rule.share)
            for request in some:
                if -(value := _spread(request.scores, norms)) <= bound:
                    self._put_forward(request, SelectionReason.DISAGREEMENT, value)
        return True

    def _reference(self) -> Iterator[Mapping[str, float]]:
        rows = ApplicationRequest.objects.filter(project=self._project).exclude(scores={})
        yield from rows.order_by("-pk").values_list("scores", flat=True)[:_REFERENCE]

    def _put_forward(
        self, request: ApplicationRequest, reason: SelectionReason, figure: float | None = None
    ) -> None:
        """Make the request a comparison, unless it is one or the day's bound is reached."""
        self._heartbeat(message=f"{self._made} requests put before annotators")
        if _left_today(self._settings, self._rules[reason]) <= 0:
            return
        if FeedbackComparison.objects.filter(request=request).exists():
            return
        source = request.checkpoint.source
        assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
        with transaction.atomic():
            known = Prompt.objects.filter(project=self._project, content_hash=request.content_hash).exists()
            prompt = find_or_add_prompt(
                project=self._project,
                messages=request.messages,
                tags=[TAG],
                split=split_of(request.content_hash),
            )
            completions = record_completions(
                prompt=prompt, source=source, answers=list(map(partial(_new, request), request.choices))
            )
        completions = list({completion.text.strip(): completion for completion in completions}.values())
        if len(completions) == 1 and self._project.ask_verdict:
            completions += self._second(request, prompt, completions[0])
        with transaction.atomic():
            comparison = create_comparison(
                prompt=prompt,
                completions=completions,
                round_number=access.current_round(self._project),
            )
            FeedbackComparison.objects.get_or_create(
                request=request,
                defaults={
                    "project": self._project,
                    "comparison": comparison,
                    "reason": reason,
                    "figure": figure,
                    "added_prompt": not known,
                },
            )
        self._made += 1

    def _second(self, request: ApplicationRequest, prompt: Prompt, first: Completion) -> list[Completion]:
        """Have the checkpoint respond once more, so that there are two to compare; none where it cannot."""
        sampling = _sampling(request)
        seed = int.from_bytes(hashlib.sha256(f"second/{request.key}".encode()).digest()[:4], "big") >> 1
        try:
            ask = partial(
                self._engines.of(request.checkpoint).complete,
                model=request.checkpoint.name,
                messages=chat_of(prompt),
                seed=seed,
                **sampling,
            )
            (answer,) = call_with_heartbeat(ask, self._heartbeat)
        except EngineUnavailableError:
            raise
        except EngineError:
            return []
        if not answer.text.strip() or answer.text.strip() == first.text.strip():
            return []
        new = NewCompletion(
            text=answer.text,
            sampling=sampling,
            seed=seed,
            finish_reason=FinishReason(answer.finish_reason),
            token_count=answer.token_count,
        )
        return record_completions(prompt=prompt, source=first.source, answers=[new])


def _rules(settings: FeedbackSettings) -> dict[SelectionReason, FeedbackRule]:
    rows = FeedbackRule.objects.filter(project=settings.project_id, is_on=True)
    return {SelectionReason(rule.reason): rule for rule in rows}


def _unexamined(settings: FeedbackSettings) -> "QuerySet[ApplicationRequest]":
    rows = ApplicationRequest.objects.filter(project=settings.project_id, examined_at__isnull=True)
    return rows.select_related("checkpoint__source")


def _disliked(
    settings: FeedbackSettings, rules: Mapping[SelectionReason, FeedbackRule]
) -> "QuerySet[ApplicationRequest]":
    """Return requests with negative feedback that no annotator has, as many as there is room for today."""
    rule = rules.get(SelectionReason.NEGATIVE)
    if rule is None or (left := _left_today(settings, rule)) <= 0:
        return ApplicationRequest.objects.none()
    disliked = negative_feedback(settings.project).filter(request=OuterRef("pk"))
    rows = ApplicationRequest.objects.filter(
        Exists(disliked), project=settings.project_id, comparison__isnull=True
    )
    drawn = [request.pk for request in rows.only("pk", "key") if _draw(request) < rule.share]
    return ApplicationRequest.objects.filter(pk__in=drawn[:left]).select_related("checkpoint__source")


def _left_today(settings: FeedbackSettings, rule: FeedbackRule) -> int:
    midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
    made = FeedbackComparison.objects.filter(
        project=settings.project_id, reason=rule.reason, created_at__gte=midnight
    )
    return rule.most_per_day - made.count()


def _draw(request: ApplicationRequest) -> float:
    """Return a number from 0 to 1 that is the same for a request however often it is drawn."""
    return int.from_bytes(hashlib.sha256(f"select/{request.key}".encode()).digest()[:8], "big") / 2**64


def _new(request: ApplicationRequest, choice: Mapping[str, Any]) -> NewCompletion:
    return NewCompletion(
        text=choice["text"],
        sampling=request.sampling,
        # A redacted text does not come again with the seed.
        seed=choice["seed"] if not request.redactions else None,
        finish_reason=choice["finish_reason"],
        token_count=choice["token_count"],
    )


def _sampling(request: ApplicationRequest) -> dict[str, Any]:
    sent = request.sampling
    return {
        "temperature": float(sent.get("temperature", 1.0)) or 0.7,
        "top_p": float(sent.get("top_p", 1.0)),
        "max_tokens": int(sent.get("max_tokens") or sent.get("max_completion_tokens") or 256),
    }


def _norm(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation: reward models differ in scale."""
    return statistics.fmean(values), statistics.pstdev(values) or 1.0


def _standard(scores: Mapping[str, float], norms: Mapping[str, tuple[float, float]]) -> list[float]:
    return [(scores[name] - mean) / spread for name, (mean, spread) in norms.items()]


def _mean(scores: Mapping[str, float], norms: Mapping[str, tuple[float, float]]) -> float:
    return statistics.fmean(_standard(scores, norms))


def _spread(scores: Mapping[str, float], norms: Mapping[str, tuple[float, float]]) -> float:
    return statistics.pstdev(_standard(scores, norms))


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the greatest of the lowest `share` of values; below all of them where that is none."""
    count = round(share * len(values))
    return sorted(values)[count - 1] if count else float("-inf")
