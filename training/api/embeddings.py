"""Search by meaning: the job that embeds prompts, prompts like one, near-duplicates."""

from typing import Any

from django.http import Http404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.models import Prompt
from training.api.checkpoints import named_checkpoint
from training.models import EmbeddingJob
from training.selectors.embeddings import (
    LEAST_LIKENESS,
    LIKENESS,
    MOST_LIKE,
    SimilarPrompt,
    most_like,
    near_duplicate_groups,
    searched_model,
)
from training.selectors.projects import checkpoints_for
from training.services.embeddings import cancel_embeddings, request_embeddings

_MOST_GROUPS = 1000


@fields.of(EmbeddingJob, "id checkpoint state current total message error embedded created_at finished_at")
class EmbeddingJobSerializer(serializers.ModelSerializer[EmbeddingJob]):
    """A job that embeds prompts."""

    checkpoint = fields.text("The model that reads the prompts.", source="checkpoint.name")


class NewEmbeddingJobSerializer(serializers.Serializer[Any]):
    """A job to be done."""

    checkpoint = fields.text("The model that reads the prompts.", most=100)


class SimilarFilters(Filters):
    """How many prompts are returned."""

    most = fields.integer("Prompts at most.", least=1, most=MOST_LIKE, default=20)


class SimilarPromptSerializer(serializers.Serializer[Any]):
    """A prompt that is like another one."""

    prompt = fields.integer("Its id.", source="prompt.pk")
    question = fields.text("Its last turn of the user.", source="prompt.last_question")
    likeness = fields.number("Cosine of the two embeddings, less the mean of the project's.")


class NearDuplicateFilters(Filters):
    """Which groups are returned."""

    likeness = fields.number(
        "Cosine from which on two prompts are in one group.", least=LEAST_LIKENESS, most=1, default=LIKENESS
    )


class NearDuplicatesSerializer(serializers.Serializer[Any]):
    """Prompts that say almost the same."""

    likeness = fields.number("Cosine of the two that are most alike.")
    prompts = fields.several(fields.integer(), "Ids of the prompts, the oldest first.")


embedding_jobs = Resource(
    ProjectView,
    f"{PROJECT}embeddings/",
    tag="texts",
    rows=lambda view: view.project.embedding_jobs.select_related("checkpoint", "project"),
)
near = Resource(ProjectView, f"{PROJECT}near-duplicates/", tag="texts")
embedded_prompts = Resource(
    ProjectView, f"{PROJECT}prompts/", tag="texts", rows=lambda view: view.project.prompts.all()
)

embedding_jobs.add_list(
    "embeddings_list", EmbeddingJobSerializer, "List the jobs that embed prompts, newest first."
)


@embedding_jobs.post(takes=NewEmbeddingJobSerializer, returns=EmbeddingJobSerializer, status=202)
def embeddings_request(view: ProjectView, values: Values) -> EmbeddingJob:
    """Have a model read the prompts that it has not read. A worker does it; 422 while one goes on."""
    checkpoint = named_checkpoint(checkpoints_for(view.user), values["checkpoint"])
    return request_embeddings(project=view.project, checkpoint=checkpoint, requested_by=view.user)


@embedding_jobs.item("<int:pk>/cancel/").post(returns=EmbeddingJobSerializer)
def embeddings_cancel(view: ProjectView, job: EmbeddingJob) -> EmbeddingJob:
    """End a job. What is embedded stays, and the next job goes on from there."""
    cancel_embeddings(job=job, cancelled_by=view.user)
    job.refresh_from_db()
    return job


@embedded_prompts.item("<int:pk>/similar/").get(filters=SimilarFilters, returns=[SimilarPromptSerializer])
def prompts_similar(view: ProjectView, prompt: Prompt, query: Values) -> list[SimilarPrompt]:
    """List the prompts that are most like one, the most similar first. 404 where it is not embedded."""
    found = most_like(prompt, model=searched_model(view.project), most=query["most"])
    if found is None:
        raise Http404
    return found


@near.get(filters=NearDuplicateFilters, returns=[NearDuplicatesSerializer])
def near_duplicates_list(view: ProjectView, query: Values) -> list[Values]:
    """List groups of near-duplicates as the newest job linked them, the most alike first; at most 1,000."""
    groups = near_duplicate_groups(
        view.project, model=searched_model(view.project), likeness=query["likeness"]
    )
    return [{"likeness": min(1.0, cosine), "prompts": keys} for cosine, keys in groups[:_MOST_GROUPS]]
