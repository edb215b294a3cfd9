"""Sampling: checkpoints answer prompts through model servers, and the answers become comparisons."""

import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar, cast

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from annotation.choices import FinishReason, Split
from annotation.errors import Refusal, Unavailable
from annotation.models import Comparison, Completion, Prompt
from annotation.services.job_runs import call_with_heartbeat
from annotation.services.jobs import Heartbeat
from annotation.services.judgments.drafts import Written
from annotation.services.texts import NewCompletion, create_comparison, record_completions
from training.choices import WRITES_TEXT, CheckpointKind, RoundState, StepKind
from training.contract.files import canonical_json
from training.engine import (
    AddressError,
    Answer,
    Engine,
    EngineError,
    Engines,
    EngineUnavailableError,
    EngineUnknownModelError,
    Sampling,
    engine_for,
)
from training.models import Checkpoint, Round
from training.recipe.recipe import POLICY, RIVAL, Recipe, SamplingSettings
from training.selectors.evaluations import trained_by
from training.selectors.projects import chat_of, checkpoints_of

# ── Waiting for a model server ──


_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_KNOWN_WITHIN_SECONDS = 60.0

Result = TypeVar("Result")
Tell = Callable[[str], object]
"""Called while one waits, with what for; raises to stop."""


class Patience:
    """Longer and longer pauses while a model server is away; `reset` once it answered."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.reset()

    def reset(self) -> None:
        """Make the next pause short again, after a response."""
        self._pause = _FIRST_PAUSE_SECONDS
        self._unknown_since: float | None = None

    def wait(self, trouble: EngineError) -> None:
        """Pause before asking again. Refuses once a checkpoint has been unknown for a minute."""
        now = time.monotonic()
        if isinstance(trouble, EngineUnknownModelError):
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since > _KNOWN_WITHIN_SECONDS:
                raise Refusal(
                    "model_server_lacks_checkpoint",
                    _(
                        "The model server does not know the checkpoint: %(trouble)s Look into "
                        "its log, then start again."
                    ),
                    trouble=trouble,
                )
        message = f"waiting for the model server: {trouble}"
        self._tell(message)
        until = now + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.25))
            self._tell(message)


def retry_until_available(
    ask: Callable[[], Result], *, message: str, tell: Tell, unknown_may_pass: bool = True
) -> Result:
    """Return the result of one request to a model server, asked again while the server is away.

    `tell` is called with `message` while it is computed: a heartbeat goes on meanwhile. Raises
    `EngineError` where the server refuses for good; where it does not know what is asked for, at once
    unless that `unknown_may_pass`.
    """
    patience = Patience(tell)
    while True:
        try:
            return call_with_heartbeat(ask, lambda: tell(message))
        except (EngineUnavailableError, EngineUnknownModelError) as trouble:
            if isinstance(trouble, EngineUnknownModelError) and not unknown_may_pass:
                raise
            patience.wait(trouble)


# ── Answers with given seeds, some at once ──
#
# An answer is known by prompt, source and seed: what is there already is not asked for again.


ANSWERS_AT_ONCE = 8
"""Answers in flight. The model server writes them together and reads its weights once for all, so that eight
take about twice as long as one. More would make a person on the Compare page wait longer."""
REQUESTS_AT_ONCE = 2
"""Requests in flight at least, however many answers they ask for: one waits at the door."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One answer that is to be sampled: by whom, with which seed, and how."""

    checkpoint: Checkpoint
    seed: int
    sampling: SamplingSettings

    @property
    def key(self) -> tuple[int | None, int]:
        """Return the key of its completion among those of one prompt: source and seed."""
        return self.checkpoint.source_id, self.seed


