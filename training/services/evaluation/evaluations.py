"""The new policy of a round is held against its parent on held-out prompts.

Both answer with the same seeds; the round's reward model and the recipe's rules score both texts, the
model server tells how far the new policy is from its base, and people are asked where the recipe says
so. Every step keeps what is there: an evaluation that was cut short goes on where it was.
"""

import hashlib
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.choices import Purpose, Split
from annotation.errors import Refusal
from annotation.models import Comparison, Completion, Prompt
from annotation.record.base import decode
from annotation.services.jobs.claims import still_held
from annotation.services.texts.comparisons import completion_set
from annotation.services.texts.completions import create_comparison
from training.choices import CheckpointKind, StepKind
from training.contract import RewardPart, canonical_json
from training.engine import Engine, EngineError, EngineUnknownModelError, Scores
from training.figures.evaluation_statistics import figures_of
from training.models import FIGURES_FORMAT, Checkpoint, EvaluatedPrompt, Evaluation, Round
from training.recipe import SamplingSettings
from training.selectors.chats import chat_of
from training.selectors.evaluations import (
    digest_of,
    evaluation_of,
    evaluation_settings,
    evaluator_of,
    in_words,
    measurements_of,
    trained_by,
)
from training.services.evaluation.rules import RuledText, score_by_rules
from training.services.jobs.step_heartbeat import StepHeartbeat
from training.services.sampling.asking import Asking, Draw, Question
from training.services.sampling.patience import retry_until_available

PRIORITY = 100
"""Comparisons that a decision waits for come before the round's others."""

_SCORED_AGAIN = 4
"""Pairs that are scored a second time, in other batches, to measure the noise of the scores."""


def evaluate_round(*, round_: Round, heartbeat: StepHeartbeat, engine: Engine) -> str:
    """Evaluate a round's new policy against the one that it had; return what came of it, for people.

    Idempotent and resumable. Held-out judgments never train. Refuses a round without a new policy, and
    a model server that refuses for good.
    """
    evaluation = evaluation_of(round_) or _opened(round_)
    if evaluation.finished_at is None:
        _answer(evaluation, heartbeat, engine)
        rows = list(evaluation.rows.select_related("prompt", "old", "new"))
        work = _Work(rows, heartbeat)
        notes = {"reward": _score(evaluation, work, engine), "kl": _measure_kl(evaluation, work, engine)}
        _apply_rules(evaluation, work)
        _finish(evaluation, rows, notes)
    if round_.parsed_recipe.evaluation.people:
        ask_people(evaluation, round_number=round_.number)
    return in_words(evaluation)


def _opened(round_: Round) -> Evaluation:
    """Create the evaluation that the round's recipe asks for, with its prompts chosen."""
    checkpoint = trained_by(round_, CheckpointKind.POLICY, StepKind.TRAIN_POLICY)
    if checkpoint is None:
        raise Refusal(
            "no_policy_to_evaluate",
            _("%(round)s has no new policy to evaluate: it is not registered yet. Start it again."),
            round=round_,
        )
    reward_model = evaluator_of(round_)
    settings = evaluation_settings(round_, reward_model)
    held_out_prompts = Prompt.objects.filter(project=round_.project_id, split=Split.HELD_OUT)
    # By hash: a choice as good as by chance, and the same in every round.
    prompts = held_out_prompts.order_by("content_hash").values_list("pk", flat=True)
    evaluation, _created = Evaluation.objects.get_or_create(
        checkpoint=checkpoint,
        parent=round_.policy,
        digest=digest_of(settings),
        defaults={
            "round": round_,
            "reward_model": reward_model,
            "settings": settings,
            "prompts": list(prompts[: settings["prompts"]]),
        },
    )
    return evaluation


