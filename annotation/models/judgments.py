"""Judgments. Rows are written once; a revision adds a row."""

from typing import Any, ClassVar

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from annotation.choices import (
    DecisionKind,
    FinishReason,
    HelpArm,
    ReturnState,
    ReviewReason,
    SuggestionDecision,
    SuggestionKind,
    Verdict,
)
from annotation.models.work import Comparison
from annotation.models.written_once import WrittenOnce, WrittenOnceQuerySet


class JudgmentQuerySet(WrittenOnceQuerySet["Judgment"]):
    """Judgments, and which of them stand."""

    def current(self) -> "JudgmentQuerySet":
        """Keep the judgments that no later one of the same person supersedes."""
        # Not `superseded_by__isnull`: PostgreSQL takes that join to leave next to nothing and plans for it.
        return self.filter(~Exists(Judgment.everything.filter(supersedes=OuterRef("pk"))))


JudgmentManager = models.Manager.from_queryset(JudgmentQuerySet)


class RevealedJudgments(JudgmentManager):  # type: ignore[type-arg]
    """The default manager: no judgment of a calibration session that is not revealed.

    Whatever lists, counts, exports or learns from judgments, also by `comparison.judgments`, is blind to
    them.
    """

    def get_queryset(self) -> Any:
        # Not by a join: few comparisons are sealed, and an index holds them alone.
        return super().get_queryset().exclude(comparison__in=Comparison.objects.filter(is_sealed=True))


class Judgment(WrittenOnce):
    """One annotator's verdict on the completions of one comparison.

    Written once by `submit_judgment`; a change of mind adds a row that supersedes this one.
    `Judgment.objects.current()` gives the current ones. `Judgment.objects` leaves out what a calibration
    session hides; `Judgment.everything` is for an annotator's own judgments, and for what tells no vote:
    keys, deletion, pay.
    """

    assignment = models.ForeignKey(
        "annotation.Assignment", on_delete=models.PROTECT, related_name="judgments"
    )
    # No index of its own: both indexes below begin with it.
    comparison = models.ForeignKey(
        "annotation.Comparison", on_delete=models.PROTECT, related_name="judgments", db_index=False
    )
    annotator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="judgments"
    )
    guideline = models.ForeignKey(
        "annotation.Guideline",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        help_text="The version that was on screen.",
    )
    rubric = models.ForeignKey(
        "annotation.RubricVersion",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="judgments",
        help_text="The version by which responses were rated or scored.",
    )
    verdict = models.CharField(max_length=20, choices=Verdict)
    strength = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="How much better the winner of a pair is, 1 to 4."
    )
    comment = models.TextField(blank=True)
    active_seconds = models.PositiveIntegerField(null=True, blank=True)
    idempotency_key = models.UUIDField(
        unique=True, help_text="Drawn with the page: a submit sent twice is one judgment."
    )
    supersedes = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="superseded_by"
    )
    imported_from = models.JSONField(
        null=True,
        blank=True,
        help_text="For an imported judgment: the format, the item, and what it said beyond these fields.",
    )
    blind = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Whether the annotator could not see which model wrote which response. Nothing is learned "
        "from an unblinded judgment, and no win rate counts it.",
    )
    in_bulk = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether it was given to several comparisons at once, from the table of comparisons.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar = RevealedJudgments()
    everything: ClassVar = JudgmentManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["assignment"], condition=Q(supersedes__isnull=True), name="judgment_first_once"
            ),
            models.CheckConstraint(condition=Q(verdict__in=Verdict.values), name="judgment_verdict_known"),
            models.CheckConstraint(
                condition=Q(strength__isnull=True) | Q(strength__range=(1, 4)),
                name="judgment_strength_one_to_four",
            ),
        ]
        indexes = [
            models.Index(fields=["comparison", "annotator"], name="judgment_of_comparison"),
            # The table of annotations, narrowed to a round; newest first.
            models.Index(fields=["comparison", "id"], name="judgment_by_comparison"),
        ]

    def __str__(self) -> str:
        return f"Judgment {self.pk} by {self.annotator}"


