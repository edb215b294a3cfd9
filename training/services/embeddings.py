"""Embeddings of prompts: a model of the registry reads them in the background; near-duplicates are linked."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.choices import JobState
from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.selectors import access
from annotation.services.audit import record
from annotation.services.job_runs import EXPECTED, call_with_heartbeat, run_job
from annotation.services.jobs import Heartbeat, send_after_commit, still_held, sweep
from training.choices import WRITES_TEXT, JobKind, TrainingTask
from training.engine import Engine, EngineError, EngineUnknownModelError, engine_for
from training.models import Checkpoint, EmbeddingJob, PromptEmbedding
from training.selectors.embeddings import LEAST_LIKENESS, vectors_of
from training.services.sampling import retry_until_available

TOKENS_READ = 512
"""The last tokens of a prompt that a model reads."""
_LONGEST_TEXT = 20_000
"""Characters at the end of a prompt that are sent; far more than the tokens that are read."""
_AT_ONCE = 64


def embedding_models(project: Project) -> QuerySet[Checkpoint]:
    """Return the models that may read a project's prompts: its checkpoints, base models, other servers."""
    return Checkpoint.objects.filter(
        Q(project=project) | Q(project__isnull=True), kind__in=WRITES_TEXT, files_deleted_at__isnull=True
    )


def request_embeddings(*, project: Project, checkpoint: Checkpoint, requested_by: User) -> EmbeddingJob:
    """Have a model read the prompts that have no vector by it; a worker does it.

    Refuses who does not manage the project, a model that may not read its prompts, and a second job while one
    goes on.
    """
    access.refuse_unless_manager(requested_by, project, "manager_changes_data")
    if not embedding_models(project).filter(pk=checkpoint.pk).exists():
        raise Refusal(
            "unknown_checkpoint",
            _("Choose a checkpoint of this project that writes text."),
            field="checkpoint",
        )
    waits = "waiting for a worker"
    try:
        with transaction.atomic():
            job = EmbeddingJob.objects.create(
                project=project,
                checkpoint=checkpoint,
                created_by=requested_by,
                message=waits,
            )
            record(
                action="data.embed",
                subject=project,
                actor=requested_by,
                project=project,
                details={"checkpoint": checkpoint.name},
            )
            send_after_commit(TrainingTask.DO_JOB, JobKind.EMBEDDINGS, job.pk)
    except IntegrityError:
        raise Refusal(
            "embedding_under_way", _("Prompts are being embedded already. Wait until that ends.")
        ) from None
    return job


def cancel_embeddings(*, job: EmbeddingJob, cancelled_by: User) -> None:
    """End a job that waits or runs. What is embedded stays; the next job goes on from there.

    Its worker loses the claim, and stops with its next sign of life.
    """
    access.refuse_unless_manager(cancelled_by, job.project, "manager_changes_data")
    going_on = EmbeddingJob.objects.filter(pk=job.pk, state__in=(JobState.WAITING, JobState.RUNNING))
    if not going_on.update(
        state=JobState.FINISHED, worker="", heartbeat_at=None, finished_at=Now(), message="cancelled"
    ):
        raise Refusal("embedding_has_ended", _("These embeddings have ended already."))


def do_embeddings(pk: int) -> None:
    """Embed prompts, unless another worker does."""
    run_job(
        EmbeddingJob.objects.select_related("project", "checkpoint"),
        pk,
        _embed,
        expected=(*EXPECTED, EngineError),
    )


def sweep_embeddings() -> None:
    """Send a message for every job that nobody works on."""
    sweep(EmbeddingJob.objects.all(), TrainingTask.DO_JOB, JobKind.EMBEDDINGS)


def embedded_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Return what a model reads of a prompt: its turns without the system's, which many prompts share."""
    texts = [turn["content"] for turn in messages if turn["role"] != "system" and turn["content"].strip()]
    return "\n\n".join(texts or [turn["content"] for turn in messages])[-_LONGEST_TEXT:] or " "


