"""The screen of a conversation: the labelling screen while responses are judged, else the next message."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.http import HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString

from annotation.choices import TurnState
from annotation.forms import Entered, JudgmentForm
from annotation.models import Assignment, Conversation
from annotation.services.judgments.confirmations import Doubt
from annotation.text.rendering import render_markdown
from annotation.views.access import Request
from annotation.views.labelling.places import Place, place_of
from annotation.views.labelling.screen import Screen, draft_of
from training.forms.conversations import EndForm
from training.selectors.conversation_transcripts import TurnRead, transcript_of
from training.selectors.conversations import Standing, completions_shown, responses_to

_ROLES = {"user", "assistant", "system"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    """Addresses that the forms and the script of a conversation's screen send to."""

    page: str
    say: str
    write: str
    end: str
    others: str
    """The list of conversations; of an arena the arena itself."""
    submit: str = ""
    """Of a vote in an arena; the labelling screen has its own."""

    @classmethod
    def of_member(cls, conversation: Conversation) -> "Addresses":
        """Return the addresses of a member's conversation."""
        slug, pk = conversation.project.slug, conversation.pk
        return cls(
            page=conversation.get_absolute_url(),
            say=reverse("conversation-say", args=[slug, pk]),
            write=reverse("conversation-write", args=[slug, pk]),
            end=reverse("conversation-end", args=[slug, pk]),
            others=reverse("conversations", args=[slug]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Talk:
    """A conversation between two judgments, for its template."""

    standing: Standing
    addresses: Addresses
    trouble: str = ""
    text: str = ""
    """The message as it was typed, after a refusal."""
    end: EndForm = field(default_factory=EndForm)

    @property
    def conversation(self) -> Conversation:
        """Return the conversation."""
        return self.standing.conversation

    @property
    def is_generating(self) -> bool:
        """Return whether responses are on their way."""
        return self.standing.state == TurnState.GENERATING and self.conversation.ended_at is None

    @property
    def positions(self) -> Sequence[tuple[int, str]]:
        """Return position and letter of the responses that are on their way."""
        assert self.standing.turn is not None  # noqa: S101 - only while responses are generated
        numbers = [response.position for response in responses_to(self.standing.turn)]
        return [(number, "ABCD"[number - 1]) for number in numbers]

    @property
    def chat(self) -> list[tuple[str, SafeString]]:
        """Return the conversation so far: role and rendered text."""
        turn, continuation = self.standing.turn, self.standing.continuation
        if turn is None:
            system = self.conversation.system
            messages = [{"role": "system", "content": system}] if system else []
        else:
            messages = list(turn.prompt.messages)
        if continuation is not None:
            messages.append({"role": "assistant", "content": continuation.text})
        return [
            (message["role"], render_markdown(message["content"]))
            for message in messages
            if message["role"] in _ROLES
        ]

    @property
    def transcript(self) -> list[TurnRead]:
        """Return all turns with all responses; who wrote what only where that is no longer hidden."""
        return transcript_of(self.conversation, named=self.standing.terms.arena is not None)

    @property
    def may_revise(self) -> Assignment | None:
        """Return the submitted assignment of the newest turn, which may still be changed."""
        assignment = self.standing.assignment
        over = self.conversation.ended_at is not None
        return None if over or self.standing.state != TurnState.JUDGED else assignment

    @property
    def least_turns(self) -> int:
        """Return how many turns the task asks for."""
        return self.conversation.task.least_turns if self.conversation.task else 1


def show_talk(
    request: Request, talk: Talk, *, status: int = 200, page: str = "training/conversations/page.html"
) -> HttpResponse:
    """Render the screen of a conversation: the fragment for the script, else the whole page."""
    standing = talk.standing
    if standing.state == TurnState.JUDGING and talk.conversation.ended_at is None:
        return show_judging(request, judging_screen(talk), status=status, page=page)
    context = {"project": talk.conversation.project, "talk": talk}
    markup = render_to_string("training/conversations/screen.html", context, request)
    return _answer(request, talk.conversation, markup, status=status, page=page)


def judging_screen(
    talk: Talk,
    *,
    entered: Entered | None = None,
    form: JudgmentForm | None = None,
    doubts: Sequence[Doubt] = (),
) -> Screen:
    """Return the labelling screen of the newest turn."""
    standing, turn = talk.standing, talk.standing.turn
    assert turn is not None  # noqa: S101 - it waits for its annotation
    assignment = standing.assignment or ballot_of(standing)
    assignment.comparison.project = talk.conversation.project
    if standing.terms.arena is None:
        place = place_of(turn, assignment)
        draft = draft_of(assignment)
        entered = entered or (Entered.from_draft(draft) if draft else None)
    else:
        place = Place(turn=turn, address=talk.addresses.page, submit=talk.addresses.submit, kept=False)
    return Screen(
        project=talk.conversation.project,
        assignment=assignment,
        annotator=talk.conversation.annotator,
        entered=entered or Entered(),
        form=form,
        doubts=doubts,
        place=place,
    )


def ballot_of(standing: Standing) -> Assignment:
    """Return the newest turn of an arena as an assignment that is no row: a vote leases nothing."""
    turn = standing.turn
    assert turn is not None and turn.comparison is not None  # noqa: S101, PT018 - it waits for its vote
    shown = completions_shown(turn)
    ballot = Assignment(
        pk=0,
        comparison=turn.comparison,
        annotator=standing.conversation.annotator,
        display_order=[completion.pk for completion in shown],
    )
    ballot.fresh_completions = shown
    return ballot


def show_judging(
    request: Request,
    screen: Screen,
    *,
    status: int = 200,
    page: str = "training/conversations/page.html",
) -> HttpResponse:
    """Render the labelling screen of a turn."""
    assert screen.place is not None  # noqa: S101 - it is of a turn
    conversation = screen.place.turn.conversation
    context = {"project": screen.project, "screen": screen}
    markup = render_to_string("annotation/screen.html", context, request)
    return _answer(request, conversation, markup, status=status, page=page)


def _answer(
    request: Request, conversation: Conversation, markup: str, *, status: int, page: str
) -> HttpResponse:
    if request.htmx:
        response = HttpResponse(markup, status=status)
    else:
        context = {
            "project": conversation.project,
            "conversation": conversation,
            "screen_markup": markup,
        }
        response = render(request, page, context, status=status)
    # A cached page would show a turn that is over.
    response["Cache-Control"] = "no-store"
    return response
