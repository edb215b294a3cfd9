"""Calibration sessions: made, answered blind, revealed, talked about, and what came of them."""

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from annotation.api import fields
from annotation.api.answers import JudgmentSerializer, judgments_with_parts
from annotation.api.base import OldestFirst, ProjectView
from annotation.api.inbox import CommentSerializer, NewCommentSerializer
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.quality import EstimateSerializer
from annotation.api.texts import MessageSerializer
from annotation.choices import CalibrationDraw, Role, TokenScope
from annotation.errors import Refusal
from annotation.models import CalibrationItem, CalibrationSession, Comment, Judgment
from annotation.selectors.calibration import (
    ItemPage,
    eligible_participants,
    items_of,
    progress_in,
    sessions_for,
)
from annotation.services.calibration import (
    LONGEST_NAME,
    MOST_ITEMS,
    MOST_PARTICIPANTS,
    NewSession,
    close_session,
    create_session,
    delete_session,
    require_revealed,
    reveal_session,
    start_retest,
)
from annotation.services.inbox import post_talk


@fields.of(CalibrationSession, "id name retest_of created_by created_at revealed_by revealed_at closed_at")
class CalibrationSerializer(serializers.ModelSerializer[CalibrationSession]):
    """A calibration session."""

    created_by = fields.text(source="created_by.username")
    revealed_by = fields.text(source="revealed_by.username", default=None, allow_null=True)


class ProgressSerializer(serializers.Serializer[Any]):
    """A participant's progress, in comparisons."""

    annotator = fields.text(source="user.username")
    answered = fields.integer()
    skipped = fields.integer()
    left = fields.integer()


@fields.more("comparisons participants")
class WholeCalibrationSerializer(CalibrationSerializer):
    """A session with its participants."""

    comparisons = fields.computed("Those that were deleted since are not counted.")
    participants = fields.computed("Everybody's progress, by username.")

    def get_comparisons(self, session: CalibrationSession) -> int:
        return items_of(session).count()

    @extend_schema_field(ProgressSerializer(many=True))
    def get_participants(self, session: CalibrationSession) -> list[dict[str, Any]]:
        return [dict(ProgressSerializer(row).data) for row in progress_in(session)]


class NewCalibrationSerializer(serializers.Serializer[Any]):
    """A session to begin: of the comparisons named, or of some drawn at random."""

    name = fields.text(most=LONGEST_NAME)
    participants = fields.several(
        fields.text(most=150), "Usernames of members who take part.", least=2, most=MOST_PARTICIPANTS
    )
    comparisons = fields.several(fields.key(), "In their order.", most=MOST_ITEMS, default=list)
    draw = fields.integer(
        "How many to draw where none are named.", least=1, most=MOST_ITEMS, required=False, default=10
    )
    draw_from = fields.choice(CalibrationDraw.choices, required=False, default=CalibrationDraw.OPEN)


class NewRetestSerializer(serializers.Serializer[Any]):
    """A retest to begin."""

    same = fields.flag("The same comparisons again; else fresh ones.", default=False)
    number = fields.integer(
        "Of fresh comparisons; as many as the session has when left out.",
        least=1,
        most=MOST_ITEMS,
        required=False,
        allow_null=True,
        default=None,
    )


class MadeCalibrationSerializer(serializers.Serializer[Any]):
    """A session that was begun."""

    session = WholeCalibrationSerializer()
    skipped = serializers.DictField(child=fields.integer(), help_text="Reason → comparisons left out.")


class AlphaSerializer(serializers.Serializer[Any]):
    """Krippendorff's α of one thing that was asked."""

    label = fields.text("The preference, a criterion or a question.")  # type: ignore[assignment]
    before = EstimateSerializer(help_text="At the reveal.")
    after = EstimateSerializer(help_text="At the close; now while the session is open.")


class ItemAgreementSerializer(serializers.Serializer[Any]):
    """One comparison of a session: the share of pairs of participants who agree."""

    index = fields.integer(source="item.index")
    prompt = fields.text("What was asked last.", source="item.comparison.prompt.last_question")
    annotations = fields.integer("At the reveal.")
    before = fields.number(allow_null=True)
    after = fields.number(allow_null=True)


class AlphaPointSerializer(serializers.Serializer[Any]):
    """α of the preference at one moment."""

    session = fields.integer(source="session.pk")
    at = fields.time()
    moment = fields.text(source="label")
    estimate = EstimateSerializer()


class ResultsSerializer(serializers.Serializer[Any]):
    """What a session led to."""

    alphas = AlphaSerializer(many=True)
    items = ItemAgreementSerializer(many=True, help_text="Least agreement first.")
    curve = AlphaPointSerializer(
        many=True, source="curve.points", help_text="Of the session and its retests, the oldest first."
    )


class ItemResponseSerializer(serializers.Serializer[Any]):
    """A response of a comparison, by its number."""

    answer = fields.text("Its number, from 1.")
    text = fields.text()


class CalibrationVoteSerializer(serializers.Serializer[Any]):
    """A participant's annotation of one item. Its `answer` fields have the numbers of the responses."""

    annotator = fields.text()
    changed = fields.flag("It was changed after the reveal.")
    before = JudgmentSerializer(allow_null=True, help_text="At the reveal; null for who answered later.")
    now = JudgmentSerializer(help_text="At the close, once the session is closed.")


