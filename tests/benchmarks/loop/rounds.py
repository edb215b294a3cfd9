"""One arm of the loop: a project goes through its rounds by the API, judged by simulated annotators."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from django.utils.text import slugify

from tests.benchmarks.loop.grammar import prompts as write_prompts
from tests.benchmarks.loop.machine import Api, Machine
from tests.benchmarks.loop.preferences import SCENES, Annotator, CostModel, Spent
from tests.benchmarks.loop.truth import Truth

_ADDED_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """The settings that are compared: everything that a project and its recipe may choose."""

    scene: str = "both"
    acquisition: str = "age"
    shape: str = "pairs"
    """pairs, rankings (of four), or spans (rankings of four with spans)."""
    loss: str = "bradley_terry"
    """bradley_terry, plackett_luce, or plackett_luce_ties (Davidson-Luce)."""
    reward: str = "frozen"
    """adapted: an adapter; frozen: a head on frozen features."""
    policy: str = "dpo"
    """dpo or grpo."""

    @property
    def name(self) -> str:
        """Return the settings that differ from the defaults."""
        default = asdict(Arm())
        chosen = {name: value for name, value in asdict(self).items() if value != default[name]}
        return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The amount of work in an experiment."""

    rounds: int = 5
    prompts: int = 780
    """Of the project; a tenth of them is held out."""
    prompts_per_round: int = 250
    hours_per_round: float = 1.75
    """Time of all annotators together, by the cost model."""
    tokens: int = 48
    measured: int = 200
    """Fresh prompts on which truth is measured."""
    steps: int = 40
    """Optimiser steps of the policy; of GRPO half as many."""


@dataclass(slots=True)
class Course:
    """The course of an arm, round by round."""

    arm: Arm
    seed: int
    rounds: list[dict[str, Any]] = field(default_factory=list)


def go_round(machine: Machine, arm: Arm, size: Size, *, seed: int, tell: Any = print) -> Course:
    """Take a new project through all rounds; return what was measured after each."""
    return _Project(machine, arm, size, seed, tell).go()


