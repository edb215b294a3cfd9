"""Operations on checkpoints whose responses are compared side by side, and the votes on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Verdict
from annotation.errors import Refusal
from annotation.models import Project, Prompt, User
from training.engine import EngineError
from training.forms.comparing import DEFAULT_TOP_P, LONGEST_PROMPT
from training.models import Checkpoint, PromptSet, SideBySide
from training.selectors.projects import checkpoints_of, comparable_checkpoints
from training.selectors.prompt_sets import progress_on
from training.services.side_by_side import (
    SharedSampling,
    ask_side_by_side,
    continue_side_by_side,
    next_of_set,
    regenerate_side_by_side,
    reveal_names,
    trouble_of,
    vote_side_by_side,
    write_answers,
)
from training.services.voting import VoteChoice

_VERDICTS = (Verdict.RANKED, Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)


def _text(meaning: str = "", **more: Any) -> serializers.CharField:
    return fields.text(meaning, most=LONGEST_PROMPT, trim_whitespace=False, **more)


def named_checkpoints(
    project: Project,
    names: Sequence[str],
    *,
    writing: bool = True,
    field: str = "checkpoints",
    user: User | None = None,
) -> list[Checkpoint]:
    """Return the checkpoints with these names. Raises `ValidationError` for one that the project lacks.

    user: also those that this manager may compare with the project's.
    """
    checkpoints = comparable_checkpoints(project, user) if user else checkpoints_of(project, writing=writing)
    known = {checkpoint.name: checkpoint for checkpoint in checkpoints}
    if unknown := [name for name in names if name not in known]:
        raise serializers.ValidationError(
            {field: [_("This project has no such checkpoint: %(name)r.") % {"name": unknown[0][:60]}]}
        )
    return [known[name] for name in names]


class BesideAnswerSerializer(serializers.Serializer[Any]):
    """One of the answers. Where names are hidden, `checkpoint` and figures are null until the vote."""

    position = fields.integer()
    checkpoint = fields.text(allow_null=True)
    written = fields.flag()
    text = fields.text()
    score = fields.number(allow_null=True)
    seconds = fields.number(allow_null=True)


class BesideSerializer(serializers.Serializer[Any]):
    """A question and the answers to it beside each other."""

    page = fields.text("Its part of addresses.")
    messages = fields.several(serializers.DictField())
    prompt_set = fields.integer("The set whose prompts are asked.", allow_null=True)
    blind = fields.flag("Whether names are hidden until the vote.")
    hidden = fields.flag("Whether names are hidden now.")
    seed = fields.integer()
    sampling = serializers.DictField()
    answers = BesideAnswerSerializer(many=True)
    judgment = fields.integer("The vote.", allow_null=True)
    comparison = fields.integer("What the vote judges.", allow_null=True)
    counts = fields.flag(
        "Whether the vote was blind: others are left out of training and win rates.", allow_null=True
    )
    created_at = fields.time()

    def to_representation(self, shown: SideBySide) -> dict[str, Any]:
        """Nothing of a model while names are hidden."""
        hidden = shown.is_hidden
        return {
            "page": shown.slug,
            "messages": shown.messages,
            "prompt_set": shown.prompt_set_id,
            "blind": shown.blind,
            "hidden": hidden,
            "seed": shown.seed,
            "sampling": shown.sampling,
            "answers": [
                {
                    "position": answer.position,
                    "checkpoint": None if hidden else answer.checkpoint.name,
                    "written": answer.written_at is not None,
                    "text": answer.text,
                    "score": None if hidden else answer.score,
                    "seconds": None if hidden else answer.seconds,
                }
                for answer in shown.answers.select_related("checkpoint")
            ],
            "judgment": shown.judgment_id,
            "comparison": shown.judgment.comparison_id if shown.judgment else None,
            "counts": shown.judgment.blind if shown.judgment else None,
            "created_at": shown.created_at,
        }


class GenerationSerializer(serializers.Serializer[Any]):
    """Settings of a generation."""

    temperature = fields.number(least=0, most=2, default=0.7)
    top_p = fields.number(least=0.01, most=1, default=DEFAULT_TOP_P)
    max_tokens = fields.integer(least=1, most=1024, default=256)
    system = _text("Replaces the system prompt; empty keeps it.", default="")

    @staticmethod
    def sampling(values: Mapping[str, Any]) -> SharedSampling:
        """Return the sampling settings of a read body."""
        names = ("temperature", "top_p", "max_tokens")
        return SharedSampling(**{name: values[name] for name in names})


class AskSerializer(GenerationSerializer):
    """A prompt of the project, or a text, for two to four checkpoints."""

    checkpoints = fields.several(fields.text(most=100), least=2, most=4)
    prompt = fields.key(required=False)
    text = _text("Goes before `prompt`.", required=False)
    scorer = fields.text("A reward model.", required=False, most=100)
    prompt_set = fields.key(
        "A prompt set: the next prompt without a vote on these checkpoints. Goes before `text`.",
        required=False,
    )
    seed = fields.integer(least=0, most=fields.LARGEST_INTEGER, default=0)
    blind = fields.flag(
        "False shows names before the vote, which is then left out of training and win rates.", default=True
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Something there must be to ask."""
        if not {"prompt", "prompt_set"} & set(values) and not values.get("text", "").strip():
            raise serializers.ValidationError({"text": [_("Name a prompt of the project, or type one.")]})
        return values


