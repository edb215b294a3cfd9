"""Every set of states and kinds in `annotation`, in one place."""

from enum import StrEnum

from django.db import models
from django.utils.translation import gettext_lazy as _


class Role(models.TextChoices):
    """Roles of members in one project. Each includes those above it."""

    ANNOTATOR = "annotator", _("annotator")
    REVIEWER = "reviewer", _("reviewer")
    MANAGER = "manager", _("manager")


class TokenScope(models.TextChoices):
    """Scopes of an API token."""

    READ = "read", _("read what you may see")
    LABEL = "label", _("judge and review")
    MANAGE = "manage", _("change projects, rounds and checkpoints")
    GENERATE = "generate", _("generate responses with models")
    FEEDBACK = "feedback", _("give feedback of end users on responses")


class Split(models.TextChoices):
    """Split of a prompt, the same in every experiment."""

    TRAIN = "train", _("train")
    HELD_OUT = "held-out", _("held-out")


class SourceKind(models.TextChoices):
    """Kinds of sources of completions."""

    CHECKPOINT = "checkpoint", _("checkpoint")
    IMPORT = "import", _("imported set")
    PERSON = "person", _("person")


class FinishReason(models.TextChoices):
    """Reasons for the end of a completion."""

    STOP = "stop", _("the model ended it")
    LENGTH = "length", _("token limit")
    UNKNOWN = "", _("unknown")

    @classmethod
    def _missing_(cls, value: object) -> "FinishReason":
        """Return UNKNOWN for a reason that only some model server gives."""
        return cls.UNKNOWN


class CategoryScope(models.TextChoices):
    """Scope of an error category."""

    SPAN = "span", _("a stretch of the response")
    MISSING = "missing", _("something the response leaves out")


class Granularity(models.TextChoices):
    """Over which stretch of text a reward for this category is given (Wu et al. 2023)."""

    SUB_SENTENCE = "sub-sentence", _("sub-sentence")
    SENTENCE = "sentence", _("sentence")
    WHOLE = "whole", _("whole response")


class Polarity(models.TextChoices):
    """Polarity of a span: blame or praise."""

    ERROR = "error", _("an error")
    NEUTRAL = "neutral", _("neither")
    MERIT = "merit", _("a merit")


SIGNS = {Polarity.ERROR: "−", Polarity.NEUTRAL: "○", Polarity.MERIT: "+"}
"""Beside the colour of a span, where a project has spans of several polarities."""


class SpanRelation(models.TextChoices):
    """What one span is to another of the same judgment."""

    CAUSE = "cause", _("causes")
    CONTRADICTS = "contradicts", _("contradicts")


class RatingScale(models.TextChoices):
    """The steps on which a criterion is rated; `SCALE_VALUES` has their numbers."""

    FIVE = "five", _("1 to 5")
    SEVEN = "seven", _("1 to 7")
    THUMBS = "thumbs", _("thumb down or up")


SCALE_VALUES = {RatingScale.FIVE: range(1, 6), RatingScale.SEVEN: range(1, 8), RatingScale.THUMBS: range(2)}
"""The values of each scale, worst first; a thumb down is 0 and a thumb up 1."""


class QuestionKind(models.TextChoices):
    """Kinds of questions of a project."""

    CHOICE = "choice", _("one choice")
    CHOICES = "choices", _("several choices")
    SCALE = "scale", _("scale")
    NUMBER = "number", _("number")
    TEXT = "text", _("text")
    DATE = "date", _("date")


class QuestionSubject(models.TextChoices):
    """Subjects of questions of a project."""

    COMPARISON = "comparison", _("the comparison")
    COMPLETION = "completion", _("each response")
    SPAN = "span", _("each span")
    STEP = "step", _("each step of a trace")


class Purpose(models.TextChoices):
    """Purpose of a comparison. Only work is ever learned from."""

    WORK = "work", _("work")
    GOLD = "gold", _("gold: known answer, mixed in unannounced")
    QUALIFICATION = "qualification", _("qualification: to be passed before real work")
    ARENA = "arena", _("arena: voted on outside the queue")
    DELETED = "deleted", _("deleted: in no list, and nothing learns from it")


KNOWN_PURPOSES = [Purpose.GOLD.value, Purpose.QUALIFICATION.value]
"""Purposes of comparisons that have a known answer."""


