"""A checkpoint answers a project's prompts, and the answers become comparisons as they come.

Which answers a round needs follows from its prompts and its recipe, and each answer's seed
from django.utils.translation import gettext as _
from prompt, checkpoint and index: asking twice gives the same rows, and what is there
already is not asked for again.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from django.utils.translation import gettext as _

from annotation.choices import Split
from annotation.errors import Refusal
from annotation.models import Prompt
from annotation.services.texts.completions import create_comparison
from training.choices import CheckpointKind, RoundState, StepKind
from training.contract import canonical_json
from training.engine import Engine
from training.models import Checkpoint, Round
from training.recipe import POLICY, RIVAL, Recipe, SamplingSettings
from training.selectors.evaluations import trained_by
from training.selectors.projects import checkpoints_of
from training.services.jobs.step_heartbeat import StepHeartbeat
from training.services.sampling.asking import Asking, Draw, Question

_SPARE_DRAWS = 4


def seed_of(
    recipe_seed: int, prompt: Prompt, checkpoint: Checkpoint, index: int, *, variant: str = ""
) -> int:
    """Return the seed of one response, below 2³¹, the same at every call.

    The seeds of one prompt's answers by one checkpoint count up from the first: that is how
    the model server seeds several answers to one request, and each can be drawn again alone.
    `variant` tells samplings apart: an answer is known by its seed, so each needs seeds of its own.
    """
    named = f"{recipe_seed}/{prompt.project_id}/{prompt.content_hash}/{checkpoint.name}{variant}"
    return (int.from_bytes(hashlib.sha256(named.encode()).digest()[:4], "big") >> 2) + index


def rival_of(round_: Round) -> Checkpoint | None:
    """Return the checkpoint that answers next to the round's policy; None where there is no other.

    After a round without enough evidence it is that round's new policy, so that people's blind judgments go
    on comparing the two; else the policy that the round before began with.
    """
    before = Round.objects.filter(project=round_.project_id, number=round_.number - 1).first()
    if before is None:
        return None
    rival: Checkpoint | None = before.policy
    if before.state == RoundState.NOT_ENOUGH_EVIDENCE:
        rival = trained_by(before, CheckpointKind.POLICY, StepKind.TRAIN_POLICY)
    # With itself as a rival it would say everything twice.
    return None if rival is None or rival == round_.policy or rival.files_deleted_at else rival


def questions_of(round_: Round, rival: Checkpoint | None) -> Iterator[Question]:
    """Yield the questions of a round, in the order in which annotators meet them.

    With samplers in the recipe, each prompt gets the answers of all of them. Without, every second
    prompt gets a ranking, those between a pair, and the answers of a `rival` share the places with
    those of the round's policy, the policy having the odd one.
    """
    recipe = round_.parsed_recipe
    samplers = _samplers_of(round_, rival)
    for position, prompt in enumerate(prompts_of(round_)):
        size = recipe.ranking_size if position % 2 else 2
        by_rival = size // 2 if rival else 0
        shares = samplers or [
            (checkpoint, count, recipe.sampling)
            for checkpoint, count in ((round_.policy, size - by_rival), (rival, by_rival))
            if checkpoint is not None
        ]
        yield _question(prompt, shares, recipe)


_Share = tuple[Checkpoint, int, SamplingSettings]


def _samplers_of(round_: Round, rival: Checkpoint | None) -> list[_Share]:
    """Return the samplers with their checkpoints. Refuses a name that writes no text in this project."""
    shares = []
    for sampler in round_.parsed_recipe.samplers:
        checkpoint: Checkpoint | None
        if sampler.checkpoint == POLICY:
            checkpoint = round_.policy
        elif sampler.checkpoint == RIVAL:
            checkpoint = rival or round_.policy
        else:
            checkpoint = checkpoints_of(round_.project, writing=True).filter(name=sampler.checkpoint).first()
        if checkpoint is None:
            raise Refusal(
                "unknown_sampler",
                _(
                    "The recipe's sampler %(name)r is no checkpoint of %(project)s that writes "
                    "text: name another in the recipe, then start again."
                ),
                field="samplers",
                name=sampler.checkpoint,
                project=round_.project,
            )
        shares.append((checkpoint, sampler.completions, sampler.sampling))
    return shares


def _question(prompt: Prompt, shares: Sequence[_Share], recipe: Recipe) -> Question:
    """Return one prompt's draws. A checkpoint named twice goes on counting: no response is drawn twice."""
    draws: list[Draw] = []
    drawn: Counter[tuple[Checkpoint, SamplingSettings]] = Counter()
    for checkpoint, count, sampling in shares:
        first = drawn[checkpoint, sampling]
        drawn[checkpoint, sampling] += count
        draws += [_draw(recipe, prompt, checkpoint, sampling, first + index) for index in range(count)]
    spares = [
        _draw(recipe, prompt, checkpoint, sampling, count + index)
        for (checkpoint, sampling), count in drawn.items()
        for index in range(_SPARE_DRAWS)
        if count
    ]
    return Question(prompt, draws, spares)


