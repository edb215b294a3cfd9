"""Questions of a run's guard: taken up from its folder, asked eight pairs at a time, answered to its trainer.

The worker that watches the run does all of it, with every heartbeat; each part keeps what is there, so that a
worker may be killed anywhere. Those of live learning are asked after an update, whose run is over by then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from annotation.choices import FinishReason, SourceKind
from annotation.models import Comparison, Completion, CompletionSource, Prompt
from annotation.models.jobs import Claimable
from annotation.services.bulk import CLOSED, MOST_PRIORITY
from annotation.services.jobs import still_held
from annotation.services.texts import NewCompletion, create_comparison, open_free_places, record_completions
from training.choices import QuestionOutcome
from training.contract.guard import (
    MOST_PAIRS,
    PAIRS_AT_ONCE,
    GuardedPair,
    GuardQuestion,
    GuardVerdict,
    SampledText,
    VerdictOutcome,
    read_question,
    read_questions,
    read_verdict,
    write_verdict,
)
from training.figures.guard import GuardFinding, finding
from training.models import QuestionPair, Round, RoundStep, Run, RunQuestion
from training.selectors.rounds import outcomes_of, questions_of_round, unanswered_pairs

_OUTCOMES = {GuardFinding.FINE: QuestionOutcome.FINE, GuardFinding.WORSE: QuestionOutcome.WORSE}
_TO_TRAINER: Mapping[str, VerdictOutcome] = {
    QuestionOutcome.FINE: "fine",
    QuestionOutcome.WORSE: "worse",
    QuestionOutcome.UNDECIDED: "undecided",
}
"""What the trainer is told of an outcome that people's answers give."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A run whose questions the annotators of a round answer, and the job whose claim is held."""

    job: Claimable
    run: Run
    round: Round


def watch_questions(step: RoundStep) -> None:
    """Take up what the run of a step asks, ask the next pairs, and tell its trainer what people found.

    The caller holds the claim on the step. Idempotent.
    """
    run = step.run
    if run is None or not run.spec.get("settings", {}).get("guard"):
        return
    attend_to_questions(Asker(step, run, step.round))


def attend_to_questions(asker: Asker) -> None:
    """Take up what lies in a run's folder, ask the next pairs, write down what people found. Idempotent."""
    run = asker.run
    last = run.questions.order_by("-number").values_list("number", flat=True).first()
    for asked in read_questions(run.path, after=last or 0):
        with still_held(asker.job):
            _take_up(run, asked)
    for question in run.questions.order_by("number"):
        if read_verdict(run.path, question.number) is None:
            _go_on(asker, question)


def end_questions(step: RoundStep) -> None:
    """End the questions of a run that has finished: what is open by then was not answered in time."""
    if step.run is None:
        return
    still_open = step.run.questions.filter(outcome=QuestionOutcome.OPEN)
    if still_open.exists():
        with still_held(step):
            for question in still_open:
                end_question(question, QuestionOutcome.UNANSWERED)


def withdraw_questions(round_: Round) -> None:
    """Close the open pairs of a round that is stopped; a run that goes on asks them again."""
    for question in questions_of_round(round_).filter(outcome=QuestionOutcome.OPEN):
        end_question(question, QuestionOutcome.WITHDRAWN)


def _take_up(run: Run, asked: GuardQuestion) -> None:
    RunQuestion.objects.get_or_create(
        run=run,
        number=asked.number,
        defaults={
            "step": asked.step,
            "then_step": asked.then_step,
            "signals": [
                {"name": signal.name, "value": signal.value, "bound": signal.bound}
                for signal in asked.signals
            ],
            # The trainer has ended the run: it wants to know nothing.
            "outcome": QuestionOutcome.OPEN if asked.pairs else QuestionOutcome.SPENT,
        },
    )


def _go_on(asker: Asker, question: RunQuestion) -> None:
    """Ask on, or end a question and tell its trainer."""
    if question.outcome in (QuestionOutcome.OPEN, QuestionOutcome.WITHDRAWN):
        with still_held(asker.job):
            _settle(asker, question)
    if (outcome := _TO_TRAINER.get(question.outcome)) is not None:
        verdict = GuardVerdict(outcome=outcome, asked=_asked_in(question.run))
        write_verdict(question.run.path, question.number, verdict)