class RankedCompletion(WrittenOnce):
    """One completion's rank in one judgment: 1 is best, equal numbers are tied."""

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="ranks")
    completion = models.ForeignKey("annotation.Completion", on_delete=models.PROTECT, related_name="ranks")
    rank = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["judgment", "rank", "id"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "completion"], name="rank_once"),
            models.CheckConstraint(condition=Q(rank__gte=1), name="rank_from_one"),
        ]

    def __str__(self) -> str:
        return f"rank {self.rank} in judgment {self.judgment_id}"


class SpanFlag(WrittenOnce):
    """A stretch of one completion marked with a category, in code points, half open."""

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="span_flags")
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="span_flags"
    )
    category = models.ForeignKey("annotation.Category", on_delete=models.PROTECT, related_name="span_flags")
    start = models.PositiveIntegerField()
    end = models.PositiveIntegerField()
    quote = models.TextField(help_text="The marked text; checked against the completion when written.")
    severity = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="1 is the mildest; none where the category asks for none."
    )
    note = models.TextField(blank=True)
    relations = models.JSONField(
        null=True,
        blank=True,
        help_text="What it is to other spans of the judgment: objects with kind, completion, category, start "
        "and end of the other; null for nothing.",
    )

    class Meta:
        ordering = ["judgment", "completion", "start", "end", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(severity__isnull=True) | Q(severity__range=(1, 9)),
                name="span_severity_in_range",
            ),
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="span_not_empty"),
            models.UniqueConstraint(
                fields=["judgment", "completion", "category", "start", "end"], name="span_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.category}: {self.quote[:60]}"


class MissingInfo(WrittenOnce):
    """Something that a completion should have said, with its evidence in a passage if there is one.

    Evidence is one sentence of a passage, or the passage's title when `sentence` is null.
    """

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="missing_info")
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="missing_info"
    )
    category = models.ForeignKey("annotation.Category", on_delete=models.PROTECT, related_name="missing_info")
    text = models.TextField(blank=True, help_text="What is missing, in the annotator's words.")
    insert_at = models.PositiveIntegerField(
        null=True, blank=True, help_text="Where in the answer it belongs: before this code point."
    )
    passage = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Index of a context passage.")
    sentence = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Index of its sentence; none points at the title."
    )
    quote = models.TextField(blank=True, help_text="The sentence or the title, as it stood.")
    further_evidence = models.JSONField(
        default=list,
        blank=True,
        help_text="More of the same, where one sentence is not all: objects with passage, sentence, quote.",
    )

    class Meta:
        verbose_name_plural = "missing info"
        ordering = ["judgment", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(passage__isnull=False) | Q(sentence__isnull=True),
                name="missing_info_sentence_of_a_passage",
            ),
            models.CheckConstraint(
                condition=~Q(text="") | Q(passage__isnull=False), name="missing_info_says_something"
            ),
        ]

    def __str__(self) -> str:
        return (self.text or self.quote)[:80]


class Correction(WrittenOnce):
    """A completion's text as an annotator would have had it. Empty: nothing of it should stand."""

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="corrections")
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="corrections"
    )
    text = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["judgment", "completion"], name="correction_once"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class Continuation(WrittenOnce):
    """A model's continuation of a rewritten completion, by the checkpoint that wrote it.

    Written when an annotator asks for one, accepted or not. Prefix, seed and sampling give the text again.
    """

    assignment = models.ForeignKey(
        "annotation.Assignment", on_delete=models.CASCADE, related_name="continuations"
    )
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, related_name="continuations"
    )
    prefix = models.TextField(help_text="The response up to the end of the rewrite.")
    text = models.TextField(blank=True)
    seed = models.BigIntegerField(null=True, blank=True)
    sampling = models.JSONField(default=dict, blank=True, help_text="As of a completion.")
    finish_reason = models.CharField(max_length=10, choices=FinishReason, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.text[:80]


class CorrectionEdit(WrittenOnce):
    """One local change of a correction: [start, end) of the completion was replaced.

    In order of `index` the edits give the corrected text from the completion's text. The annotator wrote
    the replacement, or a model did: then it is a part of `continuation`.
    """

    correction = models.ForeignKey(Correction, on_delete=models.CASCADE, related_name="edits")
    index = models.PositiveIntegerField()
    start = models.PositiveIntegerField(help_text="In code points of the completion.")
    end = models.PositiveIntegerField(help_text="Equal to `start` where text was only added.")
    quote = models.TextField(blank=True, help_text="What stood there.")
    replacement = models.TextField(blank=True)
    continuation = models.ForeignKey(
        Continuation,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="edits",
        help_text="The model's text that the replacement is a part of; none where the annotator wrote it.",
    )
    span_flag = models.ForeignKey(
        SpanFlag,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="edits",
        help_text="The span of the same judgment that the edit mends.",
    )

    class Meta:
        ordering = ["correction", "index"]
        constraints = [
            models.UniqueConstraint(fields=["correction", "index"], name="correction_edit_once"),
            models.CheckConstraint(condition=Q(end__gte=F("start")), name="correction_edit_in_order"),
            models.CheckConstraint(
                condition=~Q(quote="") | ~Q(replacement=""), name="correction_edit_changes_something"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.quote[:40]} → {self.replacement[:40]}"


class Rating(WrittenOnce):
    """One completion's rating on one criterion. The value is one of `SCALE_VALUES` of its scale."""

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="ratings")
    completion = models.ForeignKey("annotation.Completion", on_delete=models.PROTECT, related_name="ratings")
    criterion = models.ForeignKey("annotation.Criterion", on_delete=models.PROTECT, related_name="ratings")
    value = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["judgment", "criterion", "completion"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "completion", "criterion"], name="rating_once"),
            models.CheckConstraint(condition=Q(value__range=(0, 7)), name="rating_in_range"),
        ]

    def __str__(self) -> str:
        return f"{self.criterion}: {self.value}"