class AcquisitionStrategy(models.TextChoices):
    """Order of the open comparisons of a round and priority."""

    AGE = "age", _("the oldest")
    RANDOM = "random", _("random")
    UNCERTAINTY = "uncertainty", _("where the reward model is least certain")
    DISAGREEMENT = "disagreement", _("where reward heads disagree most")
    D_OPTIMAL = "d_optimal", _("D-optimal for the Bradley-Terry model")
    HEAD_UNCERTAINTY = "head_uncertainty", _("least certain outcome, learned after every few annotations")
    BALD = "bald", _("most information about the reward (BALD), learned after every few annotations")
    HEAD_D_OPTIMAL = "head_d_optimal", _("D-optimal for the reward, learned after every few annotations")
    TARGETED = "targeted", _("least variance over all comparisons, learned after every few annotations")
    DELTA_UCB = "delta_ucb", _("widest gap in quality (DeltaUCB), learned after every few annotations")
    INFORMATION_DIRECTED = (
        "information_directed",
        _("most information for the least expected gap, learned after every few annotations"),
    )
    THOMPSON = "thompson", _("best against worst by chance (Thompson), learned after every few annotations")


FOLLOWS_HEAD = (
    AcquisitionStrategy.HEAD_UNCERTAINTY,
    AcquisitionStrategy.BALD,
    AcquisitionStrategy.HEAD_D_OPTIMAL,
    AcquisitionStrategy.TARGETED,
    AcquisitionStrategy.DELTA_UCB,
    AcquisitionStrategy.THOMPSON,
    AcquisitionStrategy.INFORMATION_DIRECTED,
)
"""Strategies based on a head on features, which a worker fits again after every few annotations."""


class TraceStepKind(models.TextChoices):
    """Kinds of steps of an agent trace or a session."""

    MESSAGE = "message", _("message")
    REASONING = "reasoning", _("reasoning")
    TOOL_CALL = "tool_call", _("tool call")
    TOOL_RESULT = "tool_result", _("tool result")


class StepLabel(models.TextChoices):
    """Labels of a single step of a trace."""

    CORRECT = "correct", _("correct")
    WRONG = "wrong", _("wrong")
    UNNECESSARY = "unnecessary", _("unnecessary")


class ContextDisplay(models.TextChoices):
    """State of a prompt's context when a comparison opens on the labelling screen."""

    AUTO = "auto", _("open when the prompt refers to it")
    OPEN = "open", _("open")
    FOLDED = "folded", _("folded")


class WrittenIn(models.TextChoices):
    """Texts of a labelling page into which an annotator may paste."""

    CRITIQUE = "critique", _("critique")
    CORRECTION = "correction", _("correction")
    DEMONSTRATION = "demonstration", _("own response")
    COMMENT = "comment", _("comment")
    ANSWER = "answer", _("answer to a question")
    OTHER = "other", _("another text")


class SuggestionKind(models.TextChoices):
    """Kinds of suggestions that a model makes to an annotator."""

    SPAN = "span", _("span")
    CRITIQUE = "critique", _("critique")
    MISSING = "missing", _("missing information")
    PREFERENCE = "preference", _("preference")


class SuggestionDecision(models.TextChoices):
    """Decisions of an annotator on a suggestion."""

    ACCEPTED = "accepted", _("accepted")
    CHANGED = "changed", _("changed")
    REJECTED = "rejected", _("rejected")


class HelpArm(models.TextChoices):
    """Arms of the experiment that measures the effect of suggestions."""

    HELPED = "helped", _("with help")
    CONTROL = "control", _("without help, as control")


class AcquisitionArm(models.TextChoices):
    """Choice that led to an assignment, so that the gain of a strategy can be measured."""

    STRATEGY = "strategy", _("by the project's strategy")
    CONTROL = "control", _("at random, as control")


class WithholdingState(models.TextChoices):
    """Decision on a comparison in which a model seems to name itself."""

    PENDING = "pending", _("waits for the manager")
    RELEASED = "released", _("released: nothing is given away")
    DISCARDED = "discarded", _("discarded")


class QualificationState(models.TextChoices):
    """State of one annotator in the qualification set of a project."""

    NOT_ASKED = "not_asked", _("not asked")
    OPEN = "open", _("not finished")
    PASSED = "passed", _("passed")
    FAILED = "failed", _("not passed")


class WhyNothing(models.TextChoices):
    """Reasons for an empty queue."""

    NOTHING_LEFT = "nothing_left", _("nothing is left")
    DAY_IS_FULL = "day_is_full", _("the day's limit is reached")
    TOTAL_REACHED = "total_reached", _("the limit of this person is reached")
    NOT_QUALIFIED = "not_qualified", _("the qualification was not passed")
    OTHER_SKILLS = "other_skills", _("what is open asks for other skills")
    ARCHIVED = "archived", _("the project is archived")


class ParticipantState(models.TextChoices):
    """Life of a participant of a panel: working → completed, or failed attention."""

    WORKING = "working", _("at work")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("attention not passed")


class Availability(models.TextChoices):
    """Availability of work to one annotator."""

    READY = "ready", _("has work")
    WAITING = "waiting", _("waiting: nothing is left to label")
    BLOCKED = "blocked", _("blocked")