class AgainSerializer(GenerationSerializer):
    """Settings of the same chat again."""

    seed = fields.integer(
        "A new random one when left out.", least=0, most=fields.LARGEST_INTEGER, allow_null=True, default=None
    )
    blind = fields.flag(default=True)


class ContinueSerializer(serializers.Serializer[Any]):
    """The next turn."""

    text = _text()
    position = fields.integer(
        "All go on from this answer; each from its own when left out.",
        least=1,
        most=4,
        allow_null=True,
        default=None,
    )


class BesideVoteSerializer(serializers.Serializer[Any]):
    """A vote on answers beside each other."""

    verdict = fields.choice([choice.value for choice in _VERDICTS])
    ranks = serializers.DictField(
        child=fields.integer(least=1, most=4),
        required=False,
        default=dict,
        help_text="Position → rank, 1 best, equal numbers tied. For the verdict `ranked`. Of three or more "
        "the best may be ranked alone: the others are below them, without an order.",
    )

    def validate_ranks(self, value: dict[str, int]) -> dict[int, int]:
        """Positions are numbers, which JSON writes as texts."""
        if not all(name.isascii() and name.isdecimal() and len(name) < 3 for name in value):
            raise serializers.ValidationError(_("Positions are numbers from 1."))
        return {int(name): rank for name, rank in value.items()}


def _shown(view: ProjectView, page: str) -> SideBySide:
    if not page.isascii():
        raise Http404
    rows = view.project.side_by_sides.select_related(
        "project", "scorer", "continues", "judgment", "prompt_set", "base_prompt"
    )
    return get_object_or_404(rows, slug=page)


side_by_sides = Resource(
    ProjectView,
    f"{PROJECT}beside/",
    tag="checkpoints",
    rows=lambda view: view.project.side_by_sides.select_related("judgment"),
)
side_by_side = side_by_sides.item("<slug:page>/", find=_shown)

side_by_sides.add_list(
    "side_by_side_list",
    BesideSerializer,
    "List what was asked of several checkpoints at once, newest first.",
    model=SideBySide,
)
side_by_side.add_read(
    "side_by_side_read",
    BesideSerializer,
    "Read the answers as far as they are written; where names are hidden, without names.",
)


