"""Search by meaning: prompts most like one, and groups of near-duplicates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from annotation.models import Project, Prompt
from training.models import EmbeddingJob, PromptEmbedding

if TYPE_CHECKING:
    from training.figures.likeness import Vectors

LEAST_LIKENESS = 0.85
"""Cosine, less the mean of the project's vectors, from which on prompts are linked as near-duplicates."""
LIKENESS = 0.9
"""The threshold that the page begins with."""
MOST_LIKE = 100
"""Prompts that one search returns at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarPrompt:
    """A prompt and its cosine with another one."""

    prompt: Prompt
    likeness: float

    @property
    def percent(self) -> int:
        """Return the cosine as a whole number of percent."""
        return round(100 * self.likeness)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Prompts that say almost the same, the oldest first."""

    prompts: Sequence[Prompt]
    likeness: float
    """Of the two that are most alike."""

    @property
    def percent(self) -> int:
        """Return the cosine as a whole number of percent."""
        return round(100 * self.likeness)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingState:
    """How much of a project is embedded, and by which model."""

    job: EmbeddingJob | None
    """The newest."""
    embedded: int
    missing: int

    @property
    def model(self) -> str:
        """Return the name of the model whose vectors are searched; empty before any job."""
        return self.job.checkpoint.name if self.job else ""


def newest_job(project: Project) -> EmbeddingJob | None:
    """Return the job whose model's vectors are searched."""
    return project.embedding_jobs.select_related("checkpoint", "project", "created_by").first()


def searched_model(project: Project) -> str:
    """Return the name of the model of the newest job; empty before any. Counts no prompts."""
    return project.embedding_jobs.values_list("checkpoint__name", flat=True).first() or ""


def embedding_state(project: Project) -> EmbeddingState:
    """Return how much of a project the model of its newest job has read."""
    job = newest_job(project)
    prompts = project.prompts.count()
    embedded = 0
    if job is not None:
        embedded = project.prompts.filter(embedding__model=job.checkpoint.name).count()
    return EmbeddingState(job=job, embedded=embedded, missing=prompts - embedded)


def vectors_of(project: Project, model: str) -> tuple[list[int], Vectors]:
    """Return the ids of a project's prompts that a model has read, and their vectors in the same order."""
    # NumPy is loaded with the first search.
    from training.figures.likeness import Vectors

    keys: list[int] = []
    rows = (
        PromptEmbedding.objects.filter(prompt__project=project, prompt__deleted_at__isnull=True, model=model)
        .order_by()
        .values_list("prompt_id", "vector", "scale")
    )

    def packed() -> object:
        for key, vector, scale in rows.iterator(chunk_size=5000):
            keys.append(key)
            yield bytes(vector), scale

    return keys, Vectors(packed())  # type: ignore[arg-type]


def most_like(prompt: Prompt, *, model: str, most: int) -> list[SimilarPrompt] | None:
    """Return the prompts of its project that are most like a prompt, the most similar first.

    Those of a cosine of 0 or less have nothing in common with it and are left out. None where the model has
    not read it.
    """
    import numpy as np

    keys, vectors = vectors_of(prompt.project, model)
    if prompt.pk not in keys:
        return None
    row = keys.index(prompt.pk)
    cosines = vectors.cosines(row)
    cosines[row] = -2
    best = [place for place in np.argsort(-cosines, kind="stable")[:most] if cosines[place] > 0]
    prompts = prompt.project.prompts.in_bulk([keys[place] for place in best])
    return [
        SimilarPrompt(prompt=prompts[keys[place]], likeness=min(1.0, float(cosines[place])))
        for place in best
        if keys[place] in prompts
    ]


def near_duplicate_groups(
    project: Project, *, model: str, likeness: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the groups of near-duplicates: the cosine of the two most alike, and the ids of the prompts.

    The most alike come first. Deleted prompts still join others, and are in no group.
    """
    # The cosine of equal texts may fall short of 1 by its rounding.
    least = min(likeness, 0.9999)
    links = PromptEmbedding.objects.filter(
        prompt__project=project, model=model, likeness__gte=least, alike__isnull=False
    )
    root: dict[int, int] = {}

    def find(key: int) -> int:
        while root.setdefault(key, key) != key:
            root[key] = key = root[root[key]]
        return key

    edges = list(links.order_by().values_list("prompt_id", "alike_id", "likeness"))
    for one, other, _cosine in edges:
        root[find(one)] = find(other)
    best: dict[int, float] = defaultdict(float)
    for one, _other, cosine in edges:
        best[find(one)] = max(best[find(one)], cosine or 0.0)
    deleted = set(
        Prompt.with_deleted.filter(project=project, deleted_at__isnull=False).values_list("pk", flat=True)
    )
    members: dict[int, list[int]] = defaultdict(list)
    for key in sorted(root):
        if key not in deleted:
            members[find(key)].append(key)
    groups = [(best[top], tuple(keys)) for top, keys in members.items() if len(keys) > 1]
    return sorted(groups, key=lambda group: (-group[0], group[1]))


def with_prompts(project: Project, groups: Sequence[tuple[float, tuple[int, ...]]]) -> list[NearDuplicates]:
    """Return groups with their prompts, of a page of them."""
    prompts = project.prompts.in_bulk([key for _likeness, keys in groups for key in keys])
    return [
        NearDuplicates(likeness=min(1.0, cosine), prompts=[prompts[key] for key in keys if key in prompts])
        for cosine, keys in groups
    ]
