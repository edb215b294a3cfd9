"""Measure live learning: seconds from a vote to a response by the changed policy, and what is learned.

python -m tests.benchmarks.live --smoke
python -m tests.benchmarks.live --seconds --model var/models/SmolLM2-135M-Instruct --updates 5
python -m tests.benchmarks.live --compare --seeds 0 1 2 3 4 --results var/live.json

The real application, trainer and model server; only the people are simulated, and the jobs of a worker are
done in this process.

--seconds   The first project on the starter model. People judge ten comparisons, the update is made, and so
            on. Counted from the vote that made an update due to its first comparison in the queue; a worker
            looks every five seconds, so that half of that comes on top of what is printed. Its trainers are
            started as a worker starts them.
--compare   A small writer and a known preference (`loop.preferences`): 250 judgments by live learning, and by
            two rounds of 125 as the loop benchmark goes them. The true win rate against the base, by the
            preference, on fresh prompts; five seeds.

`--smoke`: both in their smallest size with a writer, in about a minute; the exit status is 0 when all updates
were made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tests.benchmarks.first_hour.rules import RULES, ranks_of
from tests.benchmarks.loop.grammar import prompts as write_prompts
from tests.benchmarks.loop.machine import STARTER, Api, Machine, running_machine
from tests.benchmarks.loop.preferences import SCENES, CostModel
from tests.benchmarks.loop.rounds import Arm, Size, go_round, judgment_of
from tests.benchmarks.loop.truth import Truth, win_rate

_RULE = "short"
_LORA = {"rank": 16, "alpha": 32.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The amount of work of a comparison."""

    judgments: int = 250
    rounds: int = 2
    every: int = 10
    prompts: int = 780
    tokens: int = 48
    measured: int = 200
    steps: int = 40
    """Optimiser steps of a round's policy."""
    live_steps: int = 6
    """Those of an update."""
    scene: str = "both"
    rate: float = 1e-3
    beta: float = 0.1


_SMOKE = Scale(
    judgments=12, rounds=1, every=6, prompts=60, measured=24, steps=8, live_steps=2, scene="format"
)


@dataclass(slots=True)
class Labelled:
    """A project that simulated people label while its policy learns."""

    machine: Machine
    slug: str
    judge: Any
    """Takes prompt and responses; returns their ranks."""
    seed: int
    judged: int = 0
    done: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Return the project's address in the API."""
        return f"projects/{self.slug}"

    @property
    def person(self) -> Api:
        """Return who labels."""
        return self.machine.person("manager", superuser=True)

    def label(self) -> bool:
        """Judge the next comparison; False where there is none."""
        assignment = self.person("POST", f"{self.path}/assignments/next/")["assignment"]
        if assignment is None:
            return False
        answers = assignment["answers"]
        prompt = "\n".join(message["content"] for message in assignment["messages"])
        ranks = self.judge(prompt, [answer["text"] for answer in answers])
        key = uuid.UUID(int=Random(f"{self.slug} {self.judged}").getrandbits(128), version=4)
        self.person(
            "POST",
            f"{self.path}/assignments/{assignment['id']}/judgment/",
            {**judgment_of([answer["answer"] for answer in answers], ranks), "active_seconds": 20},
            headers={"Idempotency-Key": str(key)},
        )
        self.judged += 1
        return True

    def work(self) -> None:
        """Do what a sweep and a worker do. Raises with the error of an update that failed."""
        from training.models import LiveLearning
        from training.services.live import do_live, sweep_live

        sweep_live()
        learning = LiveLearning.objects.get(project__slug=self.slug)
        do_live(learning.pk)
        learning.refresh_from_db()
        if learning.error:
            raise SystemExit(f"Live learning failed: {learning.error}")

    def updates(self) -> list[Any]:
        """Return the updates, the first one first."""
        from training.models import LiveUpdate

        return list(
            LiveUpdate.objects.filter(project__slug=self.slug).select_related("run").order_by("number")
        )


# ── Seconds ──


