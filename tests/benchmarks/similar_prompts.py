"""Search by meaning in a large project: `python -m tests.benchmarks.similar_prompts [--prompts 100000]`.

A temporary SQLite database holds so many prompts with vectors as long as those of the starter model: drawn,
with variances that fall as 1 / rank, one common direction, and one in ten a near-duplicate of another. One
search, all near-duplicates, and their groups are timed, from the table to the answer.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

_AT_ONCE = 2000


def timed(name: str, call: Callable[[], object], times: int = 1) -> None:
    """Print the least time of some calls."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        answer = call()
        seconds.append(time.perf_counter() - began)
    print(f"{name}: {min(seconds):.2f} s, {answer}")


def fill(prompts: int, width: int) -> int:
    """Make a project with embedded prompts; return the id of the job that is to link them."""
    import numpy as np

    from annotation.models import Project, Prompt
    from tests.training.registry.registry_rows import make_starter
    from training.figures.likeness import packed
    from training.models import EmbeddingJob, PromptEmbedding

    project = Project.objects.create(name="Large", slug="large")
    draw = np.random.default_rng(0)
    scales = 1 / np.sqrt(np.arange(1, width + 1))
    common = 2 * draw.normal(size=width) * np.sqrt((scales**2).mean())
    rows = draw.normal(size=(prompts, width)) * scales
    copies = prompts // 10
    rows[-copies:] = rows[:copies] + 0.2 * draw.normal(size=(copies, width)) * scales
    rows += common
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for start in range(0, prompts, _AT_ONCE):
        made = Prompt.objects.bulk_create(
            Prompt(
                project=project,
                messages=[{"role": "user", "content": f"Question {number}"}],
                content_hash=f"{number:064x}",
                split="train",
            )
            for number in range(start, min(prompts, start + _AT_ONCE))
        )
        embeddings = []
        for prompt, row in zip(made, rows[start : start + _AT_ONCE], strict=True):
            vector, scale = packed(row.tolist())
            embeddings.append(
                PromptEmbedding(prompt=prompt, model="base", text_hash="0" * 64, vector=vector, scale=scale)
            )
        PromptEmbedding.objects.bulk_create(embeddings)
    return EmbeddingJob.objects.create(project=project, checkpoint=make_starter("base")).pk


def main() -> None:
    """Fill a database and time the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=576)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DATABASE_URL": f"sqlite:///{folder}/large.sqlite3", "RONDO_HOME": folder}
        import django

        django.setup()
        from django.core.management import call_command

        from annotation.models import Prompt
        from annotation.services.jobs import Heartbeat, claim
        from training.models import EmbeddingJob
        from training.selectors.embeddings import most_like, near_duplicate_groups
        from training.services.embeddings import link_near_duplicates

        call_command("migrate", verbosity=0)
        job = claim(EmbeddingJob.objects.select_related("project"), fill(options.prompts, options.width))
        if job is None:
            raise SystemExit("The job was not claimed.")
        prompt = Prompt.objects.select_related("project").earliest("pk")
        timed("more like this", lambda: len(most_like(prompt, model="base", most=20) or ()), times=3)
        timed("all near-duplicates", lambda: link_near_duplicates(job, "base", Heartbeat(job)))
        search = partial(near_duplicate_groups, job.project, model="base")
        for likeness in (0.85, 0.9, 0.95):
            timed(f"groups from {likeness}", lambda: len(search(likeness=likeness)))  # noqa: B023 - called at once


if __name__ == "__main__":
    main()
