"""The run: prompts, samples, scores, credit, update; once a step, resumable at every save.

One line of `metrics.jsonl` per step, beside `step`, `epoch`, `learning_rate`, `seconds`, `skipped` and what
`credit.figures` and `update_policy` return:

    reward                 mean over the answers that were scored, segments' rewards included; before
                           what `rollout, unfinished` makes of answers that were cut off
    reward/NAME            the same of one part, before normalising, clip and weight
    watched/NAME           the same of a reward that is not trained for
    redrawn                prompts that were drawn in place of others; where `rollout, redraws` is set
    length, unfinished     mean tokens of an answer; share of answers that were cut off
    success, turns         where an environment pays: share of episodes that succeed, mean turns of the policy
    not_done               share of episodes that turns or tokens ended
    kl, kl_per_token       divergence of an answer, and of a token, from the reference: log π − log π_ref by
                           the trainer's own passes, so 0 before anything is learned
    kl_base, kl_base_per_token   the same from the base, whatever the reference is
    sampler_gap            |log π − log μ| of a drawn token, the mean: how far the trainer's probabilities lie
                           from the sampler's. Above 0 where they round otherwise (bfloat16: about 0.01 to
                           0.04) or the sampler is behind; it enters no divergence
    staleness, staleness_max   steps by which the policies that drew the answers were behind, where servers
                           draw: mean and maximum
    reward_spread          standard deviation among an ensemble's heads of an answer's score against the other
                           answers to its prompt, the mean; where a reward model is an ensemble
    entropy                of the next token, nats: where no bonus is paid for it, −log μ of the drawn tokens,
                           which is an estimate without bias
    beta                   KL penalty coefficient
    tokens, answers        drawn in the step
    seconds_rollout, seconds_reward, seconds_learning
    held_out_…             after an evaluation, see `evaluation_figures`
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from training.contract import ContractError
from training.contract.checkpoint import CheckpointKind
from training.contract.files import canonical_json
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.run import SAMPLES_FILE, WATCH_MARK, RunSpec
from training.contract.snapshot import read_prompts
from training.rlhf.loop.log_probabilities import Reference, placed_reference
from training.rlhf.loop.method import start_adapter
from training.rlhf.loop.run import RunResult, TrainingRun, counts_by_reason
from training.rlhf.loop.training_loop import SKIPPED_IN_A_ROW, SteppingLoop, StepResult, examples_of_step
from training.rlhf.measures.calibration import cluster_bootstrap
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.actor import VALUE, LanguageActor, Models
from training.rlhf.policy_gradient.credit import Credit, CreditAssignment, EpisodeBatch, earned_the_same
from training.rlhf.policy_gradient.credit import figures as credit_figures
from training.rlhf.policy_gradient.guard import (
    KL,
    LENGTH,
    REWARD,
    SPREAD,
    Guard,
    GuardedRun,
    Watch,
    held_out_figure,
    part_figure,
    spacing_of,
)
from training.rlhf.policy_gradient.rollout_servers import BatchRequest, Drawn, ServedPolicy
from training.rlhf.policy_gradient.sampling import (
    Prompts,
    RolloutPrompt,
    Sampled,
    make_episodes,
    read_to_answer,
    seeds_of_step,
    staleness_figures,
    token_places,
)
from training.rlhf.policy_gradient.teacher import ServedTeacher
from training.rlhf.policy_gradient.update import Clock, OptimizerSteps, evaluated_once, update_policy
from training.rlhf.policy_gradient.world import World
from training.rlhf.rewards.combination import Combination, Combined, build_rewards
from training.rlhf.rewards.protocol import Score
from training.rlhf.rollout.generate import StaticShapes, rollout, shapes_for
from training.rlhf.rollout.samples import Sample
from training.rlhf.runtime.processes import Processes, Share
from training.rlhf.runtime.run_folder import RunFolder, log, seed_step
from training.rlhf.runtime.stopping import StoppedError, StopRequest
from training.rlhf.sampling import SamplingParameters
from training.rlhf.spans import Stretch


class PolicyGradient:
    """Models, rewards and state of a policy-gradient run.

    Policy, value head, reward models and reference are adapters on one backbone. The reference is that of
    the settings, see `Reference`; where no divergence is paid for there is none. The value head
    reads an adapter of its own, shaped like the policy's, and says 0 before it has learned; it is saved with
    the run's state and is no part of the checkpoint.
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"

    def __init__(
        self,
        backbone: Backbone,
        spec: RunSpec,
        settings: PolicyGradientSettings,
        *,
        folder: Path,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`folder` is the run's, where relative paths of reward models begin. cancelled: whether the run was
        asked to stop."""
        self.settings = settings
        start_adapter(backbone, self.adapter, spec, settings.trained)
        self.models = Models(
            policy=self.adapter,
            value=VALUE if settings.advantage.kind == "gae" else None,
            reference=Reference(backbone, spec, settings.trained).adapter
            if self.asks_reference and settings.teacher is None
            else None,
        )
        if self.models.value is not None:
            backbone.add_adapter(VALUE, settings.lora, seed=spec.seed)
            backbone.add_head(VALUE, VALUE, seed=spec.seed, scale=0.0)
        self.world: World | None = None
        self.rewards: Combination | None = None
        if settings.environment is not None:
            self.world = World(settings, backbone.tokenizer, folder)
        else:
            self.rewards = build_rewards(
                settings.rewards,
                backbone=backbone,
                folder=folder,
                clip=settings.reward_clip,
                context=settings.context,
                cancelled=cancelled,
            )
        self.watched: Combination | None = None
        if settings.watch.held_out:
            self.watched = build_rewards(
                settings.watch.held_out,
                backbone=backbone,
                folder=folder,
                context=settings.context,
                cancelled=cancelled,
            )
        self.teacher: ServedTeacher | None = None
        if settings.teacher is not None:
            self.teacher = ServedTeacher(settings.teacher, backbone.tokenizer, cancelled=cancelled)
        self.credit = CreditAssignment(
            settings.advantage, settings.kl, distils=settings.update.loss == "distil"
        )
        self.watch = Watch(
            settings.watch,
            weights={part.name: part.weight for part in settings.rewards},
            kl_budget=settings.kl.budget,
        )
        self.guard: Guard | None = None
        """Set where the settings have one, once the run's steps are known."""

    @property
    def asks_reference(self) -> bool:
        """Return whether anything depends on the reference."""
        return self.settings.kl.place != "none"

    @property
    def reports_base(self) -> bool:
        """Return whether to report the divergence from the base: always under an adapter, which holds it
        anyway; under full fine-tuning only where it is the reference, as it costs memory."""
        return self.settings.adapter == "lora"

    @property
    def adapters(self) -> Mapping[str, float]:
        """Return the value adapter and its pace."""
        return {} if self.models.value is None else {self.models.value: self.settings.update.value_pace}

    def to_json(self) -> dict[str, Any]:
        """Running means, β, and what the watch has seen."""
        state: dict[str, Any] = {"credit": self.credit.state_dict()}
        if self.rewards is not None:
            state |= {"rewards": self.rewards.state_dict()}
        state |= {"watch": self.watch.state_dict()}
        if self.guard is not None:
            state |= {"guard": self.guard.state_dict()}
        return state | ({"watched": self.watched.state_dict()} if self.watched else {})

    def load(self, values: Mapping[str, Any]) -> None:
        """Go on where `to_json` was taken."""
        self.credit.load_state_dict(values["credit"])
        if self.rewards is not None:
            self.rewards.load_state_dict(values["rewards"])
        self.watch.load_state_dict(values["watch"])
        if self.guard is not None:
            self.guard.load_state_dict(values["guard"])
        if self.watched is not None:
            self.watched.load_state_dict(values["watched"])

    def close(self) -> None:
        """End what the rewards and the teacher keep open."""
        for served in (self.rewards, self.watched, self.teacher):
            if served is not None:
                served.close()


def part_figures(combined: Combined, watched: Combined | None) -> dict[str, float]:
    """Mean score of each part of the reward, and of each that is watched; a part without any is left out."""
    figures = {part_figure(name): _mean(scores) for name, scores in combined.parts.items()}
    if watched is not None:
        figures |= {held_out_figure(name): _mean(scores) for name, scores in watched.parts.items()}
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def sample_figures(sampled: Sampled, totals: Sequence[Score]) -> dict[str, float]:
    """Mean reward of the answers that were scored, NaN where none was; lengths; how many were cut off."""
    lengths = sampled.lengths
    return {
        REWARD: _mean(totals),
        LENGTH: sum(lengths) / len(lengths),
        "unfinished": sum(sampled.unfinished) / len(lengths),
        "tokens": float(sum(lengths)),
        "answers": float(len(lengths)),
    }


def head_spread(combined: Combined, group: Sequence[int]) -> dict[str, float]:
    """Return the disagreement of an ensemble on the answers to one prompt, the mean; empty without one.

    A member's scores are taken less their mean over the prompt's answers: nothing fixes their zero.
    """
    by_group: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for name, scores in combined.parts.items():
        for score, number in zip(scores, group, strict=True):
            if score.members:
                by_group.setdefault((name, number), []).append(score.members)
    deviations = []
    for rows in by_group.values():
        of_members = np.array(rows)
        margins = of_members - of_members.mean(axis=0)
        deviations += margins.std(axis=1).tolist()
    return {SPREAD: math.fsum(deviations) / len(deviations)} if deviations else {}


def worth(score: Score) -> float:
    """Return a completion's total reward: its value and its segments'."""
    return score.value + math.fsum(segment.value for segment in score.segments)


def _mean(scores: Sequence[Score]) -> float:
    values = [worth(score) for score in scores if score.scored]
    return math.fsum(values) / len(values) if values else math.nan


_PROMPTS = 4
"""Prompts of a step with a recorded sample."""
_DIGITS = 5


class SamplesFile:
    """Writes the samples of a run, step by step."""

    def __init__(self, folder: RunFolder, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._path = folder.path / SAMPLES_FILE
        self._writes = folder.writes

    def trim(self, step: int) -> None:
        """Forget what was written after `step` steps: it is drawn again."""
        if not self._writes or not self._path.is_file():
            return
        lines = []
        for line in self._path.read_text(encoding="utf-8").splitlines(keepends=True):
            # A last line may be torn; what comes after it was never written.
            if not line.endswith("\n") or json.loads(line)["step"] > step:
                break
            lines.append(line)
        self._path.write_text("".join(lines), encoding="utf-8")

    def write(
        self, step: int, sampled: Sampled, combined: Combined, episodes: EpisodeBatch, credit: Credit
    ) -> None:
        """Append samples of `step`: one of each of a few prompts, which their seeds choose."""
        if not self._writes:
            return
        first = {group: row for row, group in reversed(list(enumerate(sampled.group)))}
        chosen = sorted(first.values(), key=lambda row: sampled.samples[row].seed)[:_PROMPTS]
        with self._path.open("a", encoding="utf-8") as stream:
            for row in chosen:
                places = token_places(sampled.samples[row], self._tokenizer)
                line = _line(row, places, sampled, combined, episodes, credit)
                stream.write(canonical_json({"step": step, **line}) + "\n")


def _line(
    row: int,
    places: Sequence[Stretch],
    sampled: Sampled,
    combined: Combined,
    episodes: EpisodeBatch,
    credit: Credit,
) -> dict[str, Any]:
    prompt, sample, score = sampled.prompts[row], sampled.samples[row], combined.totals[row]
    columns = {"reward": episodes.rewards, "advantage": credit.advantages}
    drawn, reference = episodes.drawn_logp, episodes.ref_logp
    if drawn is not None:
        columns["logp"] = drawn
        if reference is not None:
            trainer = episodes.trainer_logp
            columns["kl"] = (drawn if trainer is None else trainer) - reference
    numbers = {name: values[row].tolist() for name, values in columns.items()}
    version = {"version": sampled.versions[row]} if sampled.versions else {}
    return {
        **version,
        "prompt": prompt.id,
        "message": prompt.chat[-1].content,
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "reward": _worth(score),
        "reason": score.reason,
        "parts": {name: _worth(scores[row]) for name, scores in combined.parts.items()},
        "tokens": [
            {
                "text": sample.text[start:end],
                "kl": None,
                **{name: _rounded(values[index]) for name, values in numbers.items()},
            }
            for index, (start, end) in enumerate(places)
        ],
    }


def _worth(score: Score) -> float | None:
    return _rounded(worth(score)) if score.scored else None


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None


def evaluation_figures(
    sampled: Sampled, combined: Combined, watched: Combined | None, divergence: Tensor | None
) -> dict[str, float]:
    """The figures above, of one answer to each prompt. divergence: (B,) nats; None without a reference.

        held_out_reward        mean over the prompts whose answer was scored, with _low and _high
        held_out_reward/NAME   the same of one part of the reward
        held_out_watched/NAME  the same of a reward that is not trained for
        held_out_length        mean tokens of an answer, with _low and _high
        held_out_kl            nats per answer from the reference, over the whole vocabulary before each
                               token of the greedy answer, with _low and _high; where a reference is asked for
        held_out_unfinished, held_out_unscored   shares of the answers
        held_out_prompts       how many there were
        held_out_loss          −held_out_reward: what the best state has least of

    Intervals are of 95 %, by resampling prompts.
    """
    totals = combined.totals
    scored = [index for index, score in enumerate(totals) if score.scored]
    of_samples = sample_figures(sampled, totals)
    figures = {"unfinished": of_samples["unfinished"], "prompts": float(len(totals))}
    figures["unscored"] = 1 - len(scored) / len(totals)
    ids = [prompt.id for prompt in sampled.prompts]
    figures |= _interval(REWARD, [worth(totals[index]) for index in scored], [ids[index] for index in scored])
    figures |= _interval(LENGTH, [float(length) for length in sampled.lengths], ids)
    if divergence is not None:
        figures |= _interval("kl", divergence.double().tolist(), ids)
    if scored:
        figures["loss"] = -figures[REWARD]
    figures |= part_figures(combined, watched)
    return {f"held_out_{name}": value for name, value in figures.items()}


def _interval(name: str, values: Sequence[float], prompts: Sequence[str]) -> dict[str, float]:
    if not values:
        return {}
    estimate = cluster_bootstrap(values, prompts)
    result = {name: estimate.mean}
    if estimate.low is not None and estimate.high is not None:
        result |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return result


_UPDATE_STREAM = 4
"""Keeps the order of minibatches apart from all else that is drawn from the run's seed."""


_REDRAW_STREAM = 5
"""Keeps the choice of prompts that are drawn in place of others apart from the rest."""


class _Drawn(NamedTuple):
    """The answers of a step, and what they earned."""

    sampled: Sampled
    combined: Combined
    watched: Combined | None
    episodes: EpisodeBatch


class _Learned(NamedTuple):
    """Result of a step's update."""

    figures: dict[str, float]
    episodes: EpisodeBatch
    credit: Credit
    finite: bool


def compared_by_first(episodes: EpisodeBatch) -> EpisodeBatch:
    """Return the episodes with divergences to be estimated from the first answer to each prompt alone.

    The best and the worst would be a biased sample of the policy's answers.
    """
    first = torch.zeros_like(episodes.scored, dtype=torch.bool)
    first[[rows[0] for rows in episodes.groups]] = True
    return dataclasses.replace(episodes, compared=first)


class SamplingLoop(SteppingLoop):
    """Learns from samples: a step is a batch of prompts, each answered several times."""

    def __init__(
        self,
        *,
        backbone: Backbone,
        method: PolicyGradient,
        prompts: Prompts,
        spec: RunSpec,
        folder: RunFolder,
        stop: StopRequest,
        processes: Processes,
        served: ServedPolicy | None = None,
    ) -> None:
        """served: who draws the answers that are learned from, which the first process asks; None where the
        processes draw them, each those of its prompts."""
        self._share = Share(processes)
        self._method = method
        self._served = served
        self._prompts = prompts
        self._own: PolicyGradientSettings = method.settings
        super().__init__(
            backbone=backbone,
            adapter=method.adapter,
            examples=len(prompts.train),
            spec=spec,
            folder=folder,
            stop=stop,
            processes=processes,
            method=method,
        )
        self._sampler = sampling_parameters(self._own)
        self._micro_batch_tokens = self._settings.micro_batch_tokens
        self._rows: int | None = None
        self._shapes: StaticShapes | None = None
        if self._own.rollout.cuda_graphs == "auto":
            answers = -(-self._settings.batch_size // processes.world) * self._own.rollout.samples
            self._shapes = shapes_for(backbone, rows=answers, width=self._own.max_tokens)
        self._samples = SamplesFile(folder, backbone.tokenizer)
        self._guarded = self._guarded_run() if self._own.guard else None
        self._told: set[str] = set()
        self._scoreless_steps = 0
        """Steps up to this one, in a row, without a single score."""

    def _guarded_run(self) -> GuardedRun | None:
        """Return the guard of the run; None where all weights are trained."""
        settings, spacing = self._own.guard, spacing_of(self.total_steps)
        if settings is None or self._backbone.is_whole(self._method.adapter):
            return None
        self._method.guard = Guard(settings, spacing=spacing)
        return GuardedRun(
            guard=self._method.guard,
            minutes=settings.minutes,
            spacing=spacing,
            prompts=self._prompts.train,
            seed=self._seed,
            sampling={
                "temperature": self._sampler.temperature,
                "top_p": self._sampler.top_p,
                "top_k": self._sampler.top_k,
                "max_tokens": self._sampler.max_tokens,
            },
            sample=self._one_answer_each,
            backbone=self._backbone,
            adapter=self._method.adapter,
            folder=self._folder,
            processes=self._processes,
            check=self._check_all,
            save=self._save,
        )

    def _resume(self) -> int:
        step = super()._resume()
        self._samples.trim(step)
        return step

    def _is_over(self, step: int) -> bool:
        if self._guarded is not None:
            self._guarded.look(step, is_last=super()._is_over(step))
        return super()._is_over(step)

    @property
    def _given_up(self) -> bool:
        guard = self._method.guard
        is_ended = guard is not None and guard.result_step is not None
        return super()._given_up or self._method.watch.stop or is_ended

    def _chosen(self, step: int, held_out: dict[str, float]) -> tuple[int, dict[str, float]]:
        """Return the state that the guard went back to, where it ended the run."""
        result = None if self._guarded is None else self._guarded.put_back()
        if result is None:
            return super()._chosen(step, held_out)
        return result, self._evaluate(result)

    def _learn(self, step: int, rate: float) -> StepResult:
        before = self._method.to_json()
        try:
            return self._sample_and_learn(step, rate)
        except StoppedError:
            # The step is given up: what it has counted so far is not to be counted again.
            self._method.load(before)
            raise

    def _sample_and_learn(self, step: int, rate: float) -> StepResult:
        seed_step(self._seed, step, rank=0)
        clock = Clock()
        prompts = self._prompts_of(step)
        sampled = self._drawn(step, prompts)
        clock.lap("seconds_rollout")
        combined, watched = self._scored(sampled)
        self._refuse_scoreless(step, combined)
        clock.lap("seconds_reward")
        episodes = self._episodes(sampled, combined)
        redrawn: dict[str, float] = {}
        if self._own.rollout.redraws:
            drawn = _Drawn(sampled, combined, watched, episodes)
            (sampled, combined, watched, episodes), redrawn = self._redrawn(step, prompts, drawn, clock)
        learned = self._update(step, rate, sampled, episodes)
        clock.lap("seconds_learning")
        figures = {
            **sample_figures(sampled, combined.totals),
            **(self._method.world.figures(sampled) if self._method.world else {}),
            **redrawn,
            **staleness_figures(sampled, step),
            **part_figures(combined, watched),
            **head_spread(combined, sampled.group),
            **learned.figures,
            **clock.laps,
        }
        if self._served is not None:
            self._served.check(figures.get("sampler_gap", 0.0))
        for warning in self._method.watch.observe(step + 1, figures):
            log.warning("%s%s", WATCH_MARK, warning)
        if self._method.watch.is_spent:
            log.info(
                "Step %d: %.1f nats from the reference, and %g may be spent",
                *(step + 1, figures[KL], self._own.kl.budget),
            )
        if self._guarded is not None and learned.finite:
            rewards = [worth(score) for score in combined.totals if score.scored]
            self._guarded.guard.observe(step + 1, figures, rewards)
        self._samples.write(step + 1, sampled, combined, learned.episodes, learned.credit)
        summary = f"reward {figures[REWARD]:.4f}, {figures[LENGTH]:.1f} tokens an answer"
        return StepResult(figures, summary, learned.finite)

    def _episodes(self, sampled: Sampled, combined: Combined) -> EpisodeBatch:
        return make_episodes(
            sampled,
            combined.totals,
            tokenizer=self._backbone.tokenizer,
            device=self._backbone.device,
            settings=self._own.rollout,
        )

    def _redrawn(
        self, step: int, prompts: Sequence[RolloutPrompt], drawn: _Drawn, clock: Clock
    ) -> tuple[_Drawn, dict[str, float]]:
        """Return the step's answers with other prompts in place of those whose answers all earned the same,
        as often as the settings say, and the number of prompts that were drawn for it.

        Which prompts follows from seed, step and attempt alone, so that a resumed run draws the same.
        """
        taken, redrawn = {prompt.id for prompt in prompts}, 0
        for attempt in range(self._own.rollout.redraws):
            useless = earned_the_same(drawn.episodes)
            left = [prompt for prompt in self._prompts.train if prompt.id not in taken]
            if not any(useless) or not left:
                break
            order = np.random.default_rng([self._seed, _REDRAW_STREAM, step, attempt]).permutation(len(left))
            others = [left[index] for index in order[: sum(useless)].tolist()]
            taken |= {prompt.id for prompt in others}
            redrawn += len(others)
            seeds = seeds_of_step(others, step, seed=self._seed)
            sampled = self._answered(others, self._sampler, n=self._own.rollout.samples, seeds=seeds)
            clock.lap("seconds_rollout")
            combined, watched = self._scored(sampled)
            # With too few prompts left some that teach nothing stay, and the step keeps its size.
            gone = set([number for number, is_useless in enumerate(useless) if is_useless][: len(others)])
            rows = [row for row, number in enumerate(drawn.sampled.group) if number not in gone]
            sampled = drawn.sampled.joined(rows, sampled)
            combined = drawn.combined.joined(rows, combined)
            if drawn.watched is not None and watched is not None:
                watched = drawn.watched.joined(rows, watched)
            drawn = _Drawn(sampled, combined, watched, self._episodes(sampled, combined))
            clock.lap("seconds_reward")
        return drawn, {"redrawn": float(redrawn)}

    def _drawn(self, step: int, prompts: Sequence[RolloutPrompt]) -> Sampled:
        """Return the answers that a step learns from."""
        if self._own.rollout.server is None:
            n, seeds = self._own.rollout.samples, seeds_of_step(prompts, step, seed=self._seed)
            return self._answered(prompts, self._sampler, n=n, seeds=seeds)
        drawn: Drawn | None = None
        if self._served is not None:
            drawn = self._served.drawn(
                step, self._request, last=self.total_steps, stopped=lambda: bool(self._stop.reason)
            )
        drawn = self._processes.gather_objects(drawn)[0]
        self._check_all()
        assert drawn is not None  # noqa: S101 - else there was a reason to stop
        return Sampled.of(prompts, drawn.samples, version=drawn.version)

    def _request(self, step: int) -> BatchRequest:
        """Return the batch of a step as a server is asked for it."""
        prompts = self._prompts_of(step)
        seeds = seeds_of_step(prompts, step, seed=self._seed)
        return BatchRequest(
            [prompt.ids for prompt in prompts], self._sampler, self._own.rollout.samples, seeds
        )

    def _prompts_of(self, step: int) -> list[RolloutPrompt]:
        return examples_of_step(self._prompts.train, step, seed=self._seed, settings=self._settings)

    def _one_answer_each(self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int]) -> list[Sample]:
        return self._answered(prompts, self._sampler, n=1, seeds=seeds).samples

    def _answered(
        self, prompts: Sequence[RolloutPrompt], sampler: SamplingParameters, *, n: int, seeds: Sequence[int]
    ) -> Sampled:
        """Return the policy's answers, of which each process draws its share."""
        mine = self._share.rows(range(len(prompts)))
        drawn = self._rollout(
            [prompts[number] for number in mine], sampler, n=n, seeds=[seeds[number] for number in mine]
        )
        # All stop or none: an answer that was broken off is not to be learned from.
        self._check_all()
        return Sampled.of(prompts, self._share.merged(mine, drawn))

    def _rollout(
        self, prompts: Sequence[RolloutPrompt], sampler: SamplingParameters, *, n: int, seeds: Sequence[int]
    ) -> list[list[Sample]]:
        """Draw answers. Where memory runs out fewer are written at a time."""
        while True:
            try:
                if self._method.world is not None:
                    return [
                        list(some)
                        for some in self._method.world.play(
                            self._backbone,
                            prompts,
                            sampler,
                            n=n,
                            seeds=seeds,
                            max_tokens=self._own.max_tokens,
                            adapter=self._method.adapter,
                            cancelled=lambda: bool(self._stop.reason),
                            max_rows=self._rows,
                        )
                    ]
                return rollout(
                    self._backbone,
                    [prompt.ids for prompt in prompts],
                    sampler,
                    n=n,
                    adapter=self._method.adapter,
                    seeds=seeds,
                    cancelled=lambda: bool(self._stop.reason),
                    max_rows=self._rows,
                    shapes=self._shapes,
                )
            except torch.OutOfMemoryError:
                if self._shapes is not None:
                    self._shapes = None
                    log.warning("Out of memory: answers are written without CUDA graphs from here on")
                    continue
                rows = min(self._rows or n * len(prompts), n * len(prompts))
                if rows == 1:
                    raise
                self._rows = rows // 2
                log.warning(
                    "Out of memory: at most %d answers are written at a time from here on", self._rows
                )

    def _scored(self, sampled: Sampled) -> tuple[Combined, Combined | None]:
        """Score samples by the rewards and the watched rewards; log each reason for a missing score once."""
        if self._method.rewards is not None:
            combined = sampled.scored_by(self._method.rewards, self._share)
        else:
            assert self._method.world is not None  # noqa: S101 - one of both pays
            combined = self._method.world.scored(sampled)
        watched = sampled.scored_by(self._method.watched, self._share) if self._method.watched else None
        # Before the reasons are told: what a stop left unscored is nobody's fault.
        self._check_all()
        for name, scores in {**combined.parts, **(watched.parts if watched else {})}.items():
            for reason in {score.reason for score in scores if not score.scored} - self._told:
                self._told.add(reason)
                log.warning("The reward %r cannot score some answers: %s", name, reason)
        return combined, watched

    def _refuse_scoreless(self, step: int, combined: Combined) -> None:
        """Raise `ContractError` where no completion of the first step, or of several in a row, has a score,
        and where a part of the reward raised for every completion of the first step."""
        scoreless = not any(score.scored for score in combined.totals)
        self._scoreless_steps = self._scoreless_steps + 1 if scoreless else 0
        first = step == 0
        if scoreless and (first or self._scoreless_steps >= SKIPPED_IN_A_ROW):
            steps = "the first step" if first else f"the last {self._scoreless_steps} steps"
            raise ContractError(
                f"no completion of {steps} has a score: {_listed(combined.totals)}; mend the reward, then "
                "start again"
            )
        for name, scores in combined.parts.items() if first else ():
            rewards = self._method.rewards
            raised = rewards is None or bool(rewards.failures[name])
            silent = not any(score.scored for score in scores)
            if silent and self._processes.any(raised, self._backbone.device):
                raise ContractError(
                    f"the reward {name!r} raised for every completion of the first step: {_listed(scores)}; "
                    "mend it, then start again"
                )

    def _update(self, step: int, rate: float, sampled: Sampled, episodes: EpisodeBatch) -> _Learned:
        """Return log-probabilities, credit, and the optimiser's steps."""
        policy, credit_of = self._own, self._method.credit
        self._backbone.checkpoint_activations(self._settings.gradient_checkpointing)
        actor = self._actor(sampled)
        credit: Credit | None = None
        if policy.update.loss == "dpo" and not self._looks_before:
            # The other answers were drawn to find the best and the worst, and cost no pass.
            credit = credit_of.assign(episodes)
            episodes = compared_by_first(episodes)
        episodes = self._compared(actor, sampled, episodes, credit)
        if self._looks_before:
            episodes = self._evaluated_once(actor, episodes)
            if actor.is_plain:
                # The same passes: no need of another one.
                episodes = dataclasses.replace(episodes, trainer_logp=episodes.old_logp)
        self._check_all()
        credit = credit or credit_of.assign(episodes)
        figures = credit_figures(episodes, credit) | {"beta": credit_of.beta}
        steps = OptimizerSteps(
            self._trained_parameters,
            self._settings.max_gradient_norm,
            lambda: self._apply(rate),
            self._processes.sum_gradients,
        )
        self._optimiser.zero_grad(set_to_none=True)
        updated = update_policy(
            actor,
            episodes,
            credit,
            settings=policy.update,
            kl=policy.kl,
            beta=credit_of.beta,
            constant=float(policy.rollout.max_tokens),
            only_value=step < policy.update.value_warmup_steps,
            step=steps,
            backward=self._backbone.backward,
            seed=int(np.random.SeedSequence([self._seed, _UPDATE_STREAM, step]).generate_state(1)[0]),
            # Once the weights have moved the step is carried through: half of one cannot be saved.
            check=lambda: None if steps.taken else self._check_this(),
            share=self._share,
        )
        self._backbone.checkpoint_activations(False)
        self._micro_batch_tokens = actor.tokens
        credit_of.observe(episodes)
        if not updated.steps and not updated.skipped:
            log.info("Step %d: all answers to a prompt earned the same; there was nothing to learn", step + 1)
        figures |= {"entropy": _entropy(episodes)} | updated.figures
        return _Learned(figures, episodes, credit, finite=bool(updated.steps or not updated.skipped))

    def _evaluated_once(self, actor: LanguageActor, episodes: EpisodeBatch) -> EpisodeBatch:
        """Return the episodes with what policy and value head say of them before the update."""
        rows = self._share.rows(episodes.group.tolist())
        mine = actor.within_memory(lambda: evaluated_once(actor, episodes, rows))
        # A process without a prompt of this step has evaluated nothing.
        nothing = torch.zeros(episodes.mask.shape, device=episodes.mask.device)
        values: Tensor | None = None
        if self._method.models.value is not None:
            values = self._share.filled(nothing.clone() if mine.old_values is None else mine.old_values)
        logp = self._share.filled(nothing if mine.old_logp is None else mine.old_logp)
        return dataclasses.replace(episodes, old_logp=logp, old_values=values)

    def _compared(
        self, actor: LanguageActor, sampled: Sampled, episodes: EpisodeBatch, credit: Credit | None
    ) -> EpisodeBatch:
        """The episodes with what reference, base and the policy itself make of them, all by the same passes
        and without filters: where nothing was learned yet, the divergence is exactly 0.

        credit: where it is known already, of the answers that are neither compared nor learned from nothing
        is asked.
        """
        seen = of_reference = None
        if credit is not None and episodes.compared is not None:
            learned = (credit.advantages != 0).any(-1)
            seen = torch.nonzero(episodes.compared).flatten().tolist()
            of_reference = torch.nonzero(episodes.compared | learned).flatten().tolist()
        reference: Tensor | None = None
        teacher = self._method.teacher
        if teacher is not None:
            reference = self._taught(teacher, sampled, episodes)
        elif self._method.asks_reference:
            reference = actor.reference_log_probabilities(of_reference)
        base = reference
        if teacher is not None or self._method.models.reference is not None or reference is None:
            base = actor.base_log_probabilities(seen) if self._method.reports_base else None
        trainer: Tensor | None = None
        compares = base is not None or reference is not None
        if compares and not (self._looks_before and actor.is_plain):
            trainer = actor.unfiltered_log_probabilities(seen)
        return dataclasses.replace(episodes, ref_logp=reference, base_logp=base, trainer_logp=trainer)

    def _taught(self, teacher: ServedTeacher, sampled: Sampled, episodes: EpisodeBatch) -> Tensor:
        """(B, T) log p of all drawn tokens by the teacher, which each process asks about its prompts."""
        rows, answers = self._share.rows(sampled.group), sampled.answers
        columns = teacher.log_probabilities([answers[row] for row in rows])
        self._check_all()
        assert columns is not None  # noqa: S101 - else there was a reason to stop
        values = torch.zeros(episodes.mask.shape)
        for row, of_answer in zip(rows, columns, strict=True):
            values[row, : len(of_answer)] = torch.tensor(of_answer)
        return self._share.filled(values.to(episodes.mask.device))

    def _actor(self, sampled: Sampled) -> LanguageActor:
        return LanguageActor(
            self._backbone,
            self._method.models,
            answers=sampled.answers,
            group=sampled.group,
            parameters=self._sampler,
            tokens=self._micro_batch_tokens,
            entropy=self._own.update.entropy > 0,
            full_kl=self._own.kl.place == "loss" and self._own.kl.kind == "full",
            share=self._share,
        )

    @property
    def _looks_before(self) -> bool:
        """Return whether log-probabilities or values are needed before the update's first pass."""
        run = self._own
        return run.update.minibatches > 1 or run.advantage.kind == "gae" or run.kl.place == "reward"

    @property
    def _trained_parameters(self) -> list[list[nn.Parameter]]:
        """Return policy and value parameters: each group is clipped by itself."""
        names = [self._method.adapter, *self._method.adapters]
        return [list(self._backbone.parameters(name).values()) for name in names]

    @torch.no_grad()
    def _evaluate(self, step: int) -> dict[str, float]:
        """Held-out prompts, answered greedily."""
        prompts = self._prompts.held_out[: self._own.evaluation_prompts]
        if not prompts:
            return {}
        greedy = dataclasses.replace(self._sampler, temperature=0.0, top_p=1.0, top_k=0)
        sampled = self._answered(prompts, greedy, n=1, seeds=[0] * len(prompts))
        scorers = [rewards for rewards in (self._method.rewards, self._method.watched) if rewards]
        for rewards in scorers:
            rewards.learning = False
        combined, watched = self._scored(sampled)
        for rewards in scorers:
            rewards.learning = True
        divergence: Tensor | None = None
        # A teacher on a server tells drawn tokens alone.
        if self._method.asks_reference and self._method.teacher is None:
            divergence = self._actor(sampled).full_divergence().sum(-1)
        figures = evaluation_figures(sampled, combined, watched, divergence)
        if self._method.world is not None:
            of_world = self._method.world.figures(sampled)
            figures |= {f"held_out_{name}": value for name, value in of_world.items()}
        self._report(step, figures, {})
        return figures


def _listed(scores: Sequence[Score]) -> str:
    """Return the most frequent reasons of missing scores, with their counts."""
    reasons = Counter(score.reason for score in scores)
    return "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(3))


def sampling_parameters(settings: PolicyGradientSettings) -> SamplingParameters:
    """Return a run's sampling parameters, without seeds."""
    drawn = settings.rollout
    return SamplingParameters(
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        top_k=drawn.top_k,
        max_tokens=drawn.max_tokens,
        stop=drawn.stop,
    )


def _entropy(episodes: EpisodeBatch) -> float:
    """−log μ, the mean over drawn tokens: an estimate of the sampler's entropy."""
    drawn = episodes.drawn_logp
    return math.nan if drawn is None else float(-drawn[episodes.mask].double().mean())


def train_on_samples(run: TrainingRun) -> RunResult:
    """Train to the end. Several processes divide the prompts of a step, see `Share`."""
    backbone, spec, folder, processes = run.backbone, run.spec, run.folder, run.processes
    settings = cast("PolicyGradientSettings", spec.settings)
    folder.tell("starting", "reading the prompts")
    from_snapshot: Prompts | None = None
    if settings.environment is None:
        from_snapshot = read_to_answer(read_prompts(run.snapshot), backbone.tokenizer, settings)
    method = PolicyGradient(
        backbone,
        placed_reference(spec, folder.path),
        settings,
        folder=folder.path,
        cancelled=lambda: bool(run.stop.reason),
    )
    prompts = method.world.prompts(settings) if method.world else from_snapshot
    assert prompts is not None  # noqa: S101 - of one or the other
    dropped = [
        {"judgment": entry["prompt"], "completion": "", "reason": entry["reason"]}
        for entry in prompts.dropped
    ]
    folder.list_dropped(dropped)
    _tell_of_prompts(prompts, settings)
    served: ServedPolicy | None = None
    try:
        if settings.rollout.server is not None and processes.first:
            served = ServedPolicy(backbone, method.adapter, spec, settings.rollout.server, run=folder.path)
        loop = SamplingLoop(
            backbone=backbone,
            method=method,
            prompts=prompts,
            spec=spec,
            folder=folder,
            stop=run.stop,
            processes=processes,
            served=served,
        )
        log.info("Training %s on %s, %d steps", spec.method, backbone.device, loop.total_steps)
        # Those of the steps are not among them: a resumed run does not see them again.
        warnings = list(folder.warnings)
        steps, held_out = loop.run()
    finally:
        method.close()
        if served is not None:
            served.close()
    summary = f"{steps} steps on {len(prompts.train)} prompts"
    return RunResult(method.adapter, method.kind, steps, held_out, dropped, warnings, summary)


def _tell_of_prompts(prompts: Prompts, settings: PolicyGradientSettings) -> None:
    log.info("%d prompts to train on, %d held out", len(prompts.train), len(prompts.held_out))
    for reason, count in counts_by_reason(prompts.dropped).items():
        log.info("Left out, %d times: %s", count, reason)
    if not prompts.held_out and settings.evaluation_prompts:
        log.warning("No prompt is held out: there are no held-out figures, and no best state is chosen")
    if prompts.shortened:
        log.warning(
            "%d prompts were longer than max_tokens (%d) less the answer's (%d) allows and lost their "
            "beginning",
            prompts.shortened,
            settings.max_tokens,
            settings.rollout.max_tokens,
        )