class _Clock:
    """Seconds of the parts of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, part: str) -> None:
        """End a part."""
        now = time.monotonic()
        self.seconds[part], self._last = now - self._last, now


class _Project:
    def __init__(self, machine: Machine, arm: Arm, size: Size, seed: int, tell: Any) -> None:
        self.machine, self.arm, self.size, self.seed, self.tell = machine, arm, size, seed, tell
        self.scene = SCENES[arm.scene]
        # The seeds of all responses follow from the names of checkpoints, and these from the project's.
        self.slug = f"{slugify(arm.name)[:50]}-{seed}"
        self.path = f"projects/{self.slug}"
        self.random = Random(f"{seed} {arm.scene}")
        self.manager = machine.person("manager", superuser=True)
        names = [annotator.name for annotator in self.scene.annotators(1)]
        self.people = {name: machine.person(name) for name in names}
        self.spent = Spent()
        self.cost = CostModel()
        fresh = write_prompts(size.prompts + size.measured, seed=seed)
        self.asked, self.fresh = fresh[: size.prompts], fresh[size.prompts :]
        self.truth = Truth(machine, self.fresh, tokens=size.tokens, seed=seed)

    def go(self) -> Course:
        course = Course(self.arm, self.seed)
        self._set_up()
        for number in range(1, self.size.rounds + 1):
            clock = _Clock()
            if number == 1:
                self._act(number, "open")
            self._work(number)
            clock.note("answering")
            parent = self._round(number)["policy"]
            labels = self._label(number)
            clock.note("labelling")
            self._act(number, "start")
            self._work(number)
            clock.note("training")
            figures = self._settled(number)
            figures |= {"labels": labels, "labels_in_all": self.spent.labels}
            figures |= {"annotator_hours": self.spent.seconds / 3600, "parent": parent}
            figures |= self._measured(number, figures)
            clock.note("measuring")
            figures |= {"seconds": sum(clock.seconds.values()), "seconds_by_part": clock.seconds}
            course.rounds.append(figures)
            self.tell(course, figures)
        return course

    def _set_up(self) -> None:
        manager = self.manager
        manager("POST", "projects/", {"name": self.slug, "slug": self.slug, "guideline": self.scene.title})
        manager(
            "PATCH",
            f"{self.path}/settings/",
            {
                **{"retest_share": 0, "gold_share": 0, "overlap": 1, "extra_overlap_share": 0},
                **{"ask_span_flags": self.arm.shape == "spans", "ask_missing_info": False},
                **{"acquisition": self.arm.acquisition, "control_share": 0.1},
            },
        )
        for name in self.people:
            manager("PUT", f"{self.path}/members/{name}/", {"role": "annotator"})
        for first in range(0, len(self.asked), _ADDED_AT_ONCE):
            items = [
                {"prompt": [{"role": "user", "content": text}]}
                for text in self.asked[first : first + _ADDED_AT_ONCE]
            ]
            manager("POST", f"{self.path}/prompts/", {"items": items})
        manager("POST", f"{self.path}/rounds/")
        manager("PUT", f"{self.path}/rounds/1/recipe/", {"recipe": recipe_of(self.arm, self.size, self.seed)})

    def _round(self, number: int) -> dict[str, Any]:
        round_: dict[str, Any] = self.manager("GET", f"{self.path}/rounds/{number}/")
        return round_

    def _act(self, number: int, action: str, **body: Any) -> None:
        self.manager("POST", f"{self.path}/rounds/{number}/{action}/", body)

    def _work(self, number: int) -> None:
        """Do what a worker would do now. Raises with the error of a step that failed."""
        from training.models import Round
        from training.services.rounds.executor import advance_round

        advance_round(Round.objects.get(project__slug=self.slug, number=number).pk)
        round_ = self._round(number)
        failed = [f"{step['kind']}: {step['error']}" for step in round_["steps"] if step["error"]]
        if failed or round_["state"] == "failed":
            raise SystemExit(f"Round {number} failed: {'; '.join(failed)}")

    def _label(self, number: int) -> int:
        """Have the annotators judge in turn until the round's time is spent or nothing is left."""
        before, people = self.spent.labels, self.scene.annotators(number)
        until = self.spent.seconds + self.size.hours_per_round * 3600
        idle: set[str] = set()
        self._choose()
        while self.spent.seconds < until and len(idle) < len(people):
            for annotator in people:
                if annotator.name not in idle and not self._judge(self.people[annotator.name], annotator):
                    idle.add(annotator.name)
            self._choose()
        return self.spent.labels - before

    def _choose(self) -> None:
        """Do what a worker does after every few annotations."""
        from annotation import tasks
        from annotation.choices import FOLLOWS_HEAD
        from annotation.models import Project

        if self.arm.acquisition not in FOLLOWS_HEAD:
            return
        tasks.update_acquisition(Project.objects.only("pk").get(slug=self.slug).pk)

    def _judge(self, client: Api, annotator: Annotator) -> bool:
        """Judge the next comparison; False where nothing is left."""
        assignment = client("POST", f"{self.path}/assignments/next/")["assignment"]
        if assignment is None:
            return False
        answers = assignment["answers"]
        prompt = assignment["messages"][-1]["content"]
        ranks = annotator.ranks(prompt, [answer["text"] for answer in answers], self.random)
        body: dict[str, Any] = judgment_of([answer["answer"] for answer in answers], ranks)
        if self.arm.shape == "spans":
            body["span_flags"] = [span for answer in answers for span in off_topic_spans(prompt, answer)]
        seconds = self.cost.seconds(len(answers), len(body.get("span_flags", ())))
        self.spent.add(len(answers), seconds)
        client(
            "POST",
            f"{self.path}/assignments/{assignment['id']}/judgment/",
            {**body, "active_seconds": round(seconds)},
            headers={"Idempotency-Key": str(uuid.UUID(int=self.random.getrandbits(128), version=4))},
        )
        return True

    def _settled(self, number: int) -> dict[str, Any]:
        """Take the decision where the evidence leaves it open: a manager promotes what is not worse."""
        round_ = self._round(number)
        verdict = round_["verdict"] or round_["state"]
        name = self._checkpoint(number)
        evaluation = self.manager("GET", f"checkpoints/{name}/")["evaluation"]
        figures = evaluation["figures"] if evaluation else {}
        acted = verdict
        if round_["state"] in ("not_enough_evidence", "deciding"):
            rate = (figures.get("win_rate") or {}).get("value", 0.5)
            acted = "promote" if rate >= 0.5 else "reject"
            self._act(number, acted, reason="The loop goes on.")
        served = self._round(number + 1)["policy"]
        return {
            "round": number,
            "verdict": verdict,
            "acted": acted,
            "served": served,
            "checkpoint": name,
            "kl": (figures.get("kl") or {}).get("value"),
            "reward_win_rate": (figures.get("win_rate") or {}).get("value"),
            "reasons": round_["reasons"],
            "held_out": self._held_out(number, name),
        }

    def _held_out(self, number: int, checkpoint: str) -> list[tuple[float | None, float]]:
        """Return, for each held-out prompt with different responses, the evaluator's chance that the new one
        wins and how much better it truly is: what a decision by people and model can be replayed from."""
        from training.models import Evaluation
        from training.selectors.evaluations import measurements_of, tolerance_in

        evaluation = Evaluation.objects.filter(checkpoint__name=checkpoint).first()
        if evaluation is None:
            return []
        reward, tolerance = self.scene.truth(number), tolerance_in(evaluation.figures)
        pairs = []
        for row in evaluation.rows.select_related("prompt", "old", "new").order_by("pk"):
            measurements, prompt = measurements_of(row), row.prompt.messages[-1]["content"]
            if not measurements.same:
                better = reward(prompt, row.new.text) - reward(prompt, row.old.text)
                pairs.append((measurements.win_chance(tolerance), better))
        return pairs

    def _checkpoint(self, number: int, kind: str = "policy") -> str:
        rows = self.manager("GET", f"checkpoints/?project={self.slug}&round={number}&kind={kind}")["results"]
        # The newest comes first, and of two reward models the evaluator is the newer one.
        name: str = rows[-1]["name"]
        return name

    def _measured(self, number: int, figures: Mapping[str, Any]) -> dict[str, Any]:
        reward_model = self._checkpoint(number, "reward")
        return self.truth.measure(
            self.scene.truth(number),
            checkpoint=figures["checkpoint"],
            parent=figures["parent"],
            served=figures["served"],
            reward_model=reward_model,
        )


