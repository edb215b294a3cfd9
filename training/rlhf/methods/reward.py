"""Reward models: an adapter with one head for each thing that people were asked (Bradley & Terry 1952)."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.contract import ContractError
from training.contract.checkpoint import CheckpointKind
from training.contract.methods.common import LoraSettings
from training.contract.methods.reward import STEPS, RewardSettings
from training.contract.run import EvaluationReport, RunSpec, write_evaluation
from training.contract.snapshot import read_snapshot
from training.contract.validation import (
    ADAPTER_FROM,
    BASELINES_KEY,
    CHOICE_KEY,
    PEOPLE_KEY,
    BaselineReport,
    RewardChoice,
    RewardModelValidation,
    validation_from_figures,
)
from training.rlhf.loop.method import Outcome, Trained, TrainingMethod, start_adapter
from training.rlhf.loop.run import (
    RunResult,
    TrainingRun,
    compared,
    examples_of_run,
    made_method,
    rows_of_part,
    train_on_judgments,
)
from training.rlhf.loop.training_loop import evaluate
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.features import FeatureCache, Values, pooled, preferred_place, text_features
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.measures.people import PooledScore
from training.rlhf.methods.baselines import (
    MOST_HELD_OUT,
    MOST_TRAINED_ON_FEATURES,
    FrozenHead,
    choice_beside_adapter,
    choose_head,
    comparable,
    compare_with_baselines,
    figures_of_baselines,
    fit_frozen_head,
    fit_members,
    fit_to_text,
    install_head,
    report_to_json,
    surface_tables,
)
from training.rlhf.methods.objectives import Objective
from training.rlhf.methods.objectives.rankings import CompletenessObjective, PreferenceObjective
from training.rlhf.methods.objectives.ratings import RatingObjective
from training.rlhf.methods.objectives.segments import SegmentObjective, StepObjective
from training.rlhf.methods.people import (
    NO_DISCOUNT,
    Scores,
    choose_discount,
    fit_people,
    group_names,
    group_scores,
    install_people,
    people_to_json,
    report_people,
    says_of_people,
)
from training.rlhf.model.adapters import last_adapted_block
from training.rlhf.model.backbone import BOUNDS, SCORE, TEXT, Backbone, Place
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import Batch, pack, passes

# ── The last lines of a reward model's log: its held-out log-loss, and the baselines that it does not beat ──

_NAMES = {
    "constant": "a constant",
    "position": "position alone",
    "length": "length alone",
    "surface": "surface features",
    "frozen": "a head on frozen features",
}


_CANDIDATES = {**_NAMES, "adapter": "an adapter"}


def log_validation(figures: Mapping[str, float]) -> list[str]:
    """Log a reward model's validation; return the warnings among the lines. None without a held-out pair."""
    result = validation_from_figures(figures)
    if result is None:
        return []
    log.info("%s", _summary(result))
    warnings = [
        f"Worse than {_NAMES[name]}: held-out log-loss {result.log_loss:.3f} against {loss:.3f}"
        for name, loss in result.worse_than()
    ]
    for warning in warnings:
        log.warning("%s", warning)
    return warnings


def _summary(result: RewardModelValidation) -> str:
    line = (
        f"Validation on {result.decided} decided held-out judgments: accuracy {result.accuracy:.3f} "
        f"({result.low:.3f} to {result.high:.3f}), log-loss {result.log_loss:.3f}"
    )
    if result.scaled_log_loss is None:
        return f"{line}; too few held-out prompts for a temperature"
    scaled = f"{line}, {result.scaled_log_loss:.3f} with a temperature fitted to other prompts"
    return scaled if result.temperature is None else f"{scaled} (all together {result.temperature:.3g})"