@dataclass(slots=True)
class PromptToAnswer:
    """One prompt of a round and the answers that will stand beside each other."""

    prompt: Prompt
    draws: list[Draw]
    spares: list[Draw]
    """Further draws, for answers that turn out equal to the letter."""
    completions: dict[tuple[int | None, int], Completion] = field(default_factory=dict)
    """Answers that are there, by the key of their draw."""

    def missing(self, *, together: bool) -> list[list[Draw]]:
        """Return the missing draws, grouped by request."""
        groups: list[list[Draw]] = []
        for draw in self.draws:
            if draw.key in self.completions:
                continue
            before = groups[-1][-1] if groups else None
            if together and before == replace(draw, seed=draw.seed - 1):
                groups[-1].append(draw)
            else:
                groups.append([draw])
        return groups

    def replace_repetitions(self) -> bool:
        """Give every answer that repeats another a spare draw; False once none is left to replace."""
        seen: set[str] = set()
        for place, draw in enumerate(self.draws):
            text = self.completions[draw.key].text.strip()
            if text in seen:
                alike = (draw.checkpoint, draw.sampling)
                spare = next((s for s in self.spares if (s.checkpoint, s.sampling) == alike), None)
                if spare is not None:
                    self.spares.remove(spare)
                    self.draws[place] = spare
                    return True
            seen.add(text)
        return False

    def distinct(self) -> list[Completion]:
        """Return the responses in the order of their draws, each text once."""
        by_text: dict[str, Completion] = {}
        for draw in self.draws:
            completion = self.completions[draw.key]
            by_text.setdefault(completion.text.strip(), completion)
        return list(by_text.values())


class Asking:
    """Keeps some requests in flight; all of the database stays in the calling thread.

    Answers that are there already are not asked for again. `on_answered` is called with each question
    once all of its answers are there, in the thread that called `ask_all`.
    """

    def __init__(
        self,
        engine: Engine,
        heartbeat: Heartbeat,
        *,
        total: int,
        on_answered: Callable[[PromptToAnswer], None],
        message: str = "answering the prompts",
    ) -> None:
        """engine: the client of our own server; checkpoints that name another server are asked there.

        total: questions, for the progress. message: what is being done, for people.
        """
        self.on_answered = on_answered
        self.message = message
        self.engines = Engines(engine)
        self.heartbeat = heartbeat
        self.total = total
        self.done = 0
        self._patience = Patience(self._tell)
        self._together = True
        self._waiting: deque[tuple[PromptToAnswer, list[Draw]]] = deque()
        self._flying: dict[Future[list[Answer]], tuple[PromptToAnswer, list[Draw]]] = {}

    def ask_all(self, questions: Sequence[PromptToAnswer]) -> None:
        """Answer every question, the first ones first."""
        ahead = deque(questions)
        pool = ThreadPoolExecutor(max_workers=ANSWERS_AT_ONCE, thread_name_prefix="ask")
        try:
            while ahead or self._waiting or self._flying:
                while ahead and _has_room(*self._waiting, *self._flying.values()):
                    self._take_up(ahead.popleft())
                while self._waiting and _has_room(*self._flying.values()):
                    question, draws = self._waiting.popleft()
                    engine = self.engines.of(draws[0].checkpoint)
                    self._flying[pool.submit(self._ask, engine, question, draws)] = (question, draws)
                self._land()
        finally:
            # Requests that are on their way end by themselves; nobody waits for them.
            pool.shutdown(wait=False, cancel_futures=True)
            self.engines.close()

    def _take_up(self, question: PromptToAnswer) -> None:
        known = Completion.objects.filter(
            prompt=question.prompt,
            source__in={draw.checkpoint.source_id for draw in question.draws + question.spares},
            seed__in=[draw.seed for draw in question.draws + question.spares],
        )
        question.completions = {
            (completion.source_id, completion.seed): completion
            for completion in known
            if completion.seed is not None
        }
        self._go_on(question)

    def _go_on(self, question: PromptToAnswer) -> None:
        """Ask for what is missing, or hand the question over once nothing is."""
        while True:
            if missing := question.missing(together=self._together):
                # Before all else: a question once begun is finished first.
                self._waiting.extendleft((question, draws) for draws in reversed(missing))
                return
            if not question.replace_repetitions():
                break
        self.on_answered(question)
        self.done += 1
        self._tell(self.message)

    @staticmethod
    def _ask(engine: Engine, question: PromptToAnswer, draws: list[Draw]) -> list[Answer]:
        return engine.complete(
            model=draws[0].checkpoint.name,
            messages=chat_of(question.prompt),
            seed=draws[0].seed,
            n=len(draws),
            **asdict(draws[0].sampling),
        )

    def _land(self) -> None:
        """Record what came back; after a failure that may pass, wait and ask again."""
        landed, _flying = wait(self._flying, timeout=0.5, return_when=FIRST_COMPLETED)
        trouble: EngineError | None = None
        for future in landed:
            question, draws = self._flying.pop(future)
            try:
                answers = future.result()
            except (EngineUnavailableError, EngineUnknownModelError) as error:
                trouble = error
                self._waiting.appendleft((question, draws))
            except EngineError as error:
                raise Refusal(
                    "model_server_refused",
                    _("The model server refused to answer %(prompt)s: %(error)s"),
                    prompt=question.prompt,
                    error=error,
                ) from error
            else:
                self._patience.reset()
                self._record(question, draws, answers)
        if trouble is not None:
            self._patience.wait(trouble)
        elif not landed:
            self._tell(self.message)

    def _record(self, question: PromptToAnswer, draws: list[Draw], answers: list[Answer]) -> None:
        if [answer.seed for answer in answers] == [draw.seed for draw in draws]:
            source = draws[0].checkpoint.source
            assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
            stored = record_completions(
                prompt=question.prompt,
                source=source,
                answers=[_completion(answer, draws[0].sampling) for answer in answers],
            )
            question.completions |= {
                draw.key: completion for draw, completion in zip(draws, stored, strict=True)
            }
        else:
            # A server that does not say how it seeded each answer: ask one by one, so that
            # the recorded seed is the one that gives this very text again.
            self._together = False
        if not any(other is question for other, _ in (*self._waiting, *self._flying.values())):
            self._go_on(question)

    def _tell(self, message: str) -> None:
        self.heartbeat(current=self.done, total=self.total, message=message)


