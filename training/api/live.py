"""Live learning: its settings, the policy of now, its updates."""

from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView, storable
from annotation.api.operations import PROJECT, Resource, Values
from annotation.errors import Refusal
from training.api.rounds import RunQuestionSerializer
from training.models import (
    LEAST_AHEAD,
    LEAST_JUDGMENTS,
    MOST_AHEAD,
    MOST_JUDGMENTS,
    LiveLearning,
    LiveUpdate,
)
from training.selectors.live import live_view
from training.selectors.rounds import questions_of_updates
from training.services.live import set_live


class LiveSerializer(serializers.Serializer[Any]):
    """The settings of live learning, and the policy that answers now."""

    is_active = fields.flag("Whether judgments move the policy while people label.")
    every = fields.integer(
        "Judgments that prefer a response to a training prompt, after which the policy is updated.",
        required=False,
        least=LEAST_JUDGMENTS,
        most=MOST_JUDGMENTS,
    )
    ahead = fields.integer(
        "Comparisons of fresh responses that wait at most.",
        required=False,
        least=LEAST_AHEAD,
        most=MOST_AHEAD,
    )
    policy = serializers.DictField(
        required=False, help_text="Settings of an update: direct preference optimisation, as in a recipe."
    )
    state = fields.text("Of its work; null before it was ever on.", read_only=True, allow_null=True)
    message = fields.text(read_only=True)
    error = fields.text(read_only=True)
    stopped_because = fields.text("Why it switched itself off.", read_only=True)
    version = fields.integer("Number of the update whose policy answers; 0 before the first.", read_only=True)
    checkpoint = fields.text("Its checkpoint.", read_only=True, allow_null=True)
    judgments_ago = fields.integer("Judgments since it began to answer.", read_only=True, allow_null=True)
    behind = fields.integer("Judgments that it has not learned from.", read_only=True)
    questions = fields.computed("What its guard asked people, the newest first; steps are updates.")

    def get_questions(self, shown: Values) -> list[dict[str, Any]]:
        """In the language of the request."""
        return [dict(RunQuestionSerializer(question).data) for question in shown["questions"]]


@fields.of(
    LiveUpdate,
    "number round state judgments behind snapshot run checkpoint error judged_at begun_at served_at",
    "answered_at",
)
class LiveUpdateSerializer(serializers.ModelSerializer[LiveUpdate]):
    """An update of the policy while people label."""

    round = fields.integer("Number of the round.", source="round.number")
    snapshot = fields.text("Digest.", source="snapshot.digest", default=None, allow_null=True)
    run = fields.text("Name.", source="run.name", default=None, allow_null=True)
    checkpoint = fields.text("Name.", source="checkpoint.name", default=None, allow_null=True)


def _updates(view: ProjectView) -> QuerySet[LiveUpdate]:
    related = ("round", "snapshot", "run__checkpoint")
    return LiveUpdate.objects.filter(project=view.project).select_related(*related)


live = Resource(ProjectView, f"{PROJECT}live/", tag="rounds")


@live.get(returns=LiveSerializer)
def live_read(view: ProjectView) -> Values:
    """Read the settings of live learning, and which policy answers now."""
    shown = live_view(view.project)
    learning = shown.learning if shown else LiveLearning(is_active=False)
    checkpoint = shown.serving.checkpoint if shown and shown.serving else None
    return {
        **{name: getattr(learning, name) for name in ("is_active", "every", "ahead", "policy")},
        "state": learning.state if shown else None,
        **{name: getattr(learning, name) for name in ("message", "error", "stopped_because")},
        "version": shown.version if shown else 0,
        "checkpoint": checkpoint.name if checkpoint else None,
        "judgments_ago": shown.judgments_ago if shown else None,
        "behind": shown.behind if shown else 0,
        "questions": questions_of_updates(view.project),
    }


@live.put(takes=LiveSerializer, returns=LiveSerializer)
def live_set(view: ProjectView, values: Values) -> Values:
    """Switch live learning on or off, and change its settings. What is left out keeps its value."""
    if not storable(values.get("policy", {})):
        raise Refusal(
            "text_not_storable", _("The text holds a character that cannot be stored."), field="policy"
        )
    set_live(project=view.project, by=view.user, **values)
    return live_read(view)


updates = Resource(ProjectView, f"{PROJECT}live/updates/", tag="rounds", rows=_updates)
updates.add_list("live_updates", LiveUpdateSerializer, "List the updates of the policy, newest first.")