class RewardModelling(TrainingMethod):
    """The sum of what its objectives cost, all read from one pass of the transformer."""

    kind: CheckpointKind = "reward"
    adapter = "reward"

    def __init__(
        self,
        backbone: Backbone,
        spec: RunSpec,
        settings: RewardSettings,
        *,
        cache: Path | None = None,
        chooses: bool = False,
    ) -> None:
        """chooses: among length, surface features and frozen ones; with an adapter, whether to keep that."""
        self._backbone = backbone
        self._settings = settings
        self._seed = spec.seed
        self._cache = cache
        self._continues = spec.parent is not None
        self._chooses = chooses
        self._choice: RewardChoice | None = None
        self._discount = NO_DISCOUNT
        self._pooled: PooledScore | None = None
        self._trained: frozenset[str] = frozenset()
        start_adapter(backbone, self.adapter, spec, _lora(spec, settings))
        self.start_is_candidate = settings.head_from == "frozen" and not self._continues
        self._objectives = _objectives(backbone, self.adapter, spec, settings)
        self.wanted = _used_labels(settings)

    def begin(self, train: Sequence[Example]) -> None:
        """Let every objective see what it will learn from; fit the head that begins on frozen features."""
        self._trained = frozenset(example.judgment for example in train)
        self._discount = choose_discount(
            self._settings,
            comparable(train, MOST_TRAINED_ON_FEATURES),
            self._preferred_features,
            whole=self._settings.loss == "plackett_luce",
        )
        if self._settings.head_from == "frozen" and not self._continues:
            self._begin_at(self.fit_at_once(comparable(train, MOST_TRAINED_ON_FEATURES)))
        if self._settings.keeps_head:
            self._backbone.freeze_head(self.adapter, SCORE)
        for objective in self._objectives:
            objective.begin(train)

    def fit_at_once(
        self, train: Sequence[Example], *, check: Callable[[], None] = lambda: None, writes: bool = True
    ) -> FrozenHead:
        """Make the score a linear head that is fitted to judgments; return it.

        It reads frozen features or the text, as the settings say or as cross-validation chooses.
        """
        features = self._features(writes=writes)
        settings, places = self._settings, (*features.places, TEXT)
        reads_states = settings.features not in ("surface", "length")
        try:
            table = features.features(train, check) if reads_states else self._text_table(train)
        finally:
            features.save()
        whole = settings.loss == "plackett_luce"
        train = self._discount.weighed(train)
        choices = choices_of(train, whole=whole, covariates=settings.covariates)
        if self._chooses and settings.features == "frozen":
            table = np.concatenate([table, self._text_table(train)], axis=1)
            head, self._choice = choose_head(
                table, train, places, whole=whole, covariates=settings.covariates
            )
        elif reads_states:
            head = fit_frozen_head(table, choices, features.places)
        else:
            head = fit_to_text(table, choices, (TEXT,), length=settings.features == "length")
        if settings.group_heads or settings.annotator_heads:
            head, self._pooled = fit_people(head, table, train, settings, whole=whole)
            install_people(
                self._backbone, self.adapter, self._pooled, table[:, head.column].mean(0, dtype=np.float64)
            )
        members = [head.score]
        if (count := settings.ensemble) > 1:
            members = fit_members(
                head,
                table,
                train,
                whole=whole,
                count=count,
                seed=self._seed,
                covariates=settings.covariates,
            )
        install_head(self._backbone, self.adapter, head, members, table)
        log.info(
            "The score reads %s; ridge strength %g, cross-validated log-loss %.4f; features of %d "
            "judgments computed, of %d kept",
            head.reads,
            head.score.strength,
            head.score.log_loss,
            features.computed,
            len(train) - features.computed if reads_states else 0,
        )
        return head

    @property
    def has_chosen(self) -> bool:
        """Return whether cross-validation chose what the score reads."""
        return self._choice is not None

    def _text_table(self, examples: Sequence[Example]) -> Values:
        """Return the surface features of all completions of judgments, (rows, 1, hidden)."""
        tables = [
            text_states(self._backbone, pack([example], device=self._backbone.device)) for example in examples
        ]
        return torch.cat(tables).unsqueeze(1).cpu().numpy()

    def _begin_at(self, head: FrozenHead) -> None:
        """Lay the adapter on blocks that the score reads: what lies above would learn nothing."""
        shape = self._backbone.lora_settings(self.adapter)
        if shape is not None and shape.last is None:
            read = replace(self._settings.lora, last=head.place.layer)
            self._backbone.reshape_adapter(self.adapter, read, seed=self._seed)

    def compare(self, trained: Trained) -> tuple[dict[str, float], dict[str, Any]]:
        """Compare the score with its baselines on the same held-out judgments."""
        if self._settings.loss == "none" or not any(example.pairs for example in trained.examples.held_out):
            return {}, self._chosen(None, trained)
        trained.tell("comparing with baselines")
        on_features = self._settings.features == "adapted" and self._cache is not None
        details = self._people(trained)
        report = compare_with_baselines(
            train=trained.examples.train,
            held_out=trained.examples.held_out,
            rows=trained.rows,
            scores=lambda examples: self._scores(examples, trained.check)[0],
            features=self._features(writes=trained.writes) if on_features else None,
            whole=self._settings.loss == "plackett_luce",
            check=trained.check,
        )
        details |= self._chosen(report, trained)
        if report is None:
            return {}, details
        return figures_of_baselines(report), details | {BASELINES_KEY: report_to_json(report)}

    def _chosen(self, report: BaselineReport | None, trained: Trained) -> dict[str, Any]:
        """Log the choice of the reward model, and return it as a detail."""
        if self._chooses and self._choice is None and report is not None:
            train = comparable(trained.examples.train)
            self._choice = choice_beside_adapter(
                report,
                improved=trained.steps > 0,
                judgments=len(train),
                prompts=len({example.prompt for example in train}),
            )
        if self._choice is None:
            return {}
        for place, entry in enumerate(self._choice.candidates, 1):
            log.info(
                "Candidate %d: %s, log-loss %.3f (%.3f to %.3f), accuracy %.3f%s",
                place,
                _CANDIDATES[entry.name],
                entry.log_loss.value,
                entry.log_loss.low or 0.0,
                entry.log_loss.high or 0.0,
                entry.accuracy.value,
                ", chosen" if entry.name == self._choice.chosen else "",
            )
        return {CHOICE_KEY: asdict(self._choice)}

    def _people(self, trained: Trained) -> dict[str, Any]:
        """Return what groups, drift and reliability change, on the same held-out judgments."""
        train = comparable(trained.examples.train)
        held_out = comparable(trained.examples.held_out, MOST_HELD_OUT)
        learned = self._pooled is not None or self._discount is not NO_DISCOUNT
        if not train or not held_out or not (learned or says_of_people(train)):
            return {}
        report = report_people(
            train=train,
            held_out=held_out,
            scores=self._scores(held_out, trained.check),
            surface=surface_tables(trained.rows(), (train, held_out)),
            discount=self._discount,
            pooled=self._pooled,
        )
        return {} if report is None else {PEOPLE_KEY: people_to_json(report)}

    def _preferred_features(self, examples: Sequence[Example]) -> Floats | None:
        """Return the frozen features of judgments at the preferred place; None without a cache."""
        if self._cache is None:
            return None
        features = self._features(writes=True)
        try:
            table = features.features(examples)
        finally:
            features.save()
        column = features.places.index(preferred_place(features.places))
        return table[:, column].astype(np.float64)

    def _features(self, *, writes: bool) -> FeatureCache:
        if self._cache is None:
            raise ContractError("head_from: frozen features need a folder for their cache")
        return FeatureCache(self._cache, self._backbone, writes=writes)

    @torch.no_grad()
    def _scores(self, examples: Sequence[Example], check: Callable[[], None]) -> Scores:
        """Return the scores of all completions of judgments, in order, and each group's."""
        scores: list[float] = []
        by_group: dict[str, list[float]] = {name: [] for name in group_names(self._backbone, self.adapter)}
        for group in passes(examples, tokens=self._settings.optimiser.micro_batch_tokens):
            check()
            batch = pack(group, device=self._backbone.device)
            states = encode(self._backbone, self.adapter, batch)[batch.last]
            scores += self._backbone.score(self.adapter, states).tolist()
            for name, values in group_scores(self._backbone, self.adapter, states).items():
                by_group[name] += values.tolist()
        return np.array(scores), {name: np.array(values) for name, values in by_group.items()}

    def held_out_warnings(self, figures: Mapping[str, float]) -> list[str]:
        """Log the validation; warn where a constant or length alone does better."""
        return log_validation(figures)

    def weights(self, example: Example) -> Mapping[str, float]:
        """Return by objective the weight of an example that labels it, discounted in training; else 0."""
        factor = self._discount.factor(example) if example.judgment in self._trained else 1.0
        return {objective.name: factor * objective.weight(example) for objective in self._objectives}

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """Return all objectives on the states of one forward pass."""
        states = encode(self._backbone, self.adapter, batch, dropout=dropout)
        outcomes = [objective.outcome(states, batch, examples) for objective in self._objectives]
        return Outcome(
            {name: part for outcome in outcomes for name, part in outcome.parts.items()},
            {name: value for outcome in outcomes for name, value in outcome.observed.items()},
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return the figures of all objectives."""
        figures: dict[str, float] = {}
        for objective in self._objectives:
            figures |= objective.figures(observed, held_out=held_out)
        return figures

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the details of all objectives that have some, by name."""
        details = {objective.name: objective.details(observed) for objective in self._objectives}
        return {name: values for name, values in details.items() if values}


def _objectives(backbone: Backbone, adapter: str, spec: RunSpec, settings: RewardSettings) -> list[Objective]:
    """Return the objectives of the settings; each adds its heads to the adapter."""
    objectives: list[Objective] = []
    if settings.loss != "none":
        objectives.append(PreferenceObjective(backbone, adapter, spec, settings))
    objectives += [RatingObjective(backbone, adapter, spec, head) for head in settings.ratings]
    for head in settings.segments:
        objective = StepObjective if head.granularity == STEPS else SegmentObjective
        objectives.append(objective(backbone, adapter, spec, head))
    if whole := settings.completeness:
        objectives.append(CompletenessObjective(backbone, adapter, spec, whole, centring=settings.centring))
    return objectives


def _used_labels(settings: RewardSettings) -> UsedLabels:
    """Return the labels that the objectives use."""
    models_ties = settings.loss == "davidson" or settings.ties == "davidson"
    decided = settings.loss != "none" and not models_ties
    others = settings.ratings or settings.segments or settings.completeness
    only_pairs = settings.loss != "none" and not others
    lacks = settings.completeness.categories or None if settings.completeness else ()
    return UsedLabels(
        ranks="none" if settings.loss == "none" else "decided" if decided else "tied",
        criteria=frozenset(head.criterion for head in settings.ratings if not head.answers),
        questions=frozenset(head.criterion for head in settings.ratings if head.answers),
        covariates=frozenset(covariate.question for covariate in settings.covariates),
        # All of them, so that a head whose category nobody marked can tell which there are.
        categories=None if any(head.granularity != STEPS for head in settings.segments) else frozenset(),
        steps=any(head.granularity == STEPS for head in settings.segments),
        missing=None if lacks is None else frozenset(lacks),
        corrections=settings.use_corrections,
        nothing="has no training pair" if only_pairs else "has nothing that the heads could learn",
        remedy=(
            "Judge more comparisons in which one answer is better"
            if only_pairs
            else "Judge more comparisons, and say of them what the heads are to learn"
        ),
    )


def encode(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """Return the states of a packed row under an adapter: (T, hidden).

    Where the score reads elsewhere than at the last token of the last block, what it reads stands at the last
    token of each completion. Such an adapter has no other head.
    """
    place = backbone.reads(adapter)
    if place == TEXT:
        read = text_states(backbone, batch)
        if BOUNDS in backbone.extras(adapter):
            low, high = backbone.extra(adapter, BOUNDS).detach()  # noqa: S610 - no query set of Django's
            read[:, : len(low)] = read[:, : len(low)].clamp(low, high)
        return read.new_zeros(batch.tokens, read.shape[1]).index_copy(0, batch.last, read)
    row = (batch.input_ids, batch.position_ids, batch.layout)
    with backbone.using(adapter, dropout=dropout):
        if place == Place(backbone.blocks, mean=False):
            return backbone.packed_states(*row)
        states = backbone.packed_layers(*row, layers={place.layer})
    read = pooled(states[place.layer], batch, mean=place.mean)
    return states[place.layer].float().index_copy(0, batch.last, read)


def text_states(backbone: Backbone, batch: Batch) -> Tensor:
    """Return the surface features of each completion in the first columns of an empty state, (R, hidden).

    The texts are those of the tokens, so that training and serving read the same.
    """
    states = torch.zeros(batch.answers, backbone.hidden_size, device=backbone.device)
    ends = [segment.end for segment in batch.layout.segments]
    ids = batch.input_ids[0].tolist()
    decode = partial(backbone.tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    for row, last in enumerate(batch.last.tolist()):
        stretches = batch.layout.seen[bisect_right(ends, last)]
        path = [token for stretch in stretches for token in ids[stretch]]
        said = batch.target_ids[batch.target_answer == row].tolist()
        values = text_features(decode(path[: len(path) - len(said)]), decode(said))
        states[row, : len(values)] = torch.tensor(values, device=states.device)
    return states


def _lora(spec: RunSpec, settings: RewardSettings) -> LoraSettings | None:
    """Return the shape of the adapter that carries the heads; None where all weights are trained.

    With frozen features it is the least, which stays 0: so a checkpoint is served and exported like any
    other. One whose parent began on frozen features ends where the parent's does.
    """
    if settings.features == "adapted":
        if spec.parent is None or settings.head_from == "random" or settings.lora.last is not None:
            return settings.trained
        return replace(settings.lora, last=last_adapted_block(Path(spec.parent)))
    return LoraSettings(rank=1, targets=settings.lora.targets[:1], layers=1)


def read_rewards(backbone: Backbone, adapter: str, batch: Batch, *, dropout: bool = False) -> Tensor:
    """Return the score of every answer at its last token: (R,) float32."""
    return backbone.score(adapter, encode(backbone, adapter, batch, dropout=dropout)[batch.last])


# ── The run of a reward model: step by step with an adapter, or at once on frozen features ──

_STEPS = 1
"""A fit counts as one step."""


def train_reward_model(run: TrainingRun) -> RunResult:
    """Train a reward model as its settings say."""
    settings = run.spec.settings
    if not isinstance(settings, RewardSettings):
        raise ContractError(f"settings: those of {settings.method!r} train no reward model")
    if settings.features == "auto":
        rows = rows_of_part(read_snapshot(run.snapshot), run.spec.judgments)
        decided = sum(row.split == "train" and any(row.pairs()) for row in rows)
        settings = settings.chosen(adapted=decided >= ADAPTER_FROM)
        run = replace(run, spec=replace(run.spec, settings=settings))
        method = partial(RewardModelling, chooses=True)
    else:
        method = partial(RewardModelling)
    return _fit_at_once(run, method) if settings.is_fitted_at_once else train_on_judgments(run, method=method)


def _fit_at_once(run: TrainingRun, method: Callable[..., RewardModelling]) -> RunResult:
    """Fit the score's head to all training judgments at once, evaluate and compare it.

    A run that was stopped computes only the features that it had not kept.
    """
    folder, processes = run.folder, run.processes
    check = run.stop.check if processes.world == 1 else lambda: None
    learner = made_method(run, method)
    examples = examples_of_run(run, learner)
    learner.begin(examples.train)
    warnings = list(folder.warnings)
    folder.tell("running", "reading features", step=0, total_steps=_STEPS)
    started = time.monotonic()
    decided = [example for example in examples.train if example.pairs]
    head = learner.fit_at_once(decided, check=check, writes=processes.first)
    figures, details = evaluate(
        learner,
        examples.held_out,
        micro_batch_tokens=run.spec.settings.optimiser.micro_batch_tokens,
        device=run.backbone.device,
        processes=processes,
        check=check,
    )
    if processes.first and (figures or learner.has_chosen):
        write_evaluation(folder.path, EvaluationReport(step=_STEPS, figures=figures, details=details))
    figures = compared(run, learner, examples, figures, steps=_STEPS)
    row = {"step": _STEPS, "epoch": 1.0, "loss": head.score.log_loss, "skipped": 0}
    folder.trim_metrics()
    folder.record({**row, "seconds": round(time.monotonic() - started, 3), **figures})
    folder.tell("running", "fitted", step=_STEPS, total_steps=_STEPS)
    log.info("Fitted to %d judgments in %.1f s", len(decided), time.monotonic() - started)
    warnings += learner.held_out_warnings(figures)
    summary = f"a head on {head.reads}, fitted to {len(decided)} judgments"
    return RunResult(learner.adapter, learner.kind, _STEPS, figures, examples.dropped, warnings, summary)