class PaceSign(models.TextChoices):
    """Signs that an annotator's work deserves a look."""

    SLOW = "slow", _("slow")
    FAST = "fast", _("faster than reading")
    DRIFTING = "drifting", _("drifting")


class PayBasis(models.TextChoices):
    """Bases of pay."""

    HOUR = "hour", _("by hour")
    ITEM = "item", _("by annotation")


class CalibrationDraw(models.TextChoices):
    """Comparisons that a calibration session is drawn from."""

    OPEN = "open", _("open ones that no participant has had")
    ANSWERED = "answered", _("annotated ones")


class ReviewReason(models.TextChoices):
    """Reasons for a review."""

    DISAGREEMENT = "disagreement", _("annotators disagree")
    FLAGGED = "flagged", _("it was flagged")
    REQUESTED = "requested", _("asked for by a manager")
    LOW_AGREEMENT = "low_agreement", _("agreement is low")
    NEWCOMER = "newcomer", _("among the first of a new annotator")
    PERIODIC = "periodic", _("every n-th annotation is reviewed")
    RANDOM = "random", _("drawn at random")


class ReturnState(models.TextChoices):
    """Life of a returned annotation: open → corrected, objected or withdrawn."""

    OPEN = "open", _("waiting for the annotator")
    CORRECTED = "corrected", _("corrected")
    OBJECTED = "objected", _("objected")
    WITHDRAWN = "withdrawn", _("withdrawn by a decision")


class DecisionKind(models.TextChoices):
    """Entries in the record of a review."""

    DECIDED = "decided", _("decided")
    UNDONE = "undone", _("undone")


class AssignmentState(models.TextChoices):
    """Life of a lease: leased → submitted, skipped, released or expired."""

    LEASED = "leased", _("leased")
    SUBMITTED = "submitted", _("submitted")
    SKIPPED = "skipped", _("skipped")
    RELEASED = "released", _("given back")
    EXPIRED = "expired", _("expired")


class TurnState(models.TextChoices):
    """State of a turn of a conversation."""

    GENERATING = "generating", _("responses are generated")
    JUDGING = "judging", _("waits for the annotation")
    JUDGED = "judged", _("waits for the next message")


SPENT_STATES = (AssignmentState.LEASED, AssignmentState.SUBMITTED, AssignmentState.SKIPPED)
"""States of an assignment after which its comparison does not come to the same person again."""


NOT_ORDERED = 0
"""Rank, in ranks by place, of a completion that a partial ranking leaves without an order.

A partial ranking ranks the best m of k completions. The others are below all of these, in no order and not
tied. Ranks by completion (database, API, records, snapshots) do not name them. Ranks by place, as of an
imported judgment, have this number for them; tensors have −1 (`training.rlhf.losses`), where 0 is absence.
"""


class Verdict(models.TextChoices):
    """Verdicts of annotators. The four without a winner are never the same thing."""

    RANKED = "ranked", _("ranked")
    EQUAL = "equal", _("equal")
    BOTH_GOOD = "both_good", _("both good")
    BOTH_BAD = "both_bad", _("both bad")
    CANNOT_JUDGE = "cannot_judge", _("cannot judge")
    NOT_ASKED = "not_asked", _("not asked")


class Shown(models.TextChoices):
    """Comparisons that a manager looks at: those behind one number of the statistics."""

    JUDGED = "judged", _("all annotated")
    DISAGREE = "disagree", _("annotators disagree")
    AGREE = "agree", _("annotators agree")
    FIRST_WON = "first-won", _("what was shown first won")
    LATER_WON = "later-won", _("what was shown later won")
    NO_WINNER = "no-winner", _("a no-preference option was chosen")
    GOLD_RIGHT = "gold-right", _("gold, correct")
    GOLD_WRONG = "gold-wrong", _("gold, incorrect")
    RETEST_SAME = "retest-same", _("retest, consistent")
    RETEST_CHANGED = "retest-changed", _("retest, inconsistent")
    CIRCLES = "circles", _("intransitive preferences")
    FLAGGED = "flagged", _("with spans or missing information")
    OPEN = "open", _("not fully annotated yet")


class TaskName(StrEnum):
    """Names of the Celery tasks of `annotation`; queued messages contain them."""

    DO_IMPORT = "annotation.tasks.do_import"
    CHECK_SOURCE = "annotation.tasks.check_source"
    DELIVER_WEBHOOKS = "annotation.tasks.deliver_webhooks"
    RECORD_AGREEMENT = "annotation.tasks.record_agreement"
    COMPUTE_REPORT = "annotation.tasks.compute_report"
    UPDATE_ACQUISITION = "annotation.tasks.update_acquisition"
    SWEEP = "annotation.tasks.sweep"
    SEND_NOTIFICATION = "annotation.tasks.send_notification"
    SEND_INVITATION = "annotation.tasks.send_invitation"
    SEND_DIGESTS = "annotation.tasks.send_digests"
    SEND_PASSWORD_RESET = "annotation.tasks.send_password_reset"  # noqa: S105 - a name