class _Work:
    """The rows of an evaluation that a step goes through, with its progress."""

    def __init__(self, rows: Sequence[EvaluatedPrompt], heartbeat: StepHeartbeat) -> None:
        self.rows = rows
        self._heartbeat = heartbeat

    def lacking(self, key: str) -> list[EvaluatedPrompt]:
        """Return the rows without the figure `key`."""
        return [row for row in self.rows if key not in row.figures]

    def tell(self, message: str) -> None:
        """Send a heartbeat with a message; raises to stop."""
        self._heartbeat(message=message)

    def note(self, row: EvaluatedPrompt, **figures: Any) -> None:
        """Save figures of one row: they are not asked for again."""
        with still_held(self._heartbeat.job):
            row.figures = {**row.figures, **figures}
            row.save(update_fields=["figures"])


def _answer(evaluation: Evaluation, heartbeat: StepHeartbeat, engine: Engine) -> None:
    """Have both answer every chosen prompt, with the same seed; a row for each prompt."""
    known = set(evaluation.rows.values_list("prompt_id", flat=True))
    prompts = Prompt.objects.filter(pk__in=set(evaluation.prompts) - known).order_by("content_hash")
    sampling = SamplingSettings(**evaluation.settings["sampling"])

    def keep(question: Question) -> None:
        old, new = (question.completions[draw.key] for draw in question.draws)
        EvaluatedPrompt.objects.get_or_create(
            evaluation=evaluation, prompt=question.prompt, defaults={"old": old, "new": new}
        )

    questions = []
    for prompt in prompts:
        seed = _seed_of(evaluation, prompt)
        draws = [
            Draw(checkpoint, seed, sampling) for checkpoint in (evaluation.parent, evaluation.checkpoint)
        ]
        questions.append(Question(prompt, draws, spares=[]))
    asking = Asking(
        engine, heartbeat, total=len(questions), on_answered=keep, message="answering the held-out prompts"
    )
    asking.ask_all(questions)


def _seed_of(evaluation: Evaluation, prompt: Prompt) -> int:
    """Return the seed with which both answer a prompt, below 2³¹; another for another sampling."""
    sampled = canonical_json(evaluation.settings["sampling"])
    named = f"evaluation/{evaluation.settings['seed']}/{prompt.content_hash}/{sampled}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:4], "big") >> 2


def _score(evaluation: Evaluation, work: _Work, engine: Engine) -> str:
    """Let the round's reward model score both texts of each row; why it could not, where it could not.

    Identical responses are scored once: they tie before any score is known.
    """
    model = evaluation.reward_model
    if model is None:
        return "the round trained no reward model"
    for row in work.lacking("reward"):
        texts = [row.old.text] if measurements_of(row).same else [row.old.text, row.new.text]
        try:
            scores = _scores_of(model, row, texts, work, engine)
        except EngineError as error:
            work.note(row, reward=None, heads={}, trouble=str(error))
            continue
        rewards, heads = list(scores.scores), _of_heads(scores)
        if len(texts) == 1:
            rewards, heads = rewards * 2, {head: both * 2 for head, both in heads.items()}
        work.note(row, reward=rewards or None, heads=heads)
    _measure_noise(model, work, engine)
    troubles = [row.figures["trouble"] for row in work.rows if "trouble" in row.figures]
    if troubles:
        return f"{model} could not score {len(troubles)} of {len(work.rows)} prompts: {troubles[0]}"
    return ""


def _scores_of(
    model: Checkpoint, row: EvaluatedPrompt, texts: Sequence[str], work: _Work, engine: Engine
) -> Scores:
    return retry_until_available(
        partial(
            engine.scores_of_heads, model=model.name, messages=chat_of(row.prompt), completions=list(texts)
        ),
        message=f"{model} scores the answers",
        tell=work.tell,
    )


def _measure_noise(model: Checkpoint, work: _Work, engine: Engine) -> None:
    """Score a few pairs again in other batches and keep by how much their scores moved.

    Each response is scored alone, and then both in the other order with one of them twice.
    """
    scored = [row for row in work.rows if row.figures.get("reward") and not measurements_of(row).same]
    for row in scored[:_SCORED_AGAIN]:
        if "noise" in row.figures:
            continue
        old, new = row.old.text, row.new.text
        first = row.figures["reward"]
        try:
            again = [
                *_scores_of(model, row, [old], work, engine).scores,
                *_scores_of(model, row, [new], work, engine).scores,
                *_scores_of(model, row, [new, old, new], work, engine).scores,
            ]
        except EngineError:
            # The first scores stand; the tolerance then rests on the other pairs and the floor.
            continue
        before = [first[0], first[1], first[1], first[0], first[1]]
        work.note(row, noise=max(abs(score - other) for score, other in zip(before, again, strict=True)))


