"""Forms of a project's settings, guidelines and members."""

from collections.abc import Iterator

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from annotation.choices import Role
from annotation.models import Project
from annotation.services.bulk import open_comparisons

Labels = dict[str, tuple[str | Promise, str | Promise]]

ABOUT: Labels = {
    "name": (_("Name"), ""),
    "description": (_("Description"), _("Shown to everyone in the project.")),
}
QUESTIONS: Labels = {
    "ask_verdict": (_("Preference"), _("The better of two responses, or the order of more.")),
    "ask_strength": (_("Strength of preference"), _("For pairs, in four steps.")),
    "ask_span_flags": (_("Spans"), _("Stretches of a response with an error category.")),
    "ask_missing_info": (_("Missing information"), _("Something that a response should have said.")),
    "ask_step_labels": (_("Step labels"), _("Correct, wrong or unnecessary, per step of a trace.")),
    "ask_correction": (_("Corrections"), _("Annotators edit each response.")),
    "ask_critique": (_("Critiques"), _("Annotators comment on each response.")),
    "ask_comment": (_("Comment"), _("Annotators comment on the comparison as a whole.")),
    "ask_demonstration": (_("Demonstrations"), _("Annotators write the response themselves.")),
    "rate_side_by_side": (
        _("Rate responses side by side"),
        _("One row per criterion; otherwise one response at a time."),
    ),
    "show_context": (_("Context of a prompt"), _("When a comparison opens. A key opens and folds it.")),
}
ASSIGNMENT: Labels = {
    "overlap": (_("Overlap"), _("Annotators per comparison. Agreement needs at least two.")),
    "extra_overlap": (_("Additional annotators"), _("On the share of comparisons below.")),
    "extra_overlap_share": (_("Share with additional annotators"), _("From 0 to 1.")),
    "lease_minutes": (
        _("Lease time (minutes)"),
        _("Without activity, others may get the comparison after this time."),
    ),
    "daily_limit": (_("Daily limit"), _("Annotations per person and day. Empty for no limit.")),
    "acquisition": (_("Order of comparisons"), _("Within the newest round and the highest priority.")),
    "control_share": (
        _("Random share"),
        _("Assignments drawn at random, to measure the gain of the order. From 0 to 1."),
    ),
}
QUALITY: Labels = {
    "retest_share": (
        _("Test-retest share"),
        _("Comparisons that return to the same annotator in another order. From 0 to 1."),
    ),
    "gold_share": (_("Gold share"), _("Gold items among assignments. From 0 to 1.")),
    "gold_feedback": (_("Feedback on gold items"), _("Annotators see the known answer after a gold item.")),
    "qualification_pass_share": (
        _("Qualification threshold"),
        _("Share of the qualification set that must be right. Empty for no qualification."),
    ),
    "review_disagreements": (
        _("Review disagreements"),
        _("Reviewers decide comparisons on which annotators disagree."),
    ),
    "hourly_wage": (
        _("Hourly wage"),
        _("Cost of an hour of annotation, in your currency. Empty shows no cost."),
    ),
    "review_random_share": (
        _("Random review share"),
        _("Judged comparisons that reviewers check anyway. From 0 to 1."),
    ),
}
GROUPS: tuple[tuple[str | Promise, Labels], ...] = (
    (_("Project"), ABOUT),
    (_("Assignment"), ASSIGNMENT),
    (_("Quality"), QUALITY),
)


class ProjectSettingsForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """The settings of a project, in groups."""

    class Meta:
        model = Project
        fields = [name for _title, labels in GROUPS for name in labels]
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        for _title, labels in GROUPS:
            for name, (label, help_text) in labels.items():
                self.fields[name].label = label  # type: ignore[assignment]
                self.fields[name].help_text = help_text  # type: ignore[assignment]

        self.open_comparisons = open_comparisons(self.instance).count() if self.instance.pk else 0
        if self.open_comparisons:
            self.fields["raise_open"] = forms.BooleanField(
                required=False,
                label=ngettext(
                    "Also for the %(count)s open comparison",
                    "Also for the %(count)s open comparisons",
                    self.open_comparisons,
                )
                % {"count": self.open_comparisons},
                help_text=_("A higher overlap otherwise holds for new comparisons only."),
            )

    def groups(self) -> Iterator[tuple[str | Promise, list[forms.BoundField]]]:
        """Yield the title and the fields of each group."""
        for title, labels in GROUPS:
            names = list(labels)
            if labels is ASSIGNMENT and "raise_open" in self.fields:
                names.insert(names.index("overlap") + 1, "raise_open")
            yield title, [self[name] for name in names]


class GuidelinesForm(forms.Form):
    """A new version of the guidelines."""

    text = forms.CharField(
        label=_("Guidelines"),
        max_length=200_000,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 24}),
        help_text=_("Markdown. Annotators are notified of the change and read it before they continue."),
    )


class MemberForm(forms.Form):
    """The role of a member, and how many comparisons they may submit a day."""

    role = forms.ChoiceField(choices=Role.choices)
    daily_limit = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
