"""Agreement of reward models with people, round by round: missing scores are computed, then counted."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.agreement.records import outcome_between, unordered_among
from annotation.choices import Split
from annotation.errors import Refusal
from annotation.models import Completion, CompletionScore, Project, Prompt, RankedCompletion, User
from annotation.services.job_runs import run_job
from annotation.services.jobs import Heartbeat, send_after_commit, sweep
from training.choices import JobKind, TrainingTask
from training.engine import EngineError, EngineUnavailableError, engine_for
from training.models import Checkpoint, DriftFigure, DriftMeasurement
from training.selectors.drift import people_judged, reward_models_by_age, rounds_judged
from training.services.scores import ask_for_scores, record_scores

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """Of two answers to one prompt, which people preferred in one judgment."""

    prompt: int
    comparison: int
    held_out: bool
    winner: int
    loser: int


@dataclass(slots=True)
class AgreementTally:
    """Agreement of one reward model with the pairs of one round."""

    by_prompt: dict[int, list[float]]
    """[agreeing, pairs] of each prompt."""
    held_out: int = 0
    unscored: int = 0
    trained_on: int = 0

    @property
    def pairs(self) -> int:
        """Pairs that count."""
        return round(sum(pairs for _hits, pairs in self.by_prompt.values()))

    @property
    def agreeing(self) -> float:
        """Pairs that it orders as people do; equal scores count half."""
        return sum(hits for hits, _pairs in self.by_prompt.values())


def request_measurement(*, project: Project, requested_by: User) -> DriftMeasurement:
    """Have a worker measure a project's drift. Refuses a second measurement while one goes on."""
    try:
        with transaction.atomic():
            measurement = DriftMeasurement.objects.create(
                project=project, created_by=requested_by, message="waiting for a worker"
            )
            send_after_commit(TrainingTask.DO_JOB, JobKind.DRIFT, measurement.pk)
    except IntegrityError:
        raise Refusal("measurement_under_way", _("A measurement is running already. Wait for it.")) from None
    return measurement


def do_measurement(pk: int) -> None:
    """Carry out a measurement, unless another worker has it."""
    run_job(DriftMeasurement.objects.all(), pk, _measure)


def sweep_measurements() -> None:
    """Send a message for every measurement that nobody works on."""
    sweep(DriftMeasurement.objects.all(), TrainingTask.DO_JOB, JobKind.DRIFT)


def _measure(measurement: DriftMeasurement, heartbeat: Heartbeat) -> str:
    """Measure every reward model on every round and store each count at once."""
    project = measurement.project
    models, rounds = reward_models_by_age(project), rounds_judged(project)
    if not models or not rounds:
        raise Refusal(
            "nothing_to_measure",
            _("There is nothing to measure yet: no reward model, or no judgment that prefers a response."),
        )
    troubles: dict[str, str] = {}
    done, total = 0, len(models) * len(rounds)
    for number in rounds:
        pairs = list(judged_pairs(project, number))
        for model in models:
            heartbeat(current=done, total=total, message=f"{model} on round {number}")
            trouble = _score_missing(model, pairs, heartbeat)
            if trouble:
                troubles[model.name] = trouble
            _write_down(model, number, tally_of(model, pairs))
            done += 1
    heartbeat(current=total, total=total)
    listed = "; ".join(f"{name}: {trouble}" for name, trouble in troubles.items())
    return f"{total} figures" + (f"; not everything has a score ({listed})" if listed else "")


def judged_pairs(project: Project, round_number: int) -> Iterator[JudgedPair]:
    """Return the decided pairs of a round's current judgments by people, without ties."""
    judgments = people_judged(project).filter(comparison__round_number=round_number)
    places = (
        RankedCompletion.objects.filter(judgment__in=judgments)
        .order_by("judgment_id", "rank")
        .values_list(
            "judgment_id",
            "judgment__comparison_id",
            "judgment__comparison__prompt_id",
            "judgment__comparison__prompt__split",
            "judgment__assignment__display_order",
            "completion_id",
            "rank",
        )
    )
    for _place, of_judgment in groupby(places.iterator(chunk_size=5000), key=lambda place: place[0]):
        ranked = list(of_judgment)
        _judgment, comparison, prompt, split, shown, *_rest = ranked[0]
        ranks = {completion: rank for *_rest, completion, rank in ranked}
        for winner in ranks:
            for loser in [*ranks, *unordered_among(ranks, shown)]:
                if outcome_between(ranks, winner, loser) == 1:
                    yield JudgedPair(prompt, comparison, split == Split.HELD_OUT, winner, loser)


