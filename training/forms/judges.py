"""Forms of judges and of rubric drafts."""

from django import forms
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from annotation.models import Project, RubricVersion
from annotation.selectors.rubrics import published_versions
from training.choices import WRITES_TEXT
from training.judging import DEFAULT_TEMPLATE
from training.models import Checkpoint
from training.services.judges import rounds_to_judge
from training.services.rubric_drafts import LEAST_PAIRS, MOST_PAIRS

# ── Judges ──


class JudgeForm(forms.Form):
    """A new judge of a project."""

    name = forms.CharField(max_length=100, label=_("Name"))
    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=_("Model"),
        help_text=_(
            "A checkpoint of this project, or a model of another server that an administrator added."
        ),
    )
    round_number = forms.TypedChoiceField(
        coerce=int,
        empty_value=None,
        required=False,
        label=_("Round"),
        help_text=_("Whose comparisons it judges."),
    )
    rubric = forms.ModelChoiceField(
        RubricVersion.objects.none(),
        required=False,
        label=_("Rubric"),
        empty_label=_("None: it ranks by the guidelines"),
        help_text=_("It scores each response by every criterion; the weighted sum decides."),
    )
    most_judgments = forms.IntegerField(
        min_value=1, required=False, label=_("Max. annotations"), help_text=_("Empty: no limit.")
    )
    most_tokens = forms.IntegerField(
        min_value=1,
        required=False,
        label=_("Max. tokens in total"),
        help_text=_("Read and written together. Empty: no limit."),
    )
    max_tokens = forms.IntegerField(
        min_value=16, max_value=8192, initial=512, label=_("Longest reply, in tokens")
    )
    template = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 16, "spellcheck": "false"}),
        initial=DEFAULT_TEMPLATE,
        strip=False,
        label=_("What it is asked"),
        help_text=_(
            "{guidelines} is the newest version of the guidelines, {conversation} the prompt, "
            "{answers} the responses with their letters, {example} a ranking in the expected "
            "form. With a rubric, {rubric} is its criteria; unchanged, a template for rubrics is used."
        ),
    )

    def __init__(self, *args: object, project: Project) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        field = self.fields["checkpoint"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared above
        field.queryset = Checkpoint.objects.filter(
            Q(project=project) | Q(project__isnull=True), kind__in=WRITES_TEXT, files_deleted_at__isnull=True
        )
        rubric = self.fields["rubric"]
        assert isinstance(rubric, forms.ModelChoiceField)  # noqa: S101 - declared above
        rubric.queryset = published_versions(project)
        rounds = self.fields["round_number"]
        assert isinstance(rounds, forms.TypedChoiceField)  # noqa: S101 - declared above
        rounds.choices = [
            ("", _("The newest, whichever that is")),
            *((number, _("Round %(number)s") % {"number": number}) for number in rounds_to_judge(project)),
        ]


class ServedModelForm(forms.Form):
    """A model of another OpenAI-compatible server."""

    name = forms.CharField(
        max_length=100, label=_("Name"), help_text=_("What it is called here: letters, digits, . - _")
    )
    url = forms.CharField(
        max_length=200,
        label=_("Address"),
        help_text=_("Of the server, such as https://models.example.org/v1"),
    )
    model = forms.CharField(
        max_length=200, required=False, label=_("Its name there"), help_text=_("Empty: the same name.")
    )
    key = forms.CharField(
        max_length=100,
        required=False,
        label=_("Variable with the key"),
        help_text=_(
            "The environment variable that holds the server's key. Its name begins with RONDO_SERVER_KEY_; "
            "the key itself is never stored."
        ),
    )
    project = forms.ModelChoiceField(
        Project.objects.filter(is_incomplete=False).order_by("name"),
        required=False,
        label=_("Project"),
        help_text=_("Whose managers may use it. Empty: those of every project."),
    )


# ── Rubric drafts ──


class RubricDraftForm(forms.Form):
    """A model that drafts criteria, and the number of pairs that it gets."""

    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=_("Model"),
        help_text=_(
            "A checkpoint of this project, or a model of another server that an administrator added."
        ),
    )
    pairs = forms.IntegerField(
        min_value=LEAST_PAIRS,
        max_value=MOST_PAIRS,
        initial=24,
        label=_("Max. pairs"),
        help_text=_("Drawn at random from decided pairs of training prompts; a third checks the criteria."),
    )
    max_tokens = forms.IntegerField(
        min_value=64, max_value=8192, initial=1024, label=_("Longest reply, in tokens")
    )

    def __init__(self, *args: object, project: Project) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        field = self.fields["checkpoint"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - declared above
        field.queryset = Checkpoint.objects.filter(
            Q(project=project) | Q(project__isnull=True), kind__in=WRITES_TEXT, files_deleted_at__isnull=True
        )