def _has_room(*requests: tuple[PromptToAnswer, list[Draw]]) -> bool:
    """Return whether one more request may be in flight beside these."""
    return len(requests) < REQUESTS_AT_ONCE or sum(len(draws) for _, draws in requests) < ANSWERS_AT_ONCE


def _completion(answer: Answer, sampling: SamplingSettings) -> NewCompletion:
    return NewCompletion(
        text=answer.text,
        # What the server does not know had no effect, and is no part of where the answer comes from.
        sampling={name: value for name, value in asdict(sampling).items() if name not in answer.ignored},
        seed=answer.seed,
        finish_reason=FinishReason(answer.finish_reason),
        token_count=answer.token_count,
    )


# ── Answers of a checkpoint to a project's prompts ──
#
# Which answers a round needs follows from its prompts and its recipe, and each answer's seed
# from django.utils.translation import gettext as _
# from prompt, checkpoint and index: asking twice gives the same rows, and what is there
# already is not asked for again.


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


def questions_of(round_: Round, rival: Checkpoint | None) -> Iterator[PromptToAnswer]:
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


def _question(prompt: Prompt, shares: Sequence[_Share], recipe: Recipe) -> PromptToAnswer:
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
    return PromptToAnswer(prompt, draws, spares)


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
    heartbeat: Heartbeat,
    engine: Engine,
    first: int | None = None,
    training_prompts: int | None = None,
) -> str:
    """Answer a round's prompts and create its comparisons; return what came of it, for people.

    With `first` only so many, those that annotators meet first. What is answered already
    costs nothing, so the rest can be asked for later by the same call without it. training_prompts: of these
    only so many are answered; the others are left to live learning.
    A model server that is down or still loads is waited for, as long as nobody cancels.
    Refuses where the project has no prompts or the server refuses a request for good.
    """
    questions = list(questions_of(round_, rival))
    if training_prompts is not None:
        questions = _without_later(questions, training_prompts)
    questions = questions[:first]
    if not questions:
        raise Refusal(
            "prompts_missing",
            _("%(project)s has no prompts: import some, then start again."),
            project=round_.project,
        )
    repeated = 0

    def put_before_annotators(question: PromptToAnswer) -> None:
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


def answer_apart(
    *,
    round_: Round,
    checkpoints: tuple[Checkpoint, Checkpoint],
    prompts: Sequence[Prompt],
    heartbeat: Heartbeat,
    engine: Engine,
) -> list[tuple[Prompt, tuple[Completion, Completion]]]:
    """Return one response of each of two checkpoints to every prompt to which they differ. No comparison is
    made of them."""
    recipe = round_.parsed_recipe
    pairs: list[tuple[Prompt, tuple[Completion, Completion]]] = []

    def keep(question: PromptToAnswer) -> None:
        first, second = (question.completions[draw.key] for draw in question.draws)
        if first.text.strip() != second.text.strip():
            pairs.append((question.prompt, (first, second)))

    asking = Asking(
        engine, heartbeat, total=len(prompts), on_answered=keep, message="sampling pairs for the guard"
    )
    shares = [(checkpoint, 1, recipe.sampling) for checkpoint in checkpoints]
    asking.ask_all([_question(prompt, shares, recipe) for prompt in prompts])
    return pairs