def tally_of(model: Checkpoint, pairs: Sequence[JudgedPair]) -> AgreementTally:
    """Count the pairs that a reward model did not learn from.

    It learned from comparisons of training prompts that are in its snapshot; held-out prompts only measure.
    """
    learned = set()
    if model.run:
        learned = set(model.run.snapshot.judgments.values_list("comparison_id", flat=True).distinct())
    scores = _scores_of(model, {pk for pair in pairs for pk in (pair.winner, pair.loser)})
    tally = AgreementTally(by_prompt=defaultdict(lambda: [0.0, 0.0]))
    for pair in pairs:
        if not pair.held_out and pair.comparison in learned:
            tally.trained_on += 1
            continue
        won, lost = scores.get(pair.winner), scores.get(pair.loser)
        if won is None or lost is None:
            tally.unscored += 1
            continue
        counted = tally.by_prompt[pair.prompt]
        counted[0] += 1.0 if won > lost else 0.5 if won == lost else 0.0
        counted[1] += 1.0
        tally.held_out += pair.held_out
    return tally


def agreement_interval(by_prompt: Mapping[int, Sequence[float]]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the share Σ hits / Σ pairs.

    Wilson's where every prompt has one pair that is right or wrong, and where all prompts agree, with as many
    trials as there are prompts; else percentiles of resampled prompts, whose pairs hang together.
    """
    # Imported late: the web process has no use for NumPy.
    from annotation.agreement.intervals import share_of, wilson_interval

    counted = [(hits, pairs) for hits, pairs in by_prompt.values() if pairs]
    if not counted:
        return None, None
    shares = [hits / pairs for hits, pairs in counted]
    single = all(pairs == 1 and hits in (0, 1) for hits, pairs in counted)
    if single or set(shares) in ({0.0}, {1.0}):
        return wilson_interval(round(sum(shares)), len(shares))
    share = share_of(counted)
    return share.low, share.high


def _score_missing(model: Checkpoint, pairs: Sequence[JudgedPair], heartbeat: Heartbeat) -> str:
    """Ask a reward model for the scores of judged answers that it has not given; why some lack, if any."""
    completions = {pk for pair in pairs for pk in (pair.winner, pair.loser)}
    missing = sorted(completions - _scores_of(model, completions).keys())
    if not missing:
        return ""
    if model.files_deleted_at:
        return "its files were deleted"
    trouble = ""
    try:
        with engine_for(model) as engine:
            for prompt, answers in _by_prompt(missing):
                message = f"{model} scores answers, {len(missing)} in all"
                try:
                    tell = partial(heartbeat, message=message)
                    scores = ask_for_scores(engine, model.name, prompt, answers, tell=tell)
                except EngineUnavailableError:
                    raise
                except EngineError as error:
                    trouble = str(error)
                    continue
                record_scores(model.name, answers, scores)
    except EngineError as error:
        return str(error)
    return trouble


def _by_prompt(ids: Sequence[int]) -> Iterator[tuple[Prompt, list[Completion]]]:
    rows: list[Completion] = []
    for some in _pieces(ids):
        rows += Completion.objects.filter(pk__in=some)
    rows.sort(key=lambda completion: (completion.prompt_id, completion.pk))
    for prompt_id, answers in groupby(rows, key=lambda completion: completion.prompt_id):
        yield Prompt.objects.get(pk=prompt_id), list(answers)


def _scores_of(model: Checkpoint, completions: Iterable[int]) -> dict[int, float]:
    values: dict[int, float] = {}
    for some in _pieces(sorted(completions)):
        scores = CompletionScore.objects.filter(scorer=model.name, completion_id__in=some)
        values.update(scores.values_list("completion_id", "value"))
    return values


def _pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """No database takes a list of any length in one question."""
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _write_down(model: Checkpoint, round_number: int, tally: AgreementTally) -> None:
    low, high = agreement_interval(tally.by_prompt)
    DriftFigure.objects.update_or_create(
        checkpoint=model,
        round_number=round_number,
        defaults={
            "pairs": tally.pairs,
            "held_out_pairs": tally.held_out,
            "agreeing": min(tally.agreeing, float(tally.pairs)),
            "prompts": len(tally.by_prompt),
            "unscored": tally.unscored,
            "trained_on": tally.trained_on,
            "low": low,
            "high": high,
        },
    )
