"""Rubrics and AI annotators that a recipe's rewards name, resolved into what the trainer needs.

A reward of kind rubric has the options `rubric`, the name of a published rubric, and `judge`, the name of an
AI annotator whose server and model score; or `model` and `url` instead. A run's spec holds the version.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, RubricVersion
from annotation.selectors.rubrics import published_versions
from training.contract import RewardPart
from training.engine.servers import base_of
from training.models import Judge
from training.selectors.rubrics import rubric_of


def with_rubric(project: Project, part: RewardPart) -> RewardPart:
    """Return the reward with the published version and the judge's server in place of their names.

    Refuses names that the project does not have.
    """
    if part.kind != "rubric":
        return part
    for problem in unknown_rubric(project, part):
        raise Refusal("recipe_invalid", problem, field="recipe")
    options: dict[str, Any] = dict(part.options)
    version = _version(project, options["rubric"])
    if version is not None:
        rubric = dataclasses.asdict(rubric_of(version))
        options["rubric"] = {**rubric, "criteria": list(rubric["criteria"])}
    judge = _judge(project, options.pop("judge", None))
    if judge is not None:
        checkpoint = judge.checkpoint
        url = base_of(checkpoint.server_url) if checkpoint.server_url else settings.RONDO_MODEL_SERVER_URL
        options = {"url": url, "model": checkpoint.server_model or checkpoint.name, **options}
    return dataclasses.replace(part, options=options)


def unknown_rubric(project: Project, part: RewardPart) -> Iterator[str]:
    """Yield why a reward by a rubric is refused: a name that the project does not have, or no model."""
    if part.kind != "rubric":
        return
    rubric, judge = part.options.get("rubric"), part.options.get("judge")
    if not isinstance(rubric, dict) and _version(project, rubric) is None:
        yield _(
            "The reward %(part)s names the rubric %(name)s, which the project has not published. Publish it, "
            "or name another."
        ) % {"part": part.name, "name": rubric or "–"}
    if judge is not None and _judge(project, judge) is None:
        yield _("The reward %(part)s names %(name)s, which is no AI annotator of the project.") % {
            "part": part.name,
            "name": judge,
        }
    if judge is None and "model" not in part.options:
        yield _("The reward %(part)s needs the option judge, the name of an AI annotator, or model.") % {
            "part": part.name
        }


def _version(project: Project, name: object) -> RubricVersion | None:
    if not isinstance(name, str):
        return None
    return published_versions(project).filter(rubric__name=name).prefetch_related("criteria").first()


def _judge(project: Project, name: object) -> Judge | None:
    if not isinstance(name, str):
        return None
    return project.judges.select_related("checkpoint").filter(name=name).first()