def seconds_of(machine: Machine, *, updates: int, every: int, policy: dict[str, Any] | None) -> list[float]:
    """Return the seconds of each update, on the first project."""
    from django.conf import settings

    # As a worker starts it: Python and torch are loaded each time.
    settings.RONDO_TRAINER_COMMAND = (sys.executable, "-m", "training.rlhf")
    random = Random("live")
    rule = RULES[_RULE]
    labelled = Labelled(
        machine, "live-seconds", lambda prompt, texts: ranks_of(rule, prompt, texts, random), seed=0
    )
    _write_first_project(labelled.slug)
    values = {"is_active": True, "every": every, **({"policy": policy} if policy else {})}
    labelled.person("PUT", f"{labelled.path}/live/", values)
    _open(labelled.slug)
    while len(labelled.updates()) < updates:
        before = len(labelled.updates())
        while labelled.person("GET", f"{labelled.path}/live/")["behind"] < every and labelled.label():
            pass
        labelled.work()
        made = labelled.updates()
        if len(made) == before:
            raise SystemExit(f"No update was made after {labelled.judged} judgments.")
        newest = made[-1]
        trained = (newest.run.finished_at - newest.run.started_at).total_seconds()
        print(
            f"update {newest.number}: {newest.seconds:.1f} s, of these {trained:.1f} s of the trainer "
            f"({newest.run.step} steps); load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return [update.seconds for update in labelled.updates()]


def _write_first_project(slug: str) -> None:
    from annotation.models import Project
    from webapp.first_project import write_project

    project, _ = write_project(name=slug, slug=slug)
    Project.objects.filter(pk=project.pk).update(retest_share=0.0, gold_share=0.0)


def _open(slug: str) -> None:
    """Open the first round and do what a worker does for it."""
    from annotation.models import Project
    from training.models import Round
    from training.services.rounds.controls import open_first_round, open_round
    from training.services.rounds.executor import advance_round
    from webapp.first_project import first_recipe

    project = Project.objects.get(slug=slug)
    round_ = Round.objects.filter(project=project).first()
    if round_ is None:
        round_ = open_first_round(project=project, recipe=first_recipe())
    else:
        open_round(round_=round_, opened_by=None)
    advance_round(round_.pk)


# ── Live learning and rounds at the same number of judgments ──


def live_win_rate(machine: Machine, scale: Scale, seed: int) -> dict[str, Any]:
    """Return the true win rate of the last update against the base."""
    scene = SCENES[scale.scene]
    people, random = scene.annotators(1), Random(f"{seed} {scale.scene}")
    turn = iter(range(10**9))

    def judge(prompt: str, texts: Sequence[str]) -> list[int]:
        return people[next(turn) % len(people)].ranks(prompt, list(texts), random)

    labelled = Labelled(machine, f"live-{scale.scene}-{seed}", judge, seed)
    written = write_prompts(scale.prompts + scale.measured, seed=seed)
    manager, path = labelled.person, labelled.path
    manager("POST", "projects/", {"name": labelled.slug, "slug": labelled.slug, "guideline": scene.title})
    settings = {"retest_share": 0, "gold_share": 0, "overlap": 1, "extra_overlap_share": 0}
    manager("PATCH", f"{path}/settings/", {**settings, "ask_span_flags": False, "ask_missing_info": False})
    for first in range(0, scale.prompts, 500):
        some = written[first : min(first + 500, scale.prompts)]
        items = [{"prompt": [{"role": "user", "content": text}]} for text in some]
        manager("POST", f"{path}/prompts/", {"items": items})
    manager("POST", f"{path}/rounds/")
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": scale.tokens}
    recipe = {"sampling": sampling, "evaluation": {"sampling": sampling}, "seed": seed}
    manager("PUT", f"{path}/rounds/1/recipe/", {"recipe": recipe})
    manager("PUT", f"{path}/live/", {"is_active": True, "every": scale.every, "policy": _policy(scale)})
    _open(labelled.slug)
    while labelled.judged < scale.judgments:
        if not labelled.label():
            # Ties teach nothing and use up the queue before an update is due: a worker fills it.
            labelled.work()
            if not labelled.label():
                raise SystemExit(f"The queue is empty after {labelled.judged} judgments.")
        if manager("GET", f"{path}/live/")["behind"] >= scale.every:
            labelled.work()
    newest = manager("GET", f"{path}/live/")
    truth = Truth(machine, written[scale.prompts :], tokens=scale.tokens, seed=seed)
    reward = scene.truth(1)
    rewards = [
        [reward(prompt, text) for prompt, text in zip(written[scale.prompts :], texts, strict=True)]
        for texts in (truth.texts_of(newest["checkpoint"]), truth.texts_of(STARTER))
    ]
    return win_rate(*rewards) | {"updates": newest["version"]}


def _policy(scale: Scale) -> dict[str, Any]:
    optimiser = {"learning_rate": scale.rate, "warmup_steps": 0, "schedule": "constant", "batch_size": 8}
    optimiser |= {"epochs": 4, "max_steps": scale.live_steps, "save_every": 1000, "evaluate_every": 0}
    return {
        "beta": scale.beta,
        "lora": _LORA,
        "reference": "base",
        "optimiser": {**optimiser, "keep_best": False},
    }


def batch_win_rate(machine: Machine, scale: Scale, seed: int) -> dict[str, Any]:
    """Return the true win rate of the policy after the last round against the base."""
    each = scale.judgments / scale.rounds
    size = Size(
        rounds=scale.rounds,
        prompts=scale.prompts,
        prompts_per_round=min(scale.prompts, int(each * 1.3)),
        hours_per_round=each * CostModel().seconds(2) / 3600,
        tokens=scale.tokens,
        measured=scale.measured,
        steps=scale.steps,
    )
    course = go_round(machine, Arm(scene=scale.scene), size, seed=seed, tell=lambda *_: None)
    last = course.rounds[-1]
    rate: dict[str, Any] = last["true_win_rate_base"]
    return rate | {"labels": last["labels_in_all"], "served": last["served"]}


def compared(machine: Machine, scale: Scale, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Go both ways with each seed; print and return a line for each."""
    rows: list[dict[str, Any]] = []
    print("| seed | live | updates | rounds | judgments of the rounds | minutes |\n|---|---|---|---|---|---|")
    for seed in seeds:
        begun = time.monotonic()
        live, batch = live_win_rate(machine, scale, seed), batch_win_rate(machine, scale, seed)
        rows.append({"seed": seed, "live": live, "batch": batch})
        minutes = (time.monotonic() - begun) / 60
        print(
            f"| {seed} | {_share(live)} | {live['updates']} | {_share(batch)} | {batch['labels']} "
            f"| {minutes:.1f} |",
            flush=True,
        )
    # Django is configured by now.
    from tests.benchmarks.loop.arms import interval

    mean, low, high = interval([row["live"]["value"] - row["batch"]["value"] for row in rows])
    print(f"\nlive minus rounds: {mean:+.3f} [{low:+.3f}, {high:+.3f}] over {len(rows)} seeds")
    return rows


def _share(rate: dict[str, Any]) -> str:
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"


# ── Command ──


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--smoke", action="store_true", help="both in their smallest size with a writer")
    made.add_argument("--seconds", action="store_true", help="from a vote to a response")
    made.add_argument("--compare", action="store_true", help="with rounds at the same number of judgments")
    made.add_argument("--updates", type=int, default=5)
    made.add_argument("--model", type=Path, help="folder of the starter model; fetched without it")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    for name, default in asdict(Scale()).items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    made.add_argument("--results", type=Path, help="write all figures as JSON here")
    return made


def main() -> int:
    """Measure what was asked for; the exit status."""
    options = parser().parse_args()
    # Ended from outside, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    scale = _SMOKE if options.smoke else Scale(**{name: getattr(options, name) for name in asdict(Scale())})
    updates, seeds = (2, [0]) if options.smoke else (options.updates, options.seeds)
    values: dict[str, Any] = {"size": asdict(scale)}
    model = options.model
    if options.seconds and not options.smoke and model is None:
        from training.rlhf.starter import ensure

        model = ensure(Path("var/models"))
    # Django is configured once in a process: both on the writer, or one of them.
    with running_machine(
        threads=options.threads,
        model=None if options.smoke or options.compare else model,
        writer_steps=80 if options.smoke else 600,
    ) as machine:
        if options.compare or options.smoke:
            values["compared"] = compared(machine, scale, seeds)
        if options.smoke or not options.compare:
            seconds = seconds_of(
                machine,
                updates=updates,
                every=scale.every,
                policy=_policy(scale) if options.smoke else None,
            )
            values["seconds"] = seconds
            print(f"\nmedian {median(seconds):.1f} s from a vote to a response by the changed policy")
    if options.results:
        values |= {
            "command": " ".join(["python -m tests.benchmarks.live", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        }
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(values, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
