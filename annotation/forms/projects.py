"""Forms of a project's settings, guidelines and members."""

from collections.abc import Iterator
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.text import slugify
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from annotation.choices import Role
from annotation.models import Project
from annotation.services.bulk import open_comparisons
from annotation.services.projects.templates import TEMPLATES

Labels = dict[str, tuple[str | Promise, str | Promise]]

ABOUT: Labels = {
    "name": (_("Name"), ""),
    "description": (_("Description"), _("Shown to everyone in the project.")),
}
QUESTIONS: Labels = {
    "ask_verdict": (_("Preference"), _("The better of two responses, or the order of more.")),
    "ask_strength": (_("Strength of preference"), _("For pairs, in four steps.")),
    "ask_span_flags": (_("Spans"), _("Stretches of a response with an error category.")),
    "ask_span_relations": (_("Relations of spans"), _("A span causes or contradicts another one.")),
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
    "records_pastes": (
        _("Record pasted text"),
        _("How much is pasted into critiques, corrections and other texts. Annotators are told."),
    ),
    "review_disagreements": (
        _("Review disagreements"),
        _("Reviewers decide comparisons on which annotators disagree."),
    ),
    "hourly_wage": (
        _("Hourly wage"),
        _("Cost of an hour of annotation, in your currency. Empty shows no cost."),
    ),
    "item_pay": (
        _("Pay per annotation"),
        _("In the same currency. Empty for none."),
    ),
    "review_random_share": (
        _("Random review share"),
        _("Judged comparisons that reviewers check anyway. From 0 to 1."),
    ),
    "review_every": (
        _("Review every n-th annotation"),
        _("Of each annotator. Empty for none."),
    ),
    "review_first": (
        _("Review the first annotations"),
        _("So many of each annotator. Empty for none."),
    ),
    "review_below_agreement": (
        _("Review below an agreement of"),
        _("Once all annotators of a comparison have judged. From 0 to 1; empty for none."),
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


# Form of a new project.


class NewProjectForm(forms.Form):
    """Name, address and template of a project, and a file to import into it."""

    name = forms.CharField(label=_("Name"), max_length=120, widget=forms.TextInput(attrs={"autofocus": True}))
    slug = forms.SlugField(
        label=_("Address (optional)"),
        max_length=80,
        required=False,
        help_text=_("Last part of the project's address; made of the name if empty. It stays."),
    )
    description = forms.CharField(
        label=_("Description (optional)"), required=False, widget=forms.Textarea(attrs={"rows": 2})
    )
    template = forms.ChoiceField(
        label=_("Template"),
        choices=[(template.key, template.name) for template in TEMPLATES.values()],
        initial=next(iter(TEMPLATES)),
        widget=forms.RadioSelect,
    )
    upload = forms.FileField(
        label=_("File to import (optional)"),
        required=False,
        help_text=_("JSON Lines, JSON or CSV. Nothing is imported before you have seen a preview."),
        widget=forms.FileInput(attrs={"accept": ".jsonl,.json,.csv,.tsv"}),
    )

    def clean(self) -> dict[str, Any]:
        """Derive the address from the name, and require the file where the template needs one."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("name") and not values.get("slug") and "slug" not in self.errors:
            values["slug"] = slugify(values["name"])[:80]
            if not values["slug"]:
                message = gettext("The name has no letter for an address. Enter one, such as tea-2.")
                self.add_error("slug", message)
        template = TEMPLATES.get(values.get("template", ""))
        lacks_file = not values.get("upload") and "upload" not in self.errors
        if template is not None and template.needs_file and lacks_file:
            self.add_error("upload", gettext("Choose a file, or another template."))
        return values
