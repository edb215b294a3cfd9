"""Checkpoints continue responses that annotators rewrite: registered with `annotation` at start."""

from collections.abc import Sequence
from typing import cast

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from annotation.choices import FinishReason
from annotation.errors import Unavailable
from annotation.models import Completion
from annotation.services.judgments.drafts import Written
from training.choices import WRITES_TEXT
from training.engine import AddressError, EngineError, engine_for
from training.engine.client import Sampling
from training.models import Checkpoint
from training.selectors.chats import chat_of

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