class Critique(WrittenOnce):
    """An annotator's words on one completion; those on the comparison are `Judgment.comment`."""

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="critiques")
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="critiques"
    )
    text = models.TextField()

    class Meta:
        ordering = ["judgment", "completion"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "completion"], name="critique_once"),
            models.CheckConstraint(condition=~Q(text=""), name="critique_says_something"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class QuestionAnswer(WrittenOnce):
    """The answer of one judgment to one version of a question.

    About the comparison, a completion, a step of it, or a span of the same judgment.
    """

    judgment = models.ForeignKey(Judgment, on_delete=models.CASCADE, related_name="answers")
    version = models.ForeignKey(
        "annotation.QuestionVersion", on_delete=models.PROTECT, related_name="answers"
    )
    completion = models.ForeignKey(
        "annotation.Completion",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="answers",
        help_text="None where the question is about the comparison.",
    )
    step = models.ForeignKey(
        "annotation.TraceStep",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="answers",
        help_text="The completion's step that the question is about; none for another question.",
    )
    span = models.ForeignKey(
        SpanFlag,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="answers",
        help_text="The judgment's span that the question is about; none for another question.",
    )
    value = models.JSONField(
        help_text="The key of a choice, a list of keys, the point of a scale, a number, a text or a date."
    )

    class Meta:
        ordering = ["judgment", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["judgment", "version", "completion"],
                condition=Q(step__isnull=True, span__isnull=True),
                name="question_answer_of_completion_once",
            ),
            models.UniqueConstraint(
                fields=["judgment", "version"],
                condition=Q(completion__isnull=True),
                name="question_answer_of_comparison_once",
            ),
            models.UniqueConstraint(
                fields=["judgment", "version", "step"],
                condition=Q(step__isnull=False),
                name="question_answer_of_step_once",
            ),
            models.UniqueConstraint(
                fields=["judgment", "version", "span"],
                condition=Q(span__isnull=False),
                name="question_answer_of_span_once",
            ),
            models.CheckConstraint(
                condition=Q(step__isnull=True, span__isnull=True)
                | (Q(completion__isnull=False) & (Q(step__isnull=True) | Q(span__isnull=True))),
                name="question_answer_of_one_subject",
            ),
        ]

    def __str__(self) -> str:
        return str(self.value)[:80]