def _settle(asker: Asker, question: RunQuestion) -> None:
    """Look at the answers so far: end the question, ask the next pairs, or leave it as it is."""
    if question.outcome == QuestionOutcome.WITHDRAWN:
        _ask_again(question)
    found = finding(outcomes_of(question))
    if found != GuardFinding.OPEN:
        end_question(question, _OUTCOMES[found])
    elif not unanswered_pairs(question).exists() and not _ask(asker, question):
        end_question(question, QuestionOutcome.UNDECIDED)


def _ask(asker: Asker, question: RunQuestion) -> bool:
    """Put the next pairs at the head of the labelling queue; False where there are none to ask."""
    asked = read_question(question.run.path, question.number)
    if asked is None:
        return False
    room = min(PAIRS_AT_ONCE, _most_pairs(question.run) - _asked_in(question.run))
    done = set(question.pairs.values_list("position", flat=True))
    opened = 0
    for position, pair in enumerate(asked.pairs):
        if opened == room:
            break
        if position not in done:
            # What is quarantined reaches nobody: another takes its place.
            opened += _asks_pair(asker.round, question, position, pair, asked)
    return opened > 0


def _asks_pair(
    round_: Round, question: RunQuestion, position: int, pair: GuardedPair, asked: GuardQuestion
) -> bool:
    """Ask one pair; return whether an annotator can get it."""
    prompts = Prompt.objects.select_related("project").filter(project=round_.project)
    prompt = prompts.filter(pk=int(pair.prompt)).first()
    if prompt is None:
        return False
    then, now = (
        _completion(question.run, prompt, at, text, asked)
        for at, text in ((question.then_step, pair.then), (question.step, pair.now))
    )
    comparison = create_comparison(
        prompt=prompt,
        completions=[then, now],
        round_number=round_.number,
        priority=MOST_PRIORITY,
        overlap=1,
    )
    if not comparison.open_slots:
        return False
    QuestionPair.objects.create(question=question, position=position, comparison=comparison, now=now)
    return True


def _completion(
    run: Run, prompt: Prompt, step: int, sampled: SampledText, asked: GuardQuestion
) -> Completion:
    source, _created = CompletionSource.objects.get_or_create(
        name=f"{run.name} step {step}", defaults={"kind": SourceKind.CHECKPOINT}
    )
    answer = NewCompletion(
        text=sampled.text,
        sampling=asked.sampling,
        seed=sampled.seed,
        finish_reason=FinishReason(sampled.finish_reason),
        token_count=sampled.tokens,
    )
    [completion] = record_completions(prompt=prompt, source=source, answers=[answer])
    return completion


def _asked_in(run: Run) -> int:
    return QuestionPair.objects.filter(question__run=run).count()


def _most_pairs(run: Run) -> int:
    guard = run.spec.get("settings", {}).get("guard") or {}
    return int(guard.get("most_pairs", MOST_PAIRS))


def end_question(question: RunQuestion, outcome: QuestionOutcome) -> None:
    """End a question, and close its pairs that nobody has answered."""
    with transaction.atomic():
        RunQuestion.objects.filter(pk=question.pk).update(outcome=outcome, ended_at=Now())
        _comparisons(question).filter(open_slots__gt=0).update(**CLOSED)
    question.outcome = outcome


def _ask_again(question: RunQuestion) -> None:
    """Open the pairs of a withdrawn question that nobody has answered."""
    RunQuestion.objects.filter(pk=question.pk).update(outcome=QuestionOutcome.OPEN, ended_at=None)
    question.outcome = QuestionOutcome.OPEN
    unjudged: Sequence[int] = list(
        _comparisons(question).filter(judgments__isnull=True).values_list("pk", flat=True)
    )
    open_free_places(unjudged)


def _comparisons(question: RunQuestion) -> QuerySet[Comparison]:
    return Comparison.objects.filter(question_pairs__question=question)