@side_by_sides.post(takes=AskSerializer, returns=BesideSerializer, status=201)
def side_by_side_ask(view: ProjectView, values: Values) -> SideBySide:
    """Write a question down for two to four checkpoints; `write` has it answered."""
    scorers = [values["scorer"]] if "scorer" in values else []
    rewards = named_checkpoints(view.project, scorers, writing=False, field="scorer")
    checkpoints = named_checkpoints(view.project, values["checkpoints"], user=view.user)
    prompt_set = None
    if "prompt_set" in values:
        prompt_set = view.project.prompt_sets.filter(pk=values["prompt_set"]).first()
        if prompt_set is None:
            raise serializers.ValidationError({"prompt_set": [_("This project has no such prompt set.")]})
    return ask_side_by_side(
        project=view.project,
        created_by=view.user,
        checkpoints=checkpoints,
        question=_question(view.project, values, checkpoints, prompt_set),
        sampling=GenerationSerializer.sampling(values),
        system=values["system"],
        prompt_set=prompt_set,
        seed=values["seed"],
        scorer=rewards[0] if rewards else None,
        blind=values["blind"],
    )


def _question(
    project: Project, values: Values, checkpoints: Sequence[Checkpoint], prompt_set: PromptSet | None
) -> Prompt | str:
    """Return the next prompt of a set, the typed text, or the named prompt."""
    if prompt_set is not None:
        left = progress_on(prompt_set, checkpoints).next
        if left is None:
            raise Refusal(
                "prompt_set_exhausted",
                _("No prompt of the set is left for these checkpoints."),
                field="prompt_set",
            )
        return left
    if text := str(values.get("text", "").strip()):
        return text
    prompt = project.prompts.filter(pk=values["prompt"]).first()
    if prompt is None:
        raise serializers.ValidationError({"prompt": [_("This project has no such prompt.")]})
    return prompt


# What is there already is not asked for again.
@side_by_side.post("write/", returns=BesideSerializer, keeps_answers=False)
def side_by_side_write(view: ProjectView, shown: SideBySide) -> SideBySide:
    """Have all that lack an answer write it, and wait for it. 422 while a model server is away."""
    try:
        write_answers(shown=shown)
    except EngineError as error:
        raise Refusal("model_not_answering", trouble_of(error, hidden=shown.is_hidden)) from error
    return shown


@side_by_side.post("vote/", takes=BesideVoteSerializer, returns=BesideSerializer)
def side_by_side_vote(view: ProjectView, shown: SideBySide, values: Values) -> SideBySide:
    """Vote: a judgment like any other. Names are in the answer. A second vote changes nothing."""
    vote_side_by_side(shown=shown, voter=view.user, vote=VoteChoice(values["verdict"], values["ranks"]))
    return shown


@side_by_side.post("reveal/", returns=BesideSerializer)
def side_by_side_reveal(view: ProjectView, shown: SideBySide) -> SideBySide:
    """Show names before the vote, which is then left out of training and win rates."""
    reveal_names(shown=shown, user=view.user)
    return shown


@side_by_side.post("continue/", takes=ContinueSerializer, returns=BesideSerializer, status=201)
def side_by_side_continue(view: ProjectView, shown: SideBySide, values: Values) -> SideBySide:
    """Say what comes next, after one of the answers or each after its own; a page of its own."""
    return continue_side_by_side(shown=shown, created_by=view.user, **values)


@side_by_side.post("regenerate/", takes=AgainSerializer, returns=BesideSerializer, status=201)
def side_by_side_regenerate(view: ProjectView, shown: SideBySide, values: Values) -> SideBySide:
    """Have the same checkpoints answer the same chat on a page of its own, with other settings."""
    return regenerate_side_by_side(
        shown=shown,
        created_by=view.user,
        sampling=GenerationSerializer.sampling(values),
        seed=values["seed"],
        system=values["system"],
        blind=values["blind"],
    )


@side_by_side.post("next/", returns=BesideSerializer, status=201)
def side_by_side_next(view: ProjectView, shown: SideBySide) -> SideBySide:
    """Create the page of the next prompt of the set for the same checkpoints, blind. 422 at its end."""
    return next_of_set(shown=shown, created_by=view.user)