def judgment_of(names: Sequence[str], ranks: Sequence[int]) -> dict[str, Any]:
    """Return a judgment's body. Of two responses that tie neither is better; tied rankings stay rankings."""
    if len(set(ranks)) == 1:
        return {"verdict": "equal"}
    return {"verdict": "ranked", "ranks": dict(zip(names, ranks, strict=True))}


def off_topic_spans(prompt: str, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return spans over the lines of a response that name no topic of the prompt, three at most."""
    topics = set(prompt.split()[2::2])
    spans, start = [], 0
    for line in answer["text"].split("\n"):
        if line.strip() and not topics & set(line.replace(".", " ").split()):
            spans.append(
                {
                    **{"answer": answer["answer"], "category": "irrelevant"},
                    **{"start": start, "end": start + len(line), "quote": line},
                    "text_hash": answer["text_hash"],
                }
            )
        start += len(line) + 1
    return spans[:3]


def recipe_of(arm: Arm, size: Size, seed: int) -> dict[str, Any]:
    """Return the recipe of all rounds of an arm."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": size.tokens}
    lora = {"rank": 16, "alpha": 32.0}
    common = {"micro_batch_tokens": 2048, "batch_size": 16, "evaluate_every": 0, "save_every": 1000}
    reward: dict[str, Any] = {"loss": arm.loss.removesuffix("_ties"), "context": False}
    if arm.loss.endswith("_ties"):
        reward["ties"] = "davidson"
    if arm.reward == "frozen":
        reward |= {"features": "frozen", "adapter": "none"}
    else:
        reward |= {
            "lora": lora,
            "optimiser": {**common, "learning_rate": 1e-3, "epochs": 1000, "max_steps": 2 * size.steps},
        }
    count = 2 if arm.shape == "pairs" else 4
    return {
        "reward": reward,
        "policy": _policy(arm, size, lora, common),
        "sampling": sampling,
        "samplers": [{"checkpoint": "policy", "completions": count, "sampling": sampling}],
        "prompts": size.prompts_per_round,
        "ready_prompts": size.prompts_per_round,
        "evaluation": {"prompts": size.prompts, "sampling": sampling},
        # As the recorded courses went: nobody is asked, so that the evaluator leads them astray.
        "promotion": {"judged_by": "reward_model"},
        "seed": seed,
    }


def _policy(arm: Arm, size: Size, lora: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    if arm.policy == "dpo":
        return {
            "method": "preference",
            "beta": 0.1,
            "lora": lora,
            "optimiser": {**common, "learning_rate": 1e-3, "epochs": 1000, "max_steps": size.steps},
        }
    return {
        "method": "policy_gradient",
        "lora": lora,
        "rollout": {"samples": 8, "max_tokens": size.tokens},
        "advantage": {"kind": "group_relative", "scale": True},
        "optimiser": {**common, "batch_size": 8, "learning_rate": 2e-3, "max_steps": max(1, size.steps // 2)},
    }
