"""A newcomer's course through the first project: label, start, answer what is asked, until the decision."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.benchmarks.first_hour.rules import RULES, Rule, fresh_prompts, ranks_of
from tests.benchmarks.loop.machine import Api, Machine
from tests.benchmarks.loop.rounds import judgment_of
from tests.benchmarks.loop.truth import win_rate

RANDOM = "random"
"""Instead of a rule: one who answers at random."""
_AT_ONCE = 8
_POLL_SECONDS = 0.5
_DECIDED = ("promoted", "rejected")


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The amount of work in a course."""

    comparisons: int = 40
    asked: int = 25
    """Pairs of old and new policy that the newcomer answers at most."""
    measured: int = 200
    """Fresh prompts on which truth is measured."""
    prompts: int | None = None
    """Prompts of the project; None takes all."""
    tokens: int | None = None
    """Longest response; None takes the recipe's."""


@dataclass(slots=True)
class Course:
    """What came of one newcomer."""

    rule: str
    seed: int
    decision: str = ""
    judged: int = 0
    answered: int = 0
    """Asked pairs that were answered."""
    true_win_rate: dict[str, float] | None = None
    """By the rule, on fresh prompts; None for one who answers at random."""
    waited: float = 0.0
    """Seconds until all comparisons were there to be judged."""
    seconds: float = 0.0
    """From the start of training to the decision, answering aside."""
    reasons: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)