class RepeatedQuestion(models.Model):
    """A question that is put again to who judged a comparison: it was added or changed since.

    Or a category of spans that was split since, whose spans get a sub-category. The labelling page opens the
    judgment with everything filled in; the next judgment closes the row.
    """

    assignment = models.ForeignKey(
        "annotation.Assignment", on_delete=models.CASCADE, related_name="repeated_questions"
    )
    question = models.ForeignKey(
        "annotation.ProjectQuestion",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="repeated",
        help_text="None where a category is put again.",
    )
    category = models.ForeignKey(
        "annotation.Category", on_delete=models.CASCADE, null=True, blank=True, related_name="repeated"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["assignment", "question"],
                condition=Q(answered_at__isnull=True),
                name="repeated_question_open_once",
            ),
            models.UniqueConstraint(
                fields=["assignment", "category"],
                condition=Q(answered_at__isnull=True),
                name="repeated_category_open_once",
            ),
            models.CheckConstraint(
                condition=Q(question__isnull=True, category__isnull=False)
                | Q(question__isnull=False, category__isnull=True),
                name="repeated_question_or_category",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.question or self.category} again in {self.assignment_id}"


class Demonstration(WrittenOnce):
    """The answer as an annotator would have written it, for supervised fine-tuning."""

    judgment = models.OneToOneField(Judgment, on_delete=models.CASCADE, related_name="demonstration")
    text = models.TextField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~Q(text=""), name="demonstration_says_something"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


# Reviews: decisions on judged comparisons. The votes stay as they are.


class Review(models.Model):
    """One comparison that goes to reviewers, and what they decided.

    Opened by the project's rules, when someone flagged the comparison or when a manager asks for it; once
    per comparison. The decision stands beside the judgments and changes none of them. It can be undone;
    `ReviewDecision` keeps every decision that was made.
    """

    comparison = models.OneToOneField(
        "annotation.Comparison", on_delete=models.PROTECT, related_name="review"
    )
    reason = models.CharField(max_length=15, choices=ReviewReason)
    opened_at = models.DateTimeField(auto_now_add=True)
    reviewer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="reviews"
    )
    verdict = models.CharField(max_length=20, choices=Verdict, blank=True, default="")
    ranks = models.JSONField(
        default=dict,
        blank=True,
        help_text="Completion id, as text → rank: 1 is best, equal numbers are tied.",
    )
    comment = models.TextField(blank=True)
    record = models.JSONField(
        null=True,
        blank=True,
        help_text="The whole decision as a judgment's record: spans, ratings, answers and the like. Empty "
        "where only a preference was decided.",
    )
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["opened_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(reason__in=ReviewReason.values), name="review_reason_known"),
            models.CheckConstraint(
                condition=Q(decided_at__isnull=True, verdict="", reviewer__isnull=True)
                | Q(decided_at__isnull=False, verdict__in=Verdict.values, reviewer__isnull=False),
                name="review_decided_whole_or_not_at_all",
            ),
        ]
        indexes = [
            models.Index(
                fields=["opened_at", "id"], condition=Q(decided_at__isnull=True), name="review_open_in_order"
            )
        ]

    def __str__(self) -> str:
        return f"Review of {self.comparison}"


class ReviewDecision(WrittenOnce):
    """One entry in the record of a review: a decision, or that the decision before it was undone."""

    review = models.ForeignKey(Review, on_delete=models.PROTECT, related_name="decisions")
    kind = models.CharField(max_length=10, choices=DecisionKind)
    reviewer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="review_decisions"
    )
    verdict = models.CharField(max_length=20, choices=Verdict, blank=True, default="")
    ranks = models.JSONField(default=dict, blank=True, help_text="As of a review.")
    comment = models.TextField(blank=True, help_text="The reason.")
    record = models.JSONField(null=True, blank=True, help_text="As of a review.")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["review", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind=DecisionKind.DECIDED, verdict__in=Verdict.values)
                | Q(kind=DecisionKind.UNDONE, verdict=""),
                name="review_decision_has_verdict",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.review}: {self.get_kind_display()}"


