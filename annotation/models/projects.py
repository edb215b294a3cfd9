"""Projects: their questions and rules."""

import uuid
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q, Value
from django.urls import reverse
from django.utils.translation import gettext as _

from annotation.choices import (
    SIGNS,
    AcquisitionStrategy,
    CategoryScope,
    ContextDisplay,
    Granularity,
    Polarity,
    QuestionKind,
    QuestionSubject,
    RatingScale,
)
from annotation.models.panels import check_hosts
from annotation.models.people import check_allocation
from annotation.models.written_once import WrittenOnce

if TYPE_CHECKING:
    from annotation.models.people import Membership

RESERVED_SLUGS = frozenset({"new"})
"""Slugs that no project has: /projects/new/ is the page that creates one."""

_SHARE = [MinValueValidator(0.0), MaxValueValidator(1.0)]


class Project(models.Model):
    """One labelling effort: guidelines, error categories, questions, members."""

    name = models.CharField(max_length=120)
    slug = models.SlugField(max_length=80, unique=True)
    description = models.TextField(blank=True)
    overlap = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(50)],
        help_text="How many annotators judge each comparison.",
    )
    lease_minutes = models.PositiveSmallIntegerField(
        default=30,
        validators=[MinValueValidator(1)],
        help_text="How long a comparison stays with one annotator who does nothing; then others may get it.",
    )
    extra_overlap = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(50)],
        help_text="How many annotators more judge each comparison of the share below.",
    )
    extra_overlap_share = models.FloatField(
        default=0.0, validators=_SHARE, help_text="Share of comparisons that more annotators judge, 0 to 1."
    )
    hourly_wage = models.DecimalField(
        max_digits=8,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="What an hour of an annotator costs, in a currency of your choice; empty for no cost.",
    )
    item_pay = models.DecimalField(
        max_digits=8,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="What an annotation is paid, in the same currency; empty for none.",
    )
    daily_limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many comparisons one annotator may submit a day; empty for no limit.",
    )
    retest_share = models.FloatField(
        default=0.05,
        validators=_SHARE,
        help_text="Share of an annotator's comparisons that come back later in another order (test-retest).",
    )
    gold_share = models.FloatField(
        default=0.0, validators=_SHARE, help_text="Share of gold items among what an annotator gets."
    )
    gold_feedback = models.BooleanField(
        default=False, help_text="Tell annotators after a gold item what was right, and why."
    )
    qualification_pass_share = models.FloatField(
        null=True,
        blank=True,
        validators=_SHARE,
        help_text="Share of the qualification set that must be right before real work; empty asks for none.",
    )
    acquisition = models.CharField(
        max_length=20,
        choices=AcquisitionStrategy,
        default=AcquisitionStrategy.AGE,
        help_text="Which open comparison comes first, among those of the newest round and highest priority.",
    )
    control_share = models.FloatField(
        default=0.1,
        validators=_SHARE,
        help_text="Share of assignments drawn at random beside a strategy, so that its gain can be measured.",
    )
    allocation = models.JSONField(
        default=list,
        blank=True,
        validators=[check_allocation],
        help_text="Who gets what: comparisons of prompts with the tag of a rule go only to members who have "
        "its skill.",
    )
    review_disagreements = models.BooleanField(
        default=False, help_text="Send comparisons on which annotators disagree to reviewers."
    )
    review_random_share = models.FloatField(
        default=0.0, validators=_SHARE, help_text="Share of judged comparisons that reviewers see anyway."
    )
    review_every = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Send every n-th annotation of each annotator to reviewers; empty for none.",
    )
    review_first = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Send the first n annotations of each annotator to reviewers; empty for none.",
    )
    review_below_agreement = models.FloatField(
        null=True,
        blank=True,
        validators=_SHARE,
        help_text="Send comparisons with a lower agreement than this share to reviewers; empty for none.",
    )
    ask_verdict = models.BooleanField(
        default=True, help_text="Ask which answer is better: of two, or the order of more."
    )
    ask_strength = models.BooleanField(
        default=True, help_text="Ask of a pair how much better the winner is, in four steps."
    )
    ask_span_flags = models.BooleanField(
        default=True, help_text="Let annotators mark stretches of an answer."
    )
    ask_missing_info = models.BooleanField(
        default=True, help_text="Let annotators say what an answer leaves out."
    )
    ask_span_relations = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Let annotators say that a span causes or contradicts another.",
    )
    ask_step_labels = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Ask of each step of an agent trace or a session whether it is correct.",
    )
    ask_correction = models.BooleanField(default=False, help_text="Let annotators edit each answer.")
    ask_critique = models.BooleanField(
        default=False, help_text="Ask for a critique of each answer, in words."
    )
    ask_comment = models.BooleanField(
        default=True, help_text="Offer a critique of the comparison as a whole, in words."
    )
    ask_demonstration = models.BooleanField(
        default=False, help_text="Ask annotators to write the answer themselves."
    )
    records_pastes = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Record what annotators paste into texts; they are told, managers see it.",
    )
    rate_side_by_side = models.BooleanField(
        default=True, help_text="Rate all answers at once, each criterion in a row; else one at a time."
    )
    show_context = models.CharField(
        max_length=10,
        choices=ContextDisplay,
        default=ContextDisplay.AUTO,
        db_default=ContextDisplay.AUTO,
        help_text="Whether the context of a prompt is open when a comparison is shown.",
    )
    panel_hosts = models.JSONField(
        default=list,
        db_default=Value([], models.JSONField()),
        blank=True,
        validators=[check_hosts],
        help_text="Hosts to which participants of panels are sent at the end.",
    )
    revision = models.UUIDField(
        default=uuid.uuid4,
        editable=False,
        help_text="Drawn anew when a category, a criterion, the guidelines or a rubric change.",
    )
    has_webhooks = models.BooleanField(
        default=False,
        editable=False,
        help_text="Whether a webhook is switched on: who has none pays nothing for them.",
    )
    has_help = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Whether suggestions are shown after the first pass: who shows none pays nothing for them.",
    )
    has_reservations = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Whether comparisons were ever reserved for members: where none are, nobody pays for it.",
    )
    has_returns = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Whether an annotation was ever returned: where none was, no screen asks for returns.",
    )
    calibration_seals = models.PositiveIntegerField(
        default=0,
        db_default=0,
        editable=False,
        help_text="How often calibration sessions hid or revealed annotations: older figures are stale. 0 "
        "where there never was a session: then nobody pays for it.",
    )
    has_queues = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Whether views were ever assigned to members: where none are, nobody pays for it.",
    )
    members = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="annotation.Membership", related_name="projects"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="An archived project is not listed and hands out no work.",
    )
    deleted_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="In the bin since then: no page opens it, and a manager can bring it back.",
    )
    is_incomplete = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Rondo is still writing it, or it is in the bin: no page opens it, and workers leave its "
        "rounds alone.",
    )

    visitor: "tuple[int, Membership | None] | None" = None
    """Within one request: the person who asks, and the row that makes them a member."""

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=models.Q(overlap__gte=1), name="project_overlap_positive"),
            models.CheckConstraint(
                condition=models.Q(acquisition__in=AcquisitionStrategy.values),
                name="project_acquisition_known",
            ),
            models.CheckConstraint(
                condition=models.Q(show_context__in=ContextDisplay.values), name="project_show_context_known"
            ),
            models.CheckConstraint(condition=models.Q(lease_minutes__gte=1), name="project_lease_positive"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuse a slug under which Rondo has a page of its own."""
        if self.slug in RESERVED_SLUGS:
            raise ValidationError(
                {"slug": _("The address %(slug)s is Rondo's own. Choose another.") % {"slug": self.slug}}
            )


QUESTIONS = tuple(field.name for field in Project._meta.fields if field.name.startswith("ask_"))
"""Settings that each switch on a part of the labelling screen, in the order of forms and the API."""


class Guideline(WrittenOnce):
    """One version of a project's rules, in Markdown. Never changed; a new version is a new row."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="guidelines")
    version = models.PositiveIntegerField()
    text = models.TextField(help_text="Markdown. Annotators see it beside their work.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["project", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["project", "version"], name="guideline_version_once"),
            models.CheckConstraint(condition=models.Q(version__gte=1), name="guideline_version_from_one"),
        ]

    def __str__(self) -> str:
        return f"{self.project}, version {self.version}"


class Category(models.Model):
    """One kind of error that can be marked on, or missed in, an answer."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="categories")
    key = models.SlugField(max_length=60, help_text="Name in exports; stays when the label changes.")
    label = models.CharField(max_length=80)
    description = models.TextField(blank=True, help_text="One sentence that tells when to use it.")
    scope = models.CharField(max_length=10, choices=CategoryScope, default=CategoryScope.SPAN)
    granularity = models.CharField(max_length=20, choices=Granularity, default=Granularity.SENTENCE)
    colour = models.CharField(
        max_length=7,
        default="#b45309",
        validators=[RegexValidator(r"^#[0-9a-fA-F]{6}$", "Write a colour as #rrggbb.")],
    )
    shortcut = models.CharField(max_length=1, blank=True, help_text="The key that marks with this category.")
    polarity = models.CharField(max_length=10, choices=Polarity, default=Polarity.ERROR)
    severity_steps = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(9)],
        help_text="How many steps of severity a mark has, 1 the mildest; 0 asks for none.",
    )
    parent = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="parts",
        help_text="The category of spans that this one is a part of; one level deep.",
    )
    needs_note = models.BooleanField(
        default=False, db_default=False, help_text="No span of it without a note."
    )
    position = models.PositiveSmallIntegerField(default=0)
    is_archived = models.BooleanField(
        default=False, db_default=False, help_text="Not asked any more; annotations that use it keep it."
    )

    waiting = 0
    """Annotations that go back with its spans; `selectors.questions.add_split_progress` reads both."""
    lacking = 0
    """Annotations that have a span of it without a sub-category."""

    class Meta:
        verbose_name_plural = "categories"
        ordering = ["project", "position", "id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="category_key_once"),
            models.UniqueConstraint(
                fields=["project", "shortcut"],
                condition=~models.Q(shortcut=""),
                name="category_shortcut_once",
            ),
            models.CheckConstraint(
                condition=models.Q(scope__in=CategoryScope.values), name="category_scope_known"
            ),
            models.CheckConstraint(
                condition=models.Q(granularity__in=Granularity.values), name="category_granularity_known"
            ),
            models.CheckConstraint(
                condition=models.Q(polarity__in=Polarity.values), name="category_polarity_known"
            ),
            models.CheckConstraint(
                condition=models.Q(severity_steps__lte=9), name="category_severity_steps_in_range"
            ),
            models.CheckConstraint(
                condition=Q(parent__isnull=True) | (~Q(parent=models.F("id")) & Q(scope="span")),
                name="category_part_of_another_span_category",
            ),
            models.CheckConstraint(
                condition=Q(needs_note=False) | Q(scope="span"), name="category_note_of_spans"
            ),
        ]

    def __str__(self) -> str:
        return self.label

    @property
    def full_label(self) -> str:
        """The label, of a sub-category behind that of its category."""
        return f"{self.parent.label} › {self.label}" if self.parent else self.label

    @property
    def signed_label(self) -> str:
        """The full label, of what is no error behind its sign."""
        if self.polarity == Polarity.ERROR:
            return self.full_label
        return f"{SIGNS[Polarity(self.polarity)]} {self.full_label}"

    def clean(self) -> None:
        """Refuse a parent that is no span category of the project on the upper level, and parts of parts."""
        if self.needs_note and self.scope != CategoryScope.SPAN:
            raise ValidationError({"needs_note": _("Only spans have notes. Switch it off.")})
        if self.pk is not None and self.parts.exclude(polarity=self.polarity).exists():
            raise ValidationError(
                {"polarity": _("Its sub-categories have another meaning. They share that of their category.")}
            )
        if self.parent is None:
            return
        is_upper = self.parent.scope == CategoryScope.SPAN and self.parent.parent_id is None
        if self.scope != CategoryScope.SPAN or self.parent.project_id != self.project_id or not is_upper:
            raise ValidationError({"parent": _("Choose a category of spans that is no sub-category itself.")})
        if self.polarity != self.parent.polarity:
            raise ValidationError({"polarity": _("A sub-category has the meaning of its category.")})
        if self.pk is not None and (self.parent_id == self.pk or self.parts.exists()):
            raise ValidationError(
                {"parent": _("It has sub-categories, so it cannot be one. Move them elsewhere first.")}
            )


class Criterion(models.Model):
    """One thing by which every answer is rated, such as how helpful it is."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="criteria")
    key = models.SlugField(max_length=60, help_text="Name in exports; stays when the label changes.")
    label = models.CharField(max_length=80)
    description = models.TextField(blank=True, help_text="What the lowest and the highest step mean.")
    scale = models.CharField(max_length=10, choices=RatingScale, default=RatingScale.FIVE)
    position = models.PositiveSmallIntegerField(default=0)
    is_archived = models.BooleanField(
        default=False, db_default=False, help_text="Not asked any more; annotations that use it keep it."
    )

    class Meta:
        verbose_name_plural = "criteria"
        ordering = ["project", "position", "id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="criterion_key_once"),
            models.CheckConstraint(
                condition=models.Q(scale__in=RatingScale.values), name="criterion_scale_known"
            ),
        ]

    def __str__(self) -> str:
        return self.label


# Questions of the project: what a project asks beside the parts that Rondo has.


class ProjectQuestion(models.Model):
    """A question that a project asks of every comparison, response, span, or step of a trace.

    Its wording and its choices are in its versions; the newest is asked.
    `services.projects.project_questions` writes it.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="questions")
    key = models.SlugField(max_length=60, help_text="Name in exports; stays when the wording changes.")
    kind = models.CharField(max_length=10, choices=QuestionKind, help_text="Chosen once.")
    subject = models.CharField(
        max_length=10,
        choices=QuestionSubject,
        default=QuestionSubject.COMPARISON,
        help_text="What gets an answer: the comparison, or each response, span or step. Chosen once.",
    )
    help_text = models.TextField(blank=True, help_text="Shown below the question.")
    is_required = models.BooleanField(
        default=False, help_text="No annotation without an answer, where it is shown."
    )
    shown_when = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="shows",
        help_text="The earlier question that decides whether this one is shown; none shows it always.",
    )
    shown_values = models.JSONField(
        default=list, blank=True, help_text="Keys of the choices of that question that show this one."
    )
    shortcuts = models.JSONField(
        default=dict, blank=True, help_text="Key of a choice → the key on the keyboard that chooses it."
    )
    categories = models.JSONField(
        default=list,
        blank=True,
        help_text="Of a question about spans: keys of the categories that it is asked of; none for all.",
    )
    position = models.PositiveSmallIntegerField(default=0)
    is_archived = models.BooleanField(
        default=False, help_text="Not asked any more; annotations that answer it keep their answer."
    )

    class Meta:
        ordering = ["project", "position", "id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="project_question_key_once"),
            models.CheckConstraint(
                condition=Q(kind__in=QuestionKind.values), name="project_question_kind_known"
            ),
            models.CheckConstraint(
                condition=Q(subject__in=QuestionSubject.values), name="project_question_subject_known"
            ),
            models.CheckConstraint(
                condition=Q(shown_when__isnull=True) | ~Q(shown_when=models.F("id")),
                name="project_question_not_shown_by_itself",
            ),
        ]

    def __str__(self) -> str:
        return self.key

    newest: "QuestionVersion | None" = None
    """Read by `selectors.questions.add_progress`, like the two below."""
    waiting = 0
    """Annotations that go back with this question and are not answered yet."""
    lacking = 0
    """Annotations without an answer to the newest version."""

    @property
    def label(self) -> str:
        """The wording of the newest version."""
        newest = self.newest or self.versions.first()
        return newest.text if newest else self.key


class QuestionVersion(WrittenOnce):
    """One version of a question: its wording and what it can be answered with. Never changed."""

    question = models.ForeignKey(ProjectQuestion, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    text = models.CharField(max_length=300, help_text="The question as annotators read it.")
    choices = models.JSONField(
        default=list,
        blank=True,
        help_text="Key and label of each choice, or of each point of a scale from the lowest.",
    )
    unit = models.CharField(max_length=30, blank=True, help_text="Of a number.")
    least = models.FloatField(null=True, blank=True, help_text="The smallest number; none sets no bound.")
    most = models.FloatField(null=True, blank=True, help_text="The largest number; none sets no bound.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["question", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["question", "number"], name="question_version_once"),
            models.CheckConstraint(condition=Q(number__gte=1), name="question_version_from_one"),
            models.CheckConstraint(condition=~Q(text=""), name="question_version_has_a_text"),
            models.CheckConstraint(
                condition=Q(least__isnull=True) | Q(most__isnull=True) | Q(least__lte=models.F("most")),
                name="question_version_bounds_in_order",
            ),
        ]

    def __str__(self) -> str:
        return self.text


# Rubrics: versioned lists of weighted criteria, and the scores that AI annotators give by them.


class Rubric(models.Model):
    """A named rubric of a project. Its content is in its versions; `services.projects.rubrics` writes it."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="rubrics")
    name = models.CharField(max_length=80)
    published = models.ForeignKey(
        "annotation.RubricVersion",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="The version in use; nothing uses a rubric before one is published.",
    )
    is_asked = models.BooleanField(
        default=False, help_text="Whether annotators rate each response by the published criteria."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["project", "name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="rubric_name_once"),
            models.UniqueConstraint(
                fields=["project"], condition=Q(is_asked=True), name="rubric_asked_one_of_a_project"
            ),
            models.CheckConstraint(
                condition=Q(is_asked=False) | Q(published__isnull=False), name="rubric_asked_is_published"
            ),
            models.CheckConstraint(condition=~Q(name=""), name="rubric_has_a_name"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("rubric", args=[self.project.slug, self.pk])


class RubricVersion(WrittenOnce):
    """One version of a rubric. Never changed: an edit is a new version."""

    rubric = models.ForeignKey(Rubric, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["rubric", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["rubric", "number"], name="rubric_version_once"),
            models.CheckConstraint(condition=Q(number__gte=1), name="rubric_version_from_one"),
        ]

    def __str__(self) -> str:
        return f"{self.rubric}, version {self.number}"


class RubricCriterion(WrittenOnce):
    """One weighted criterion of a rubric version.

    Its key is that of the project's criterion by which annotators rate. Name, text and scale belong to the
    key: a criterion that is reworded gets another one, so that figures never mix two wordings.
    """

    version = models.ForeignKey(RubricVersion, on_delete=models.CASCADE, related_name="criteria")
    position = models.PositiveSmallIntegerField()
    key = models.SlugField(max_length=60)
    name = models.CharField(max_length=80)
    text = models.TextField(blank=True, help_text="The question that a response is scored by.")
    levels = models.TextField(blank=True, help_text="The meaning of the steps of the scale.")
    scale = models.CharField(max_length=10, choices=RatingScale, default=RatingScale.FIVE)
    weight = models.FloatField(default=1.0, help_text="Its share of the sum, relative to the others.")

    class Meta:
        verbose_name_plural = "rubric criteria"
        ordering = ["version", "position"]
        constraints = [
            models.UniqueConstraint(fields=["version", "key"], name="rubric_criterion_key_once"),
            models.UniqueConstraint(fields=["version", "position"], name="rubric_criterion_position_once"),
            models.CheckConstraint(
                condition=Q(weight__gt=0, weight__lte=1000), name="rubric_criterion_weight_positive"
            ),
            models.CheckConstraint(
                condition=Q(scale__in=RatingScale.values), name="rubric_criterion_scale_known"
            ),
            models.CheckConstraint(condition=~Q(name=""), name="rubric_criterion_has_a_name"),
        ]

    def __str__(self) -> str:
        return self.name


class RubricScore(WrittenOnce):
    """An AI annotator's score of one completion by one criterion, with its reason. Written with the judgment.

    The value is the mean over the orders in which the judge was asked, on the criterion's scale.
    """

    judgment = models.ForeignKey(
        "annotation.Judgment", on_delete=models.CASCADE, related_name="rubric_scores"
    )
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="rubric_scores"
    )
    criterion = models.ForeignKey(RubricCriterion, on_delete=models.PROTECT, related_name="scores")
    value = models.FloatField()
    reason = models.TextField(blank=True)

    class Meta:
        ordering = ["judgment", "completion", "criterion__position"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "completion", "criterion"], name="rubric_score_once"),
            models.CheckConstraint(condition=Q(value__gte=0, value__lte=7), name="rubric_score_in_range"),
        ]

    def __str__(self) -> str:
        return f"{self.criterion}: {self.value:g}"