def _of_heads(scores: Scores) -> dict[str, list[float]]:
    """Return each head's score of both texts: the mean of its outputs, or of its segments' rewards."""
    means = {head: [statistics.fmean(outputs) for outputs in both] for head, both in scores.heads.items()}
    for head, of_segments in scores.segments.items():
        if all(of_segments):
            means[head] = [
                statistics.fmean(segment.reward for segment in segments) for segments in of_segments
            ]
    return means


def _measure_kl(evaluation: Evaluation, work: _Work, engine: Engine) -> str:
    """Measure the new policy's divergence from its base; return why it is unknown, else ""."""
    if evaluation.checkpoint.server_url:
        return "the divergence is only told by the own model server"
    for row in work.lacking("kl"):
        if not row.new.text:
            work.note(row, kl=0.0)
            continue
        ask = partial(
            engine.token_kl,
            model=evaluation.checkpoint.name,
            messages=chat_of(row.prompt),
            completion=row.new.text,
        )
        try:
            divergence = retry_until_available(
                ask,
                message="measuring the divergence from the base",
                tell=work.tell,
                unknown_may_pass=False,
            )
        except EngineUnknownModelError:
            # It has answered with this model a moment ago: what it does not know is the question.
            return "the model server does not tell the divergence"
        except EngineError as error:
            return f"the model server could not tell the divergence: {error}"
        work.note(row, kl=sum(divergence.kl))
    return ""


def _apply_rules(evaluation: Evaluation, work: _Work) -> None:
    """Score both texts of each row by the recipe's rules."""
    rules = [decode(RewardPart, part) for part in evaluation.settings["rules"]]
    rows = work.lacking("rules")
    if not rules or not rows:
        return
    texts = [_ruled(row.prompt, answer) for row in rows for answer in (row.old, row.new)]
    scores = score_by_rules(rules=rules, texts=texts, tell=lambda: work.tell("scoring by rules"))
    for place, row in enumerate(rows):
        pairs = {name: values[2 * place : 2 * place + 2] for name, values in scores.items()}
        work.note(row, rules=pairs)


def _ruled(prompt: Prompt, answer: Completion) -> RuledText:
    references = list(prompt.references)
    return RuledText(
        messages=chat_of(prompt),
        completion=answer.text,
        reference=references if len(references) > 1 else next(iter(references), None),
    )


def _finish(evaluation: Evaluation, rows: Sequence[EvaluatedPrompt], notes: dict[str, str]) -> None:
    noise = [row.figures["noise"] for row in rows if "noise" in row.figures]
    figures = figures_of([measurements_of(row) for row in rows], noise=noise)
    evaluation.figures = {"format": FIGURES_FORMAT, **figures, "notes": notes}
    Evaluation.objects.filter(pk=evaluation.pk, finished_at__isnull=True).update(
        figures=evaluation.figures, finished_at=Now()
    )
    evaluation.refresh_from_db()


def ask_people(evaluation: Evaluation, *, round_number: int, most: int | None = None) -> int:
    """Put both answers before annotators, blind, where they differ; return how many comparisons there are.

    Their judgments measure and never train. What was asked already, in whichever round, is not asked again.
    """
    rows = evaluation.rows.select_related("prompt__project", "old", "new")
    differing = [row for row in rows if not measurements_of(row).same][:most]
    for row in differing:
        completions = [row.old, row.new]
        if not _asked_already(completions):
            create_comparison(
                prompt=row.prompt, completions=completions, round_number=round_number, priority=PRIORITY
            )
    return len(differing)


def _asked_already(completions: Sequence[Completion]) -> bool:
    """Return whether a comparison of exactly these completions exists, in any round."""
    key = completion_set([completion.pk for completion in completions])
    return Comparison.objects.filter(
        project=completions[0].prompt.project_id, completion_set=key, purpose=Purpose.WORK
    ).exists()
