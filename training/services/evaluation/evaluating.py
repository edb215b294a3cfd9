"""Evaluations: a round's new policy against its parent on held-out prompts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.choices import Purpose, Split
from annotation.errors import Refusal
from annotation.models import Comparison, Completion, Prompt
from annotation.record.base import decode
from annotation.services.bulk import CLOSED, MOST_PRIORITY
from annotation.services.jobs import still_held
from annotation.services.texts import completion_set, create_comparison
from training.choices import CheckpointKind, StepKind
from training.contract.files import canonical_json
from training.contract.methods.policy import RewardPart
from training.contract.snapshot import part_of_prompt
from training.engine import Engine, EngineError, EngineUnknownModelError, Scores
from training.figures.evaluation_statistics import figures_of
from training.files.shared import both_have, fetched
from training.models import FIGURES_FORMAT, Checkpoint, EvaluatedPrompt, Evaluation, Round, YardstickResult
from training.recipe.recipe import SamplingSettings
from training.selectors.evaluations import (
    digest_of,
    evaluation_of,
    evaluation_settings,
    evaluator_of,
    in_words,
    measurements_of,
    trained_by,
)
from training.selectors.projects import chat_of
from training.selectors.rounds import decided_judgments
from training.services.jobs import StepHeartbeat
from training.services.runs.launcher import refuse_failed, run_process, trainer_environment
from training.services.sampling import Asking, Draw, PromptToAnswer, retry_until_available

# ── Second reward models that evaluate alone ──


ENOUGH_JUDGMENTS = 200
"""Decided training judgments from which on `auto` trains an evaluator: a hundred for each of both."""


def trains_evaluator(round_: Round) -> bool:
    """Return whether a round that starts now trains an evaluator, by its recipe and its judgments.

    Never where one part of the prompts has no decided judgment: its model could learn nothing.
    """
    setting = round_.parsed_recipe.evaluation.evaluator
    if setting == "same":
        return False
    recipe = round_.parsed_recipe
    judgments = decided_judgments(
        round_.project,
        range(1, round_.number + 1),
        ai_feedback=recipe.ai_feedback,
        first_passes=recipe.first_passes,
    )
    prompts = judgments.prefetch_related(None).values_list("comparison__prompt_id", flat=True)
    parts = Counter(part_of_prompt(str(prompt)) for prompt in prompts)
    return len(parts) == 2 and (setting == "second" or parts.total() >= ENOUGH_JUDGMENTS)


# ── Scores by rules, in a process of its own ──


RULES_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.rlhf.rewards")
START_SECONDS = 120.0
SECONDS_PER_TEXT = 30.0
"""For one text and one rule; every rule bounds itself well below that."""
_TELL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class RuledText:
    """One answer that is to be scored."""

    messages: list[dict[str, str]]
    completion: str
    reference: Any
    """A text, a list of several that are all right, or None."""


def score_by_rules(
    *, rules: Sequence[RewardPart], texts: Sequence[RuledText], tell: Callable[[], object]
) -> dict[str, list[float | None]]:
    """Return the score of each text by name of the rule; None where a rule has no verdict.

    `tell` is called while the process works, and may raise to stop it. Refuses rules that cannot be built
    and a process that fails or overruns.
    """
    if not rules or not texts:
        return {rule.name: [] for rule in rules}
    request = json.dumps(
        {"rules": [asdict(rule) for rule in rules], "rows": [asdict(text) for text in texts]}
    )
    answer = _ask(request, START_SECONDS + SECONDS_PER_TEXT * len(rules) * len(texts), tell)
    if "error" in answer:
        raise Refusal(
            "rule_not_usable",
            _(
                "A rule of the evaluation cannot be used: %(error)s. Correct it in the recipe, "
                "then start again."
            ),
            field="evaluation",
            error=answer["error"],
        )
    return {name: [score["value"] for score in scores] for name, scores in answer["scores"].items()}


def _ask(request: str, seconds: float, tell: Callable[[], object]) -> dict[str, Any]:
    until = time.monotonic() + seconds
    process = subprocess.Popen(
        RULES_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=settings.BASE_DIR,
        # Rules run what a model wrote: no secret of this process goes there.
        env={name: value for name, value in _environment().items() if not name.startswith("RONDO_")},
    )
    try:
        payload: bytes | None = request.encode()
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(payload, timeout=_TELL_SECONDS)
                break
            # What was given stays given: a second call goes on with the first one's input.
            payload = None
            tell()
        else:
            raise Refusal(
                "rules_too_slow",
                _(
                    "The rules of the evaluation took more than %(seconds).0f seconds. Take out "
                    "the slow one, then start again."
                ),
                seconds=seconds,
            )
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise Refusal(
            "rules_failed",
            _("The rules of the evaluation failed with status %(status)s; they said last: %(line)s"),
            status=process.returncode,
            line=last[0],
        )
    result: dict[str, Any] = json.loads(output)
    return result


def _environment() -> dict[str, str]:
    return trainer_environment(os.environ)


# ── Reward models on public test sets ──


def measure_yardstick(
    *, checkpoint: Checkpoint, name: str, path: Path, most: int | None = None
) -> YardstickResult:
    """Measure a reward model on a file of a test set and keep the figures.

    name: of the test set, as `python -m training.rlhf.yardsticks --set` takes it. Raises `Refusal` for a
    checkpoint that is no reward model or has no files, and with the command's words for a file it refuses.
    """
    if checkpoint.kind != CheckpointKind.REWARD:
        raise Refusal("not_a_reward_model", _("%(name)s is no reward model."), name=checkpoint)
    if checkpoint.files_deleted_at is not None:
        raise Refusal("files_deleted", _("The files of %(name)s were deleted."), name=checkpoint)
    base = both_have(Path(settings.RONDO_MODELS) / checkpoint.base_model)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [
            *(sys.executable, "-m", "training.rlhf.yardsticks"),
            *(str(fetched(checkpoint.path)), str(path.resolve())),
            *("--base", str(base), "--set", name, "--out", str(out)),
            *(() if most is None else ("--most", str(most))),
        ]
        ended = run_process(command, environment=trainer_environment(os.environ), beat=lambda: None)
        refuse_failed(ended.code, ended.last_line)
        result = json.loads(out.read_text(encoding="utf-8"))
    yardstick_result, _created = YardstickResult.objects.update_or_create(
        checkpoint=checkpoint,
        name=name,
        file_sha256=result["file_sha256"],
        items=result["items"],
        defaults={"result": result},
    )
    return yardstick_result


# ── The new policy against its parent ──
#
# Both answer with the same seeds; the round's reward model and the recipe's rules score both texts, the
# model server tells how far the new policy is from its base, and people are asked where the recipe says
# so. Every step keeps what is there: an evaluation that was cut short goes on where it was.


SEEDS_TRIED = 4
"""Seeds with which both answer a held-out prompt at most, until their responses differ."""

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
    """Have both answer every chosen prompt, with the same seed; a row for each prompt.

    Where their responses are the same, both are asked again with the next seed, a few times: two policies
    that differ little then show where they differ. The last pair stands, whatever it is. Which of the two is
    better has no part in that, so that equal policies still win half of the prompts.
    """
    known = set(evaluation.rows.values_list("prompt_id", flat=True))
    prompts = Prompt.objects.filter(pk__in=set(evaluation.prompts) - known).order_by("content_hash")
    sampling = SamplingSettings(**evaluation.settings["sampling"])
    # Without randomness every seed gives the same.
    tries = SEEDS_TRIED if sampling.temperature and sampling.top_k != 1 else 1
    left = list(prompts)
    for offset in range(tries):
        again: list[Prompt] = []
        keep = partial(_keep, evaluation, again=None if offset == tries - 1 else again)
        questions = [
            PromptToAnswer(
                prompt,
                [
                    Draw(checkpoint, _seed_of(evaluation, prompt) + offset, sampling)
                    for checkpoint in (evaluation.parent, evaluation.checkpoint)
                ],
                spares=[],
            )
            for prompt in left
        ]
        message = "answering the held-out prompts" if not offset else "looking for responses that differ"
        Asking(engine, heartbeat, total=len(questions), on_answered=keep, message=message).ask_all(questions)
        left = again
        if not left:
            break


def _keep(evaluation: Evaluation, question: PromptToAnswer, *, again: list[Prompt] | None) -> None:
    """Write the row of an answered prompt; one whose responses are the same is put into `again`, if given."""
    old, new = (question.completions[draw.key] for draw in question.draws)
    if again is not None and old.text.strip() == new.text.strip():
        again.append(question.prompt)
        return
    EvaluatedPrompt.objects.get_or_create(
        evaluation=evaluation, prompt=question.prompt, defaults={"old": old, "new": new}
    )


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
    The order is random and fixed: a decision may stop at any answer because the next prompt is any of those
    that are left.
    """
    rows = evaluation.rows.select_related("prompt__project", "old", "new")
    differing = sorted((row for row in rows if not measurements_of(row).same), key=_drawn_by)
    asked = set(asked_of(evaluation).values_list("completion_set", flat=True))
    for place, row in enumerate(differing[:most]):
        completions = [row.old, row.new]
        if completion_set([row.old_id, row.new_id]) not in asked:
            # Each before the next, whatever the project's strategy prefers.
            priority = min(PRIORITY + len(differing) - place, MOST_PRIORITY)
            create_comparison(
                prompt=row.prompt, completions=completions, round_number=round_number, priority=priority
            )
    return len(differing[:most])


def asked_of(evaluation: Evaluation) -> QuerySet[Comparison]:
    """Return the comparisons for work of an evaluation's pairs, in whichever round."""
    pairs = evaluation.rows.values_list("old_id", "new_id")
    return Comparison.objects.filter(
        project=evaluation.round.project_id,
        completion_set__in=[completion_set(pair) for pair in pairs],
        purpose=Purpose.WORK,
    )


def stop_asking(evaluation: Evaluation) -> int:
    """Close the pairs of an evaluation that nobody has begun; return how many. Annotations stay."""
    return asked_of(evaluation).filter(open_slots__gt=0).update(**CLOSED)


def _drawn_by(row: EvaluatedPrompt) -> str:
    """Return the key of a row in the random order of its evaluation."""
    return hashlib.sha256(f"{row.evaluation_id}/{row.prompt.content_hash}".encode()).hexdigest()