def _without_later(questions: Sequence[PromptToAnswer], count: int) -> list[PromptToAnswer]:
    """Return the questions on held-out prompts, and the first `count` of the others, in their order."""
    training = [question for question in questions if question.prompt.split == Split.TRAIN]
    later = {question.prompt.pk for question in training[count:]}
    return [question for question in questions if question.prompt.pk not in later]


MOST_DRAWS_OF_A_PAIR = 2 + _SPARE_DRAWS
"""Responses that are drawn for a pair at most, until two differ."""


def answer_pairs(
    *,
    round_: Round,
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    heartbeat: Heartbeat,
    engine: Engine,
    priority: int,
    on_comparison: Callable[[Comparison], object] = lambda comparison: None,
) -> None:
    """Put two responses of a checkpoint to each prompt before a round's annotators, sampled as the round's.

    Idempotent, as `answer_prompts`. on_comparison: called with each comparison once it is there. Responses
    that are all alike are no comparison.
    """
    recipe = round_.parsed_recipe

    def put_before_annotators(question: PromptToAnswer) -> None:
        completions = question.distinct()
        if len(completions) > 1:
            on_comparison(
                create_comparison(
                    prompt=question.prompt,
                    completions=completions,
                    round_number=round_.number,
                    priority=priority,
                )
            )

    asking = Asking(engine, heartbeat, total=len(prompts), on_answered=put_before_annotators)
    asking.ask_all([_question(prompt, [(checkpoint, 2, recipe.sampling)], recipe) for prompt in prompts])


# ── Continuations of responses that annotators rewrite ──


_SECONDS = 60.0
"""A person waits for it."""
_HEALTH_SECONDS = 1.0
_MOST_TOKENS = 512


class CheckpointWriter:
    """Continues a response with the checkpoint that wrote it, sampled as the response was."""

    def can_continue(self, completions: Sequence[Completion]) -> bool:
        """Return whether a checkpoint whose server answers now wrote each of them."""
        sources = {completion.source_id for completion in completions}
        checkpoints = list(_writing().filter(source__in=sources))
        if len(checkpoints) < len(sources):
            return False
        by_server = {checkpoint.server_url: checkpoint for checkpoint in checkpoints}
        return all(map(_answers, by_server.values()))

    def continue_response(self, completion: Completion, prefix: str, *, seed: int) -> Written:
        """Return what follows the prefix. Raises `Unavailable`, whose message names no model."""
        checkpoint = _writing().filter(source=completion.source_id).first()
        if checkpoint is None:
            raise _unavailable()
        sampling = _sampling_of(completion)
        try:
            with engine_for(checkpoint, timeout=_SECONDS) as engine:
                (answer,) = engine.complete(
                    model=checkpoint.name,
                    messages=chat_of(completion.prompt),
                    prefix=prefix,
                    seed=seed,
                    **sampling,
                )
        except (EngineError, AddressError) as error:
            raise _unavailable() from error
        known = FinishReason.values
        return Written(
            text=answer.text,
            seed=answer.seed,
            sampling={name: value for name, value in sampling.items() if name not in answer.ignored},
            finish_reason=answer.finish_reason if answer.finish_reason in known else "",
        )


def _writing() -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(kind__in=WRITES_TEXT, files_deleted_at__isnull=True)


def _answers(checkpoint: Checkpoint) -> bool:
    try:
        with engine_for(checkpoint) as engine:
            return engine.health(timeout=_HEALTH_SECONDS).ready
    except (EngineError, AddressError):
        return False


def _sampling_of(completion: Completion) -> Sampling:
    """Return the settings that the completion was sampled with, as far as an engine takes them."""
    names = Sampling.__annotations__
    sampling = cast(
        Sampling, {name: completion.sampling[name] for name in names if name in completion.sampling}
    )
    return {**sampling, "max_tokens": min(sampling.get("max_tokens", _MOST_TOKENS), _MOST_TOKENS)}


def _unavailable() -> Unavailable:
    return Unavailable(
        "model_not_answering", _("The model could not continue. Try again, or write the rest yourself.")
    )