class ItemVotesSerializer(serializers.Serializer[Any]):
    """One comparison of a revealed session with everybody's annotation."""

    index = fields.integer()
    sealed = fields.flag("It is asked again in a retest, which hides the annotations until its reveal.")
    messages = MessageSerializer(many=True)
    answers = ItemResponseSerializer(many=True)
    votes = CalibrationVoteSerializer(many=True)

    def to_representation(self, page: ItemPage) -> dict[str, Any]:
        numbers = {str(pk): str(number) for pk, number in page.numbers.items()}
        shown = {each.judgment.pk for vote in page.votes for each in (vote.before, vote.now) if each}
        rows = judgments_with_parts(Judgment.objects.filter(pk__in=shown))
        judgments = {
            row["id"]: row for row in JudgmentSerializer(rows, many=True, context={"numbers": numbers}).data
        }
        return {
            "index": page.item.index,
            "sealed": page.comparison.is_sealed,
            "messages": MessageSerializer(page.comparison.prompt.messages, many=True).data,
            "answers": [
                {"answer": numbers[str(completion.pk)], "text": completion.text}
                for completion in page.completions
            ],
            "votes": [
                {
                    "annotator": vote.user.username,
                    "changed": vote.is_changed,
                    "before": vote.before and judgments[vote.before.judgment.pk],
                    "now": judgments[vote.now.judgment.pk],
                }
                for vote in page.votes
            ],
        }


calibrations = Resource(
    ProjectView,
    f"{PROJECT}calibrations/",
    tag="quality",
    rows=lambda view: sessions_for(view.project, view.user).select_related(
        "project", "created_by", "revealed_by", "retest_of"
    ),
)
session = calibrations.item("<int:pk>/")
item = calibrations.item("<int:pk>/items/<int:index>/", find=lambda view, pk, index: _item(view, pk, index))

calibrations.add_list(
    "calibrations_list",
    CalibrationSerializer,
    "List calibration sessions, newest first: managers see all, others those they take part in.",
    role=Role.ANNOTATOR,
)


@session.get(returns=WholeCalibrationSerializer, role=Role.ANNOTATOR)
def calibrations_read(view: ProjectView, session: CalibrationSession) -> CalibrationSession:
    """Read a session and who has answered how much. No annotation is in it."""
    return session


@calibrations.post(takes=NewCalibrationSerializer, returns=MadeCalibrationSerializer, status=201)
def calibrations_create(view: ProjectView, values: Values) -> Values:
    """Begin a session. Until the reveal its annotations are hidden from everyone but their annotators."""
    members = {user.username: user.pk for user in eligible_participants(view.project)}
    for index, name in enumerate(values["participants"]):
        if name not in members:
            raise Refusal(
                "calibration_participant_unknown",
                _("%(name)s is no member who can take part."),
                field=f"participants.{index}",
                name=name,
            )
    people = [members[name] for name in values.pop("participants")]
    return _made(create_session(project=view.project, created_by=view.user, participants=people, **values))


@session.post("reveal/", returns=WholeCalibrationSerializer)
def calibrations_reveal(view: ProjectView, session: CalibrationSession) -> CalibrationSession:
    """Show everybody's annotations to everybody."""
    return reveal_session(session=session, revealed_by=view.user)


@session.post("close/", returns=WholeCalibrationSerializer)
def calibrations_close(view: ProjectView, session: CalibrationSession) -> CalibrationSession:
    """End the talk: what each annotation is now is what the session led to."""
    return close_session(session=session, closed_by=view.user)


@session.post("retest/", takes=NewRetestSerializer, returns=MadeCalibrationSerializer, status=201)
def calibrations_retest(view: ProjectView, session: CalibrationSession, values: Values) -> Values:
    """Begin a session of the same people that measures what lasts. It closes this one."""
    return _made(
        start_retest(
            session=session, started_by=view.user, is_same=values["same"], number=values["number"] or 0
        )
    )


@session.delete()
def calibrations_delete(view: ProjectView, session: CalibrationSession) -> None:
    """Delete a session with its talk. Its annotations stay, and are hidden no longer."""
    delete_session(session=session, deleted_by=view.user)


@session.get("results/", returns=ResultsSerializer, role=Role.ANNOTATOR)
def calibrations_results(view: ProjectView, session: CalibrationSession) -> Any:
    """Read α before and after the talk, and of retests. Refused before the reveal."""
    # NumPy is loaded when somebody asks for this, not with the web server.
    from annotation.statistics.calibration import results_of

    require_revealed(session)
    return results_of(session)


@item.get(returns=ItemVotesSerializer, role=Role.ANNOTATOR)
def calibrations_votes(view: ProjectView, item: CalibrationItem) -> ItemPage:
    """Read the annotations of one comparison side by side. Refused before the reveal."""
    return ItemPage(item)


@item.get_list(CommentSerializer, "talk/", pages=OldestFirst, role=Role.ANNOTATOR)
def calibrations_talk(view: ProjectView, item: CalibrationItem) -> QuerySet[Comment]:
    """List the talk on one comparison, oldest first. Refused before the reveal."""
    return Comment.objects.filter(calibration_item=item).select_related("author")


@item.post(
    "talk/",
    takes=NewCommentSerializer,
    returns=CommentSerializer,
    status=201,
    role=Role.ANNOTATOR,
    scope=TokenScope.LABEL,
)
def calibrations_say(view: ProjectView, item: CalibrationItem, values: Values) -> Comment:
    """Write into the talk on one comparison; `@name` mentions a participant."""
    return post_talk(item=item, author=view.user, **values)


def _item(view: ProjectView, pk: int, index: int) -> CalibrationItem:
    """Return an item of a revealed session that the user sees."""
    session = get_object_or_404(sessions_for(view.project, view.user), pk=pk)
    session.project = view.project
    item = get_object_or_404(items_of(session).select_related("comparison__prompt"), index=index)
    require_revealed(session)
    item.session, item.comparison.project = session, view.project
    return item


def _made(made: NewSession) -> Values:
    return {
        "session": made.session,
        "skipped": {str(why): number for why, number in made.skipped.items()},
    }