class ReviewReturn(models.Model):
    """An annotation that a reviewer returned to its annotator with a comment, and the answer to it.

    The annotator corrects, which writes a revision, or objects in words. A decision of the review
    withdraws what nobody has answered. Names of both sides stay hidden while the review is open.
    """

    review = models.ForeignKey(Review, on_delete=models.PROTECT, related_name="returns")
    assignment = models.ForeignKey(
        "annotation.Assignment", on_delete=models.PROTECT, related_name="returns", db_index=False
    )
    judgment = models.ForeignKey(
        Judgment, on_delete=models.PROTECT, related_name="returns", help_text="The version that was returned."
    )
    annotator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="returns_received", db_index=False
    )
    returned_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="returns_made"
    )
    comment = models.TextField(help_text="What the annotator should look at again.")
    returned_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=ReturnState, default=ReturnState.OPEN)
    revision = models.OneToOneField(
        Judgment,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="correction_of_return",
        help_text="The corrected version.",
    )
    objection = models.TextField(blank=True, help_text="Why the annotation stays as it is.")
    answered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="returns_answered",
    )
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["assignment"], condition=Q(state=ReturnState.OPEN), name="return_open_once"
            ),
            models.CheckConstraint(condition=~Q(comment=""), name="return_has_comment"),
            models.CheckConstraint(condition=~Q(returned_by=F("annotator")), name="return_to_someone_else"),
            models.CheckConstraint(
                condition=Q(answered_by__isnull=True) | Q(answered_by=F("annotator")),
                name="return_answered_by_annotator",
            ),
            models.CheckConstraint(
                condition=Q(
                    state=ReturnState.OPEN,
                    closed_at__isnull=True,
                    answered_by__isnull=True,
                    revision__isnull=True,
                    objection="",
                )
                | Q(
                    state=ReturnState.WITHDRAWN,
                    closed_at__isnull=False,
                    answered_by__isnull=True,
                    revision__isnull=True,
                    objection="",
                )
                | Q(
                    state=ReturnState.CORRECTED,
                    closed_at__isnull=False,
                    answered_by__isnull=False,
                    revision__isnull=False,
                    objection="",
                )
                | (
                    Q(
                        state=ReturnState.OBJECTED,
                        closed_at__isnull=False,
                        answered_by__isnull=False,
                        revision__isnull=True,
                    )
                    & ~Q(objection="")
                ),
                name="return_answered_whole_or_not_at_all",
            ),
        ]
        indexes = [
            models.Index(
                fields=["annotator", "id"], condition=Q(state=ReturnState.OPEN), name="return_open_of_person"
            ),
            models.Index(fields=["assignment", "id"], name="return_of_assignment"),
        ]

    def __str__(self) -> str:
        return f"{self.assignment}: {self.get_state_display()}"


# Suggestions for annotators: computed ahead, shown after the first pass, decided one by one.

_SHARE = [MinValueValidator(0.0), MaxValueValidator(1.0)]


class HelpSettings(models.Model):
    """Settings of help for the annotators of a project. The source of the suggestions is stored elsewhere.

    Written by `services.suggestions.settings` alone, together with `Project.has_help`.
    """

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.CASCADE, related_name="help_settings"
    )
    control_share = models.FloatField(
        default=0.2,
        validators=_SHARE,
        help_text="Share of an annotator's comparisons without help, 0 to 1.",
    )
    planted_share = models.FloatField(
        default=0.1, validators=_SHARE, help_text="Share of suggestions that are wrong on purpose, 0 to 1."
    )
    unread_seconds = models.FloatField(
        default=2.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(60.0)],
        help_text="A suggestion accepted faster than this counts as accepted unread.",
    )
    tells_planted = models.BooleanField(
        default=False,
        help_text="Tell annotators after the final pass which suggestions were planted.",
    )

    class Meta:
        verbose_name_plural = "help settings"
        constraints = [
            models.CheckConstraint(
                condition=Q(control_share__range=(0, 1), planted_share__range=(0, 1)),
                name="help_shares_in_range",
            ),
            models.CheckConstraint(condition=Q(unread_seconds__gte=0), name="help_unread_bound_positive"),
        ]

    def __str__(self) -> str:
        return f"Help in {self.project}"