class Newcomer:
    """One newcomer with a first project of their own."""

    def __init__(self, machine: Machine, rule: str, size: Size, seed: int) -> None:
        self.machine, self.size, self.seed = machine, size, seed
        self.rule: Rule | None = RULES.get(rule)
        self.course = Course(rule, seed)
        self.slug = f"first-{rule}-{seed}"
        self.path = f"projects/{self.slug}"
        self.random = Random(f"{rule} {seed}")
        self.api: Api = machine.person("newcomer", superuser=True)

    def go(self) -> Course:
        """Take the course; return what came of it."""
        self._write_project()
        with self._working():
            begun = time.monotonic()
            while self.course.judged < self.size.comparisons and self._judge():
                self.course.judged += 1
            self.course.waited = time.monotonic() - begun
            self.api("POST", f"{self.path}/rounds/1/start/", {})
        begun = time.monotonic()
        self._advance()
        while self._state() not in _DECIDED and self.course.answered < self.size.asked and self._answer():
            self.course.answered += 1
            self._advance()
        self.course.seconds = time.monotonic() - begun
        self._conclude()
        return self.course

    def _write_project(self) -> None:
        """Write the first project as a first start does, with the newcomer as its manager."""
        from django.db import transaction

        from annotation.choices import Role
        from annotation.models import Prompt, User
        from annotation.services.projects.projects import add_member
        from training.services.rounds.controls import open_first_round
        from webapp.first_project import first_recipe, write_project

        with transaction.atomic():
            project, _ = write_project(name=self.slug, slug=self.slug)
            add_member(project=project, user=User.objects.get(username="newcomer"), role=Role.MANAGER)
            if self.size.prompts is not None:
                kept: list[int] = []
                for split in ("train", "held-out"):
                    some = Prompt.objects.filter(project=project, split=split).order_by("pk")
                    kept += some.values_list("pk", flat=True)[: self.size.prompts // 2]
                Prompt.objects.filter(project=project).exclude(pk__in=kept).delete()
            recipe = first_recipe() | {"seed": self.seed}
            if self.size.tokens is not None:
                recipe["sampling"]["max_tokens"] = self.size.tokens
                recipe["evaluation"]["sampling"]["max_tokens"] = self.size.tokens
            open_first_round(project=project, recipe=recipe)
        # Guidelines are read, and nothing is asked twice.
        self.api("PATCH", f"{self.path}/settings/", {"retest_share": 0, "gold_share": 0})

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Sample in the background, as a worker does while people label, until training starts."""
        failed: list[BaseException] = []

        def work() -> None:
            from django.db import connection

            try:
                self._advance()
            except BaseException as error:
                failed.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=work, name="worker", daemon=True)
        thread.start()
        yield
        thread.join()
        if failed:
            raise failed[0]

    def _advance(self) -> None:
        """Do what a worker would do now. Raises with the error of a step that failed."""
        from training.models import Round
        from training.services.rounds.executor import advance_round

        advance_round(Round.objects.get(project__slug=self.slug, number=1).pk)
        round_ = self._round()
        errors = [f"{step['kind']}: {step['error']}" for step in round_["steps"] if step["error"]]
        if errors or round_["state"] == "failed":
            raise SystemExit(f"The round of {self.slug} failed: {'; '.join(errors)}")

    def _round(self) -> dict[str, Any]:
        round_: dict[str, Any] = self.api("GET", f"{self.path}/rounds/1/")
        return round_

    def _state(self) -> str:
        return str(self._round()["state"])

    def _next(self) -> dict[str, Any] | None:
        """Return the next assignment; None where there is none."""
        assignment: dict[str, Any] | None = self.api("POST", f"{self.path}/assignments/next/")["assignment"]
        return assignment

    def _judge(self) -> bool:
        """Judge the next comparison, waiting for it while responses are sampled; False where none comes."""
        while (assignment := self._next()) is None:
            steps = self._round()["steps"]
            if all(step["state"] not in ("waiting", "running") for step in steps):
                return False
            time.sleep(_POLL_SECONDS)
        self._submit(assignment)
        return True

    def _answer(self) -> bool:
        """Judge the next pair of old and new policy; False where none is asked."""
        assignment = self._next()
        if assignment is None or not self._is_asked(assignment["id"]):
            return False
        self._submit(assignment)
        return True

    def _is_asked(self, assignment: int) -> bool:
        """Return whether an assignment compares the new policy with its parent; its page does not tell."""
        from annotation.models import Assignment
        from training.models import EvaluatedPrompt

        comparison = Assignment.objects.get(pk=assignment).comparison
        completions = comparison.candidates.values_list("completion_id", flat=True)
        return EvaluatedPrompt.objects.filter(new__in=list(completions)).exists()

    def _submit(self, assignment: dict[str, Any]) -> None:
        answers = assignment["answers"]
        prompt = "\n".join(message["content"] for message in assignment["messages"])
        ranks = ranks_of(self.rule, prompt, [answer["text"] for answer in answers], self.random)
        self.api(
            "POST",
            f"{self.path}/assignments/{assignment['id']}/judgment/",
            {**judgment_of([answer["answer"] for answer in answers], ranks), "active_seconds": 20},
            headers={"Idempotency-Key": str(uuid.UUID(int=self.random.getrandbits(128), version=4))},
        )

    def _conclude(self) -> None:
        from training.models import Round
        from training.selectors.rounds import chosen_settings

        shown = self._round()
        self.course.decision, self.course.reasons = str(shown["state"]), list(shown["reasons"])
        round_ = Round.objects.select_related("project", "policy").get(project__slug=self.slug, number=1)
        self.course.chosen = [f"{chosen.name}: {chosen.title}" for chosen in chosen_settings(round_)]
        if self.rule is None:
            return
        path = f"checkpoints/?project={self.slug}&round=1&kind=policy"
        new = self.api("GET", path)["results"][-1]["name"]
        prompts = fresh_prompts(self.size.measured)
        sampling = asdict(round_.parsed_recipe.evaluation.sampling)
        rewards = [
            [self.rule(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
            for texts in (self._responses(name, prompts, sampling) for name in (new, round_.policy.name))
        ]
        self.course.true_win_rate = win_rate(*rewards)

    def _responses(self, model: str, prompts: Sequence[str], sampling: dict[str, Any]) -> list[str]:
        """Return a checkpoint's response to each prompt, with the same seeds for all checkpoints."""
        from training.engine import Engine

        def ask(engine: Engine, index: int, prompt: str) -> str:
            messages = [{"role": "user", "content": prompt}]
            seed = self.seed * 1_000_003 + index
            [answer] = engine.complete(model=model, messages=messages, n=1, seed=seed, **sampling)
            return answer.text

        with Engine() as engine, ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(partial(ask, engine), range(len(prompts)), prompts))