def _draw(
    recipe: Recipe, prompt: Prompt, checkpoint: Checkpoint, sampling: SamplingSettings, index: int
) -> Draw:
    variant = "" if sampling == recipe.sampling else f"/{canonical_json(asdict(sampling))}"
    return Draw(checkpoint, seed_of(recipe.seed, prompt, checkpoint, index, variant=variant), sampling)


def prompts_of(round_: Round) -> list[Prompt]:
    """Return the prompts that a round asks.

    Where it asks only some, each round takes the next ones, with as many held-out prompts among them as
    `_held_out_wanted` says: without annotations on these the reward model could not decide the round.
    """
    recipe = round_.parsed_recipe
    prompts = list(Prompt.objects.filter(project=round_.project_id).select_related("project").order_by("pk"))
    if recipe.prompts is None or recipe.prompts >= len(prompts):
        return prompts
    first = (round_.number - 1) * recipe.prompts % len(prompts)
    in_turn = prompts[first:] + prompts[:first]
    return _with_held_out(in_turn, recipe.prompts, _held_out_wanted(recipe))


def _held_out_wanted(recipe: Recipe) -> int:
    """Return half as many again as a decision by the reward model wants, as ties decide nothing; at most a
    fifth of the round's prompts."""
    count = math.ceil(1.5 * recipe.promotion.least_reward_model_judgments)
    return min(count, (recipe.prompts or 0) // 5)


def _with_held_out(in_turn: Sequence[Prompt], count: int, held_out_count: int) -> list[Prompt]:
    """Return the first `count` prompts; where too few of them are held out, the next held-out ones take the
    places of the last training prompts."""
    chosen, later = list(in_turn[:count]), in_turn[count:]
    missing = held_out_count - sum(prompt.split == Split.HELD_OUT for prompt in chosen)
    more = [prompt for prompt in later if prompt.split == Split.HELD_OUT][: max(0, missing)]
    places = [place for place, prompt in enumerate(chosen) if prompt.split == Split.TRAIN]
    for place, prompt in zip(reversed(places), reversed(more), strict=False):
        chosen[place] = prompt
    return chosen


def answer_prompts(
    *,
    round_: Round,
    rival: Checkpoint | None,
    heartbeat: StepHeartbeat,
    engine: Engine,
    first: int | None = None,
) -> str:
    """Answer a round's prompts and create its comparisons; return what came of it, for people.

    With `first` only so many, those that annotators meet first. What is answered already
    costs nothing, so the rest can be asked for later by the same call without it.
    A model server that is down or still loads is waited for, as long as nobody cancels.
    Refuses where the project has no prompts or the server refuses a request for good.
    """
    questions = list(questions_of(round_, rival))[:first]
    if not questions:
        raise Refusal(
            "prompts_missing",
            _("%(project)s has no prompts: import some, then start again."),
            project=round_.project,
        )
    repeated = 0

    def put_before_annotators(question: Question) -> None:
        nonlocal repeated
        completions = question.distinct()
        if len(completions) > 1:
            create_comparison(prompt=question.prompt, completions=completions, round_number=round_.number)
        else:
            repeated += 1

    asking = Asking(engine, heartbeat, total=len(questions), on_answered=put_before_annotators)
    asking.ask_all(questions)
    if repeated:
        return (
            f"{len(questions)} prompts answered; {repeated} of them with one and the same text "
            "each time, which leaves nothing to compare"
        )
    return f"{len(questions)} prompts answered"