class Cap(StrEnum):
    """Kinds of jobs of which a project may have so many at work at once; `selectors.jobs` counts them."""

    ROUNDS = "rounds"
    LONG = "long"
    IMPORTS = "imports"


class NotificationKind(models.TextChoices):
    """Events that the inbox shows."""

    MENTION = "mention", _("mention")
    REPLY = "reply", _("reply")
    QUESTION = "question", _("question")
    COMMENT = "comment", _("comment")
    REVIEW_DECIDED = "review_decided", _("review")
    RETURNED = "returned", _("returned annotation")
    RETURN_ANSWERED = "return_answered", _("answer to a returned annotation")
    OVERRULED = "overruled", _("overruled annotation")
    CALIBRATION_BEGUN = "calibration_begun", _("calibration session")
    CALIBRATION_REVEALED = "calibration_revealed", _("revealed calibration session")
    ROUND_FAILED = "round_failed", _("failed round")
    JOB_FAILED = "job_failed", _("failed job")
    DECISION_WAITING = "decision_waiting", _("decision")
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence", _("not enough evidence")


class MailState(models.TextChoices):
    """Life of an e-mail: none, or waiting → sent or failed. It is sent at most once."""

    NONE = "", _("not by e-mail")
    WAITING = "waiting", _("waiting")
    SENT = "sent", _("sent")
    FAILED = "failed", _("failed")


class JobState(models.TextChoices):
    """Life of a background job: waiting → running → finished or failed; one whose worker died waits again."""

    WAITING = "waiting", _("waiting")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")


class ImportState(models.TextChoices):
    """Life of an imported file: uploaded → waiting → running → finished or failed → undoing → undone."""

    UPLOADED = "uploaded", _("uploaded, not imported yet")
    WAITING = "waiting", _("waiting for a worker")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    UNDOING = "undoing", _("being undone")
    UNDONE = "undone", _("undone")


class WebhookEvent(models.TextChoices):
    """Events of webhooks. Each state of a round is an event of its own, under the round's own words."""

    JUDGMENT_SUBMITTED = "judgment.submitted", _("an annotation was submitted")
    JUDGMENT_CHANGED = "judgment.changed", _("an annotation was revised")
    ROUND_DRAFT = "round.draft", _("a round was drafted, or taken back to its draft")
    ROUND_SAMPLING = "round.sampling", _("a round has responses to its prompts")
    ROUND_LABELLING = "round.labelling", _("a round can be labelled")
    ROUND_TRAINING_REWARD_MODELS = "round.training_reward_models", _("a round trains its reward models")
    ROUND_TRAINING_POLICY = "round.training_policy", _("a round trains its policy")
    ROUND_EVALUATING = "round.evaluating", _("a round evaluates its new policy")
    ROUND_DECIDING = "round.deciding", _("a round waits for its decision")
    ROUND_PROMOTED = "round.promoted", _("a round's new policy was promoted")
    ROUND_REJECTED = "round.rejected", _("a round's new policy was rejected")
    ROUND_NOT_ENOUGH_EVIDENCE = (
        "round.not_enough_evidence",
        _("a round ended without enough evidence to decide"),
    )
    ROUND_PAUSED = "round.paused", _("a round was paused")
    ROUND_FAILED = "round.failed", _("a round failed")
    ROUND_CANCELLED = "round.cancelled", _("a round was cancelled")
    RUN_CREATED = "run.created", _("a run was written down and waits for its trainer")
    RUN_STARTED = "run.started", _("a run's trainer started, or went on")
    RUN_FINISHED = "run.finished", _("a run finished")
    RUN_STOPPED = "run.stopped", _("a run stopped and can be resumed")
    RUN_FAILED = "run.failed", _("a run failed")
    CHECKPOINT_REGISTERED = "checkpoint.registered", _("a checkpoint entered the collection")
    CHECKPOINT_DELETED = "checkpoint.deleted", _("a checkpoint's files were deleted")


class DeliveryState(models.TextChoices):
    """Life of a webhook's delivery: waiting → delivered or given up; sent again by hand it waits again."""

    WAITING = "waiting", _("waiting")
    DELIVERED = "delivered", _("delivered")
    GIVEN_UP = "given_up", _("given up")


class WhyDisabled(models.TextChoices):
    """Reasons for which Rondo disables a webhook."""

    FAILING = "failing", _("nothing could be delivered for days")
    GONE = "gone", _("the receiver answered that it is gone (410)")


STRENGTHS = {
    1: _("slightly better"),
    2: _("somewhat better"),
    3: _("better"),
    4: _("much better"),
}
"""Strength of a preference, in words: how much better the winner of a pair is."""
