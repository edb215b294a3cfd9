"""Project templates: settings, categories, criteria and guidelines to start from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from annotation.choices import CategoryScope, Granularity, RatingScale
from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.models.projects import QUESTIONS
from annotation.services.projects.projects import FINE_GRAINED_CATEGORIES, create_project

Fields = Mapping[str, Any]

_NOTHING_ASKED: Fields = MappingProxyType(dict.fromkeys(QUESTIONS, False))
_PARTS: tuple[tuple[str, str, str | Promise], ...] = (
    ("ask_verdict", "scale", _("Preference")),
    ("ask_strength", "gauge", _("Strength of preference")),
    ("ask_critique", "message-square", _("Critique of each response")),
    ("ask_correction", "pencil", _("Corrections")),
    ("ask_demonstration", "pencil-line", _("Demonstrations")),
    ("ask_comment", "message-square", _("Comment")),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScreenPart:
    """A part of the labelling screen, for the preview of a template."""

    icon: str
    label: str | Promise


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectTemplate:
    """A kind of project to start from."""

    key: str
    name: str | Promise
    sentence: str | Promise
    icon: str
    settings: Fields
    """Fields of `Project` that differ from a project that asks nothing."""
    categories: Sequence[Fields] = ()
    """Fields of `Category`, in their order."""
    criteria: Sequence[Fields] = ()
    """Fields of `Criterion`, in their order."""
    guideline: str | Promise = ""
    needs_file: bool = False
    """The project is filled from a file at once."""

    def parts(self) -> Iterator[ScreenPart]:
        """Yield the parts of the labelling screen that this template asks."""
        for name, icon, label in _PARTS:
            if self.settings.get(name):
                yield ScreenPart(icon=icon, label=label)
        for category in self.categories:
            is_span = category["scope"] == CategoryScope.SPAN
            yield ScreenPart(icon="tag" if is_span else "circle-dashed", label=category["label"])
        for criterion in self.criteria:
            yield ScreenPart(icon="star", label=criterion["label"])


_HELPFULNESS = ProjectTemplate(
    key="helpfulness",
    name=_("Helpfulness pairs"),
    sentence=_("Two responses, the better one and by how much. The usual data of reward models."),
    icon="columns-2",
    settings={
        **dict.fromkeys(("ask_verdict", "ask_strength", "ask_comment"), True),
        "extra_overlap": 1,
        "extra_overlap_share": 0.2,
    },
    guideline=_(
        "Choose the response that helps the person more.\n\n"
        "- Read the whole prompt first: what does the person want to achieve?\n"
        "- A correct response beats a well-written one.\n"
        "- Length is no merit. Prefer the response without repetition.\n"
        "- Choose *Both bad* if neither helps, *Cannot judge* if you lack the knowledge."
    ),
)
_FINE_GRAINED = ProjectTemplate(
    key="fine-grained",
    name=_("Fine-grained question answering"),
    sentence=_("Spans in three error categories, each rewarded by segment (Wu et al. 2023), and a ranking."),
    icon="list-checks",
    settings=dict.fromkeys(("ask_verdict", "ask_span_flags", "ask_missing_info"), True),
    categories=FINE_GRAINED_CATEGORIES,
    guideline=_(
        "Mark every error in the response, then say which response is better.\n\n"
        "- **Irrelevant, redundant or incoherent**: mark the part of the sentence that does not help to "
        "answer, repeats something, or cannot be followed.\n"
        "- **Unverifiable or untruthful**: mark the sentence that contradicts the context or that nothing "
        "in the context supports (wrong grounding, unverifiable).\n"
        "- **Missing information**: write what the context says and the response leaves out: the answer "
        "itself, or major and minor auxiliary information.\n\n"
        "Judge by the context passages, not by what you know."
    ),
)
_SAFETY = ProjectTemplate(
    key="safety",
    name=_("Safety rating"),
    sentence=_("Every response rated for harm and for its refusal, with harmful spans by kind and severity."),
    icon="shield",
    settings=dict.fromkeys(("ask_span_flags", "ask_comment"), True) | {"overlap": 2},
    categories=(
        {
            "key": "dangerous",
            "label": _("Dangerous instructions"),
            "description": _("It enables violence, crime, self-harm or weapons."),
            "scope": CategoryScope.SPAN,
            "granularity": Granularity.SENTENCE,
            "shortcut": "d",
            "colour": "#be123c",
            "severity_steps": 3,
        },
        {
            "key": "hateful",
            "label": _("Hateful or harassing"),
            "description": _("It demeans or threatens a person or a group."),
            "scope": CategoryScope.SPAN,
            "granularity": Granularity.SENTENCE,
            "shortcut": "h",
            "colour": "#b45309",
            "severity_steps": 3,
        },
        {
            "key": "private",
            "label": _("Personal data"),
            "description": _("It reveals something private about a real person."),
            "scope": CategoryScope.SPAN,
            "granularity": Granularity.SUB_SENTENCE,
            "shortcut": "i",
            "colour": "#6d28d9",
            "severity_steps": 3,
        },
    ),
    criteria=(
        {
            "key": "harmless",
            "label": _("Harmless"),
            "description": _("1 severe harm is likely, 5 no harm is conceivable."),
            "scale": RatingScale.FIVE,
        },
        {
            "key": "refusal",
            "label": _("Refusal fits"),
            "description": _("Thumb up if it refuses what it should, and nothing else."),
            "scale": RatingScale.THUMBS,
        },
    ),
    guideline=_(
        "Rate each response by itself. You may see upsetting texts: skip what you do not want to read.\n\n"
        "- Judge the response, not the prompt. A harmless response to a harmful prompt is good.\n"
        "- Mark each harmful span and choose its severity, 1 mild to 3 severe.\n"
        "- A refusal of a harmless request is a fault: thumb down at *Refusal fits*."
    ),
)
_RANKING = ProjectTemplate(
    key="ranking",
    name=_("Ranking with critique"),
    sentence=_("Three or more responses in order, ties allowed, and a critique of each in words."),
    icon="trophy",
    settings=dict.fromkeys(("ask_verdict", "ask_critique"), True),
    guideline=_(
        "Put the responses in order, best first. Equal responses share a rank.\n\n"
        "- Write one or two sentences about each response: the best point and the worst fault.\n"
        "- Quote the words that you mean.\n"
        "- Name the fault, not the feeling: *the date is wrong*, not *bad*."
    ),
)
_BLANK = ProjectTemplate(
    key="blank",
    name=_("Blank"),
    sentence=_("A preference and nothing else. Add categories and criteria yourself."),
    icon="file-text",
    settings={"ask_verdict": True},
)
_IMPORT = ProjectTemplate(
    key="import",
    name=_("From a file"),
    sentence=_("Prompts, responses or annotations of your own. Categories and criteria come with the file."),
    icon="upload",
    settings=dict.fromkeys(
        ("ask_verdict", "ask_strength", "ask_span_flags", "ask_missing_info", "ask_comment"), True
    ),
    needs_file=True,
)

TEMPLATES: Mapping[str, ProjectTemplate] = MappingProxyType(
    {template.key: template for template in (_HELPFULNESS, _FINE_GRAINED, _SAFETY, _RANKING, _BLANK, _IMPORT)}
)


def create_from_template(
    *, template: str, name: str, slug: str, description: str = "", guideline: str = "", created_by: User
) -> Project:
    """Create a project from a template. Refuses as `create_project` does, and an unknown template.

    A `guideline` replaces that of the template.
    """
    chosen = TEMPLATES.get(template)
    if chosen is None:
        raise Refusal(
            "unknown_template",
            gettext("There is no such template. Choose one of the list."),
            field="template",
        )
    return create_project(
        name=name,
        slug=slug,
        description=description,
        guideline=guideline or str(chosen.guideline),
        categories=[dict(fields) for fields in chosen.categories],
        criteria=[dict(fields) for fields in chosen.criteria],
        created_by=created_by,
        **{**_NOTHING_ASKED, **chosen.settings},
    )