class SuggestionSet(WrittenOnce):
    """All suggestions for one comparison, computed once; an empty set says that there are none."""

    comparison = models.OneToOneField(
        "annotation.Comparison", on_delete=models.CASCADE, related_name="suggestion_set"
    )
    source = models.CharField(max_length=200, help_text="The model that suggests, by its name.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"Suggestions of {self.source} for {self.comparison}"


class Suggestion(WrittenOnce):
    """One span, critique, missing information or preference that a model suggests.

    Spans are in code points, half open, with their quote. `original` is set where the suggestion was made
    wrong on purpose, and holds the fields as the model had them.
    """

    suggestion_set = models.ForeignKey(SuggestionSet, on_delete=models.CASCADE, related_name="suggestions")
    kind = models.CharField(max_length=20, choices=SuggestionKind)
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    category = models.ForeignKey(
        "annotation.Category", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    start = models.PositiveIntegerField(null=True, blank=True)
    end = models.PositiveIntegerField(null=True, blank=True)
    quote = models.TextField(blank=True, help_text="The suggested stretch, as it stands in the completion.")
    severity = models.PositiveSmallIntegerField(null=True, blank=True)
    text = models.TextField(blank=True, help_text="The critique, what is missing, or the reason.")
    verdict = models.CharField(max_length=20, choices=Verdict, blank=True)
    ranks = models.JSONField(default=dict, blank=True, help_text="Completion id, as text → rank; 1 is best.")
    confidence = models.FloatField(null=True, blank=True, help_text="Of the model, 0 to 1.")
    is_planted = models.BooleanField(default=False, help_text="Wrong on purpose.")
    original = models.JSONField(null=True, blank=True, help_text="What a planted suggestion was made from.")

    class Meta:
        ordering = ["suggestion_set", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=SuggestionKind.values), name="suggestion_kind_known"),
            models.CheckConstraint(
                condition=~Q(kind=SuggestionKind.SPAN)
                | Q(
                    completion__isnull=False,
                    category__isnull=False,
                    start__isnull=False,
                    end__gt=F("start"),
                ),
                name="suggestion_span_has_place",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=(SuggestionKind.SPAN, SuggestionKind.PREFERENCE))
                | (Q(completion__isnull=False) & ~Q(text="")),
                name="suggestion_text_of_a_completion",
            ),
            models.CheckConstraint(
                condition=~Q(kind=SuggestionKind.PREFERENCE) | Q(verdict__in=Verdict.values),
                name="suggestion_preference_known",
            ),
            models.CheckConstraint(
                condition=Q(confidence__isnull=True) | Q(confidence__range=(0, 1)),
                name="suggestion_confidence_in_range",
            ),
            models.CheckConstraint(
                condition=Q(is_planted=False) | Q(original__isnull=False), name="suggestion_planted_from"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {(self.quote or self.text or self.verdict)[:60]}"


class HelpReveal(models.Model):
    """One annotator's two passes over one comparison for which there were suggestions.

    Written with the first pass, in both arms; the arm never changes. In the control arm nothing is shown
    and the first pass is the only one. `final_judgment` supersedes `first_judgment`.
    """

    assignment = models.OneToOneField(
        "annotation.Assignment", on_delete=models.PROTECT, related_name="help_reveal"
    )
    arm = models.CharField(max_length=10, choices=HelpArm)
    first_judgment = models.OneToOneField(
        "annotation.Judgment", on_delete=models.PROTECT, related_name="help_after"
    )
    final_judgment = models.OneToOneField(
        "annotation.Judgment", on_delete=models.PROTECT, null=True, blank=True, related_name="help_before"
    )
    revealed_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(arm__in=HelpArm.values), name="help_arm_known"),
            models.CheckConstraint(
                condition=Q(final_judgment__isnull=True) | Q(arm=HelpArm.HELPED, finished_at__isnull=False),
                name="help_final_pass_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.assignment}, {self.get_arm_display()}"


class DecidedSuggestion(WrittenOnce):
    """An annotator's decision on one suggestion, written with their final pass."""

    reveal = models.ForeignKey(HelpReveal, on_delete=models.CASCADE, related_name="decisions")
    suggestion = models.ForeignKey(Suggestion, on_delete=models.PROTECT, related_name="decisions")
    decision = models.CharField(max_length=10, choices=SuggestionDecision)
    seconds = models.FloatField(
        null=True,
        blank=True,
        help_text="Since the reveal or the previous decision; none where not measured.",
    )
    decided_at = models.DateTimeField()

    class Meta:
        ordering = ["reveal", "suggestion"]
        constraints = [
            models.UniqueConstraint(fields=["reveal", "suggestion"], name="suggestion_decided_once"),
            models.CheckConstraint(
                condition=Q(decision__in=SuggestionDecision.values), name="suggestion_decision_known"
            ),
            models.CheckConstraint(
                condition=Q(seconds__isnull=True) | Q(seconds__gte=0), name="suggestion_seconds_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.suggestion}: {self.get_decision_display()}"
