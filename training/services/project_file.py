"""Training's sections of a project file: conversations with checkpoints, suggestions, and the recipe.

Checkpoints are named: what a file names has to be there before it is applied.
"""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import HelpSettings, Project, User
from annotation.record.project_file import ConversationsEntry, SuggestionsEntry
from annotation.selectors.project_file import entry_of
from annotation.services.projects.project_file import FileSection, placed, register, schema_of
from training.models import Checkpoint, ConversationSettings, Round, SuggestionSource
from training.recipe.recipe import PolicySettings, Recipe
from training.selectors.projects import responding_checkpoints
from training.services.conversations import save_conversation_settings
from training.services.rounds.controls import draft_first_round
from training.services.rounds.recipes import change_recipe
from training.services.suggestions import DEFAULT_TEMPLATE, SOURCES, set_suggestions


def sections() -> Sequence[FileSection]:
    """Return the sections that files get from training."""
    return (
        FileSection(
            key="conversations",
            hint=ConversationsEntry,
            read=_conversations,
            write=_write_conversations,
        ),
        FileSection(key="suggestions", hint=SuggestionsEntry, read=_suggestions, write=_write_suggestions),
        FileSection(
            key="recipe",
            hint=Recipe,
            read=_recipe,
            write=_write_recipe,
            decode=Recipe.from_json,
            plain=_written,
            schema=_recipe_schema,
        ),
    )


def add_sections() -> None:
    """Have files hold training's settings from now on. Called once, at start."""
    register(*sections())


def _conversations(project: Project) -> dict[str, Any] | None:
    row = ConversationSettings.objects.filter(project=project).first()
    if row is None:
        return None
    sampling = {"temperature": 0.7, "max_tokens": 256, **row.sampling}
    return entry_of(
        ConversationsEntry,
        row,
        checkpoints=list(row.checkpoints.order_by("name").values_list("name", flat=True)),
        temperature=sampling["temperature"],
        max_tokens=sampling["max_tokens"],
    )


def _write_conversations(project: Project, entry: ConversationsEntry, by: User) -> None:
    known = {row.name: row for row in responding_checkpoints(project).filter(name__in=entry.checkpoints)}
    for index, name in enumerate(entry.checkpoints):
        if name not in known:
            with placed(f"conversations.checkpoints[{index}]"):
                _refuse_unknown(name)
    values = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    with placed("conversations"):
        save_conversation_settings(
            project=project, actor=by, **{**values, "checkpoints": list(known.values())}
        )


def _suggestions(project: Project) -> dict[str, Any] | None:
    source = SuggestionSource.objects.select_related("checkpoint").filter(project=project).first()
    if source is None:
        return None
    settings = HelpSettings.objects.filter(project=project).first() or HelpSettings(project=project)
    return entry_of(
        SuggestionsEntry,
        settings,
        checkpoint=source.checkpoint.name,
        is_active=source.is_active and project.has_help,
        template="" if source.template == DEFAULT_TEMPLATE else source.template,
        least_confidence=source.least_confidence,
    )


def _write_suggestions(project: Project, entry: SuggestionsEntry, by: User) -> None:
    checkpoint = (
        Checkpoint.objects.filter(Q(project=project) | Q(project__isnull=True))
        .filter(kind__in=SOURCES, files_deleted_at__isnull=True, name=entry.checkpoint)
        .order_by("-pk")
        .first()
    )
    if checkpoint is None:
        with placed("suggestions.checkpoint"):
            _refuse_unknown(entry.checkpoint)
    values = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    with placed("suggestions"):
        set_suggestions(
            project=project,
            by=by,
            **{**values, "checkpoint": checkpoint, "template": entry.template or DEFAULT_TEMPLATE},
        )


def _refuse_unknown(name: str) -> None:
    raise Refusal(
        "unknown_checkpoint",
        _("There is no checkpoint %(name)s for this here. Register it first, or leave the section out."),
        name=name,
    )


def _recipe(project: Project) -> dict[str, Any] | None:
    """Return the recipe of the newest round, which the next one goes on with."""
    newest = _newest_round(project)
    return _written(newest.parsed_recipe) if newest else None


def _written(recipe: Recipe) -> Any:
    """Return a recipe with every default written out, as lists and mappings."""
    return _listed(recipe.to_json())


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return value


def _write_recipe(project: Project, recipe: Recipe, by: User) -> None:
    """Give the newest round the recipe; a project without one gets its first round as a draft."""
    newest = _newest_round(project)
    with placed("recipe", {"recipe": ""}):
        if newest is None:
            draft_first_round(project=project, created_by=by, recipe=recipe.to_json())
        else:
            change_recipe(round_=newest, recipe=recipe, actor=by)


def _newest_round(project: Project) -> Round | None:
    return Round.objects.filter(project=project).order_by("-number").first()


def _recipe_schema() -> dict[str, Any]:
    """Return the schema of a recipe, whose policy also names its method."""
    schema = schema_of(Recipe)
    names = {cls.__name__ for cls in typing.get_args(PolicySettings)}
    for name, definition in schema["$defs"].items():
        if name in names:
            definition["properties"] = {"method": {"type": "string"}, **definition["properties"]}
    return schema