def _embed(job: EmbeddingJob, heartbeat: Heartbeat) -> str:
    """Read what has no vector by this model, a batch at a time, then link what is nearly alike."""
    model = job.checkpoint.name
    total, done, embedded = job.project.prompts.count(), 0, job.embedded
    with engine_for(job.checkpoint) as engine:
        texts = _texts(job.project)
        while batch := list(islice(texts, _AT_ONCE)):
            known = dict(
                PromptEmbedding.objects.filter(
                    prompt__in=[pk for pk, _text in batch], model=model
                ).values_list("prompt", "text_hash")
            )
            hashes = {pk: hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() for pk, text in batch}
            missing = [(pk, text) for pk, text in batch if known.get(pk) != hashes[pk]]
            if missing:
                vectors = _read(engine, model, [text for _pk, text in missing], heartbeat)
                _store(job, model, [(pk, hashes[pk]) for pk, _text in missing], vectors)
                embedded += len(missing)
            done += len(batch)
            heartbeat(current=done, total=total, message=_("reading prompts"))
    heartbeat(current=done, total=total, message=_("comparing prompts"))
    linked = link_near_duplicates(job, model, heartbeat)
    with still_held(job):
        EmbeddingJob.objects.filter(pk=job.pk).update(embedded=embedded)
    return _("%(embedded)s prompts read, %(linked)s of them near-duplicates of another") % {
        "embedded": embedded,
        "linked": linked,
    }


def _texts(project: Project) -> Iterator[tuple[int, str]]:
    rows = project.prompts.order_by("pk").values_list("pk", "messages")
    return ((pk, embedded_text(messages)) for pk, messages in rows.iterator(chunk_size=1000))


def _read(engine: Engine, model: str, texts: Sequence[str], heartbeat: Heartbeat) -> list[list[float]]:
    ask: Callable[[], list[list[float]]] = partial(
        engine.embed, model=model, texts=texts, most_tokens=TOKENS_READ
    )
    try:
        return retry_until_available(
            ask,
            message=_("reading prompts"),
            tell=lambda message: heartbeat(message=message),
            unknown_may_pass=False,
        )
    except EngineUnknownModelError as error:
        raise Refusal(
            "no_embeddings",
            _("The server of %(model)s gives no embeddings (%(reason)s). Choose another model."),
            model=model,
            reason=str(error),
        ) from None


def _store(
    job: EmbeddingJob, model: str, prompts: Sequence[tuple[int, str]], vectors: Sequence[Sequence[float]]
) -> None:
    # NumPy is the workers'.
    from training.figures.likeness import packed

    rows = []
    for (pk, text_hash), vector in zip(prompts, vectors, strict=True):
        content, scale = packed(vector)
        rows.append(
            PromptEmbedding(prompt_id=pk, model=model, text_hash=text_hash, vector=content, scale=scale)
        )
    with still_held(job):
        other = PromptEmbedding.objects.filter(prompt__project=job.project_id, model=model)
        before = other.values_list("vector", flat=True).first()
        if before is not None and len(before) != len(rows[0].vector):
            # Another model has its name now: nothing of the old one can be compared with this.
            other.delete()
        PromptEmbedding.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["prompt"],
            update_fields=["model", "text_hash", "vector", "scale", "alike", "likeness"],
        )


def link_near_duplicates(job: EmbeddingJob, model: str, heartbeat: Heartbeat) -> int:
    """Link the prompts of a project whose cosine reaches `LEAST_LIKENESS`; return the number of links."""
    from training.figures.likeness import rooted

    keys, vectors = vectors_of(job.project, model)
    if not keys:
        return 0
    links = call_with_heartbeat(lambda: vectors.links(LEAST_LIKENESS), heartbeat)
    above = {keys[row]: (keys[other], cosine) for row, (other, cosine) in rooted(links).items()}
    with still_held(job):
        of_project = PromptEmbedding.objects.filter(prompt__project=job.project_id)
        of_project.filter(alike__isnull=False).update(alike=None, likeness=None)
        linked = list(above)
        for start in range(0, len(linked), 500):
            some = linked[start : start + 500]
            changed = list(of_project.filter(prompt__in=some).only("pk", "prompt_id"))
            for embedding in changed:
                embedding.alike_id, embedding.likeness = above[embedding.prompt_id]
            PromptEmbedding.objects.bulk_update(changed, ["alike", "likeness"])
    return len(above)
