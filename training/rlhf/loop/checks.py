"""Checks before training: refuse what cannot train, warn of what is odd.

A warning goes to the log, and with the others into the run's last status and the checkpoint's manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from training.contract import ContractError, MethodSettings
from training.rlhf.data import Examples
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.base_config import context_of
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example


def refuse_too_many_tokens(backbone: Backbone, settings: MethodSettings) -> None:
    """Rows longer than the base has positions for would be computed from positions it never saw."""
    positions = context_of(backbone.config)
    if positions is not None and settings.max_tokens > positions:
        raise ContractError(
            f"settings, max_tokens: {settings.max_tokens} is more than {backbone.folder.name} reads "
            f"({positions}, max_position_embeddings in its config.json); set it to {positions} or less"
        )


def refuse_untaught(method: TrainingMethod, train: Sequence[Example]) -> None:
    """A part of the loss that no training example speaks of would leave its head as it was drawn."""
    taught: Counter[str] = Counter()
    for example in train:
        for part, weight in method.weights(example).items():
            taught[part] += weight > 0
    silent = sorted(part for part, count in taught.items() if not count)
    if silent:
        raise ContractError(
            f"settings: no judgment to train on says anything of {', '.join(map(repr, silent))}, though "
            f"{len(train)} say something of the rest; collect such judgments or leave it out of the settings"
        )


def counts_by_reason(dropped: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Count the examples left out by reason."""
    return dict(sorted(Counter(entry["reason"] for entry in dropped).items()))


def tell_of_examples(examples: Examples, *, settings: MethodSettings, processes: Processes) -> None:
    """Say how much there is to learn from and what was left out, and warn of what is odd about it."""
    train = examples.train
    log.info(
        "%d judgments to train on (%d pairs), %d held out",
        len(train),
        sum(len(example.pairs) for example in train),
        len(examples.held_out),
    )
    for reason, count in counts_by_reason(examples.dropped).items():
        log.info("Left out, %d times: %s", count, reason)
    if not examples.held_out:
        log.warning("No judgment is held out: there are no held-out figures, and no best state is chosen")
    if examples.shortened:
        log.warning(
            "%d prompts were longer than max_tokens (%d) allows and lost their beginning",
            examples.shortened,
            settings.max_tokens,
        )
    annotators = {example.annotator for example in train if example.annotator}
    if len(annotators) == 1 and len(train) > 1:
        log.warning("All judgments to train on are by one annotator (%s)", *annotators)
    together = min(len(train), settings.optimiser.batch_size)
    if together < processes.world:
        log.warning(
            "%d processes share steps of %d judgments: some have nothing to do; start fewer",
            processes.world,
            together,
        )
