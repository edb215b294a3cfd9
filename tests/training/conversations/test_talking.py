"""Talking with checkpoints: every turn is a comparison, and what was preferred goes on."""

from collections import Counter
from datetime import timedelta

import pytest
from django.forms import ModelMultipleChoiceField
from django.utils import timezone

from annotation.choices import AssignmentState, Purpose, SourceKind, Split, TurnState, Verdict
from annotation.errors import NotAllowed
from annotation.models import (
    Assignment,
    Comparison,
    CompletionSource,
    Conversation,
    ConversationTurn,
    Correction,
    Judgment,
    Project,
    Prompt,
    User,
    Withholding,
)
from annotation.services.assignments.next import assign_next
from annotation.services.conversations import end_conversation, save_task
from tests import factories
from tests.refusals import refused
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.conversations.scene import judge, judge_turn, open_conversations, talk, text_at
from tests.training.engine.streaming_server import StreamingServer
from training.choices import CheckpointKind
from training.forms.comparing import ArenaForm
from training.models import Checkpoint, ContinuesWith, ConversationSettings, TurnResponse
from training.selectors.conversations import completions_shown, standing_of
from training.services.conversations import begin, generate_turn, say, take_up_turn
from training.views.conversations import ConversationSettingsForm

pytestmark = pytest.mark.django_db


@pytest.fixture
def settings_(project: Project, carol: User, server: StreamingServer) -> ConversationSettings:
    return open_conversations(project, carol)


@pytest.fixture
def conversation(project: Project, alice: User, settings_: ConversationSettings) -> Conversation:
    return begin(project=project, annotator=alice)


# ── One turn ──────────────────────────────────────────────────────────────────────────


def test_a_turn_is_a_comparison_in_the_hands_of_who_talks(conversation: Conversation, alice: User):
    turn = talk(conversation, " How hot is tea? ")

    assert turn.prompt.messages == [{"role": "user", "content": "How hot is tea?"}]
    comparison = turn.comparison
    assert comparison is not None
    assert (comparison.purpose, comparison.size, comparison.open_slots) == (Purpose.WORK, 2, 0)
    standing = standing_of(conversation)
    assert standing.state == TurnState.JUDGING
    assert standing.assignment is not None
    assert standing.assignment.annotator == alice
    shown = completions_shown(turn)
    assert standing.assignment.display_order == [completion.pk for completion in shown]
    assert [completion.text for completion in shown] == [text_at(turn, 1), text_at(turn, 2)]
    assert {completion.source.name for completion in shown} == {"north", "south"}
    assert all(
        completion.seed is not None and completion.sampling["max_tokens"] == 256 for completion in shown
    )


def test_the_next_prompt_is_the_conversation_so_far(conversation: Conversation, server: StreamingServer):
    first = talk(conversation, "How hot?")
    judge_turn(conversation, best=2)
    second = talk(conversation, "And coffee?")

    assert second.prompt.messages == [
        {"role": "user", "content": "How hot?"},
        {"role": "assistant", "content": text_at(first, 2)},
        {"role": "user", "content": "And coffee?"},
    ]
    assert server.asked[-1]["messages"] == second.prompt.messages
    first.refresh_from_db()
    assert first.continued_with == completions_shown(first)[1]


def test_the_system_prompt_of_a_task_comes_first(project: Project, carol: User, alice: User, settings_):
    task = save_task(project=project, actor=carol, name="Refund", system="You sell tea.")
    conversation = begin(project=project, annotator=alice, task=task)
    turn = talk(conversation, "I want my money back.")
    assert turn.prompt.messages[0] == {"role": "system", "content": "You sell tea."}


def test_a_task_with_an_opening_begins_with_its_turn(project: Project, carol: User, alice: User, settings_):
    task = save_task(project=project, actor=carol, name="Refund", opening="My tea is cold.")
    conversation = begin(project=project, annotator=alice, task=task)
    turn = conversation.turns.get()
    assert turn.prompt.last_question == "My tea is cold."
    assert standing_of(conversation).state == TurnState.GENERATING


def test_the_same_message_sent_twice_is_one_turn(conversation: Conversation, alice: User):
    first = say(conversation=conversation, annotator=alice, text="How hot?")
    again = say(conversation=conversation, annotator=alice, text="How hot? ")
    assert (first, conversation.turns.count()) == (again, 1)


def test_another_message_waits_for_the_annotation(conversation: Conversation, alice: User):
    talk(conversation, "How hot?")
    with refused("responses_not_annotated"):
        say(conversation=conversation, annotator=alice, text="And coffee?")


def test_nobody_speaks_in_anothers_conversation(conversation: Conversation, bob: User):
    with refused("conversation_of_another", NotAllowed):
        say(conversation=conversation, annotator=bob, text="Hello")


# ── Split, positions, models ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("side", [Split.TRAIN, Split.HELD_OUT])
def test_all_turns_are_of_the_split_of_the_first(conversation: Conversation, project: Project, side: Split):
    factories.make_prompt(project, "How hot?", split=side)
    for text in ("How hot?", "And coffee?", "And milk?"):
        talk(conversation, text)
        judge_turn(conversation)
    turns = ConversationTurn.objects.filter(conversation=conversation)
    assert {turn.prompt.split for turn in turns.select_related("prompt")} == {side}


def test_models_and_positions_are_counterbalanced_over_the_turns(
    project: Project, carol: User, alice: User, bob: User, server: StreamingServer
):
    open_conversations(project, carol, names=("north", "south", "east"))
    # Three pairs of models in two orders, four times each: 24 turns in four conversations of two people.
    for person in (alice, bob, alice, bob):
        conversation = begin(project=project, annotator=person)
        for number in range(6):
            talk(conversation, f"Question {number} of {conversation.pk}?")
            judge_turn(conversation)
    pairs = Counter(
        tuple(response.checkpoint.name for response in turn.responses.order_by("position"))
        for turn in ConversationTurn.objects.prefetch_related("responses__checkpoint")
    )
    assert len(pairs) == 6
    assert set(pairs.values()) == {4}


def test_seeds_differ_between_responses_and_follow_from_the_conversation(conversation: Conversation):
    turn = talk(conversation, "How hot?")
    seeds = [response.seed for response in turn.responses.all()]
    assert len(set(seeds)) == 2
    conversation.seed += 1
    conversation.save()
    judge_turn(conversation)
    assert not set(seeds) & {response.seed for response in talk(conversation, "And coffee?").responses.all()}


# ── What goes on ──────────────────────────────────────────────────────────────────────


def goes_on_with(conversation: Conversation) -> str:
    continuation = standing_of(conversation).continuation
    assert continuation is not None
    return continuation.text


@pytest.mark.parametrize(
    "verdict", [Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE]
)
def test_without_a_winner_the_seed_decides_once_for_all(conversation: Conversation, verdict: Verdict):
    turn = talk(conversation, "How hot?")
    judge_turn(conversation, verdict=verdict)
    chosen = goes_on_with(conversation)
    assert chosen in (text_at(turn, 1), text_at(turn, 2))
    assert {goes_on_with(conversation) for _ in range(5)} == {chosen}


def test_random_continuation_leaves_the_preferred_response_aside(
    project: Project, carol: User, alice: User, server: StreamingServer
):
    open_conversations(project, carol, continues_with=ContinuesWith.RANDOM, most_turns=20)
    conversation = begin(project=project, annotator=alice)
    conversation.seed = 7
    conversation.save()
    went_on = []
    for number in range(12):
        turn = talk(conversation, f"Question {number}?")
        judge_turn(conversation, best=1)
        went_on.append(goes_on_with(conversation) == text_at(turn, 1))
    # Twelve draws of a half: both come, whatever was preferred.
    assert set(went_on) == {True, False}


def test_the_annotators_edit_goes_on_where_the_project_wants_it(
    project: Project, carol: User, alice: User, server: StreamingServer
):
    open_conversations(project, carol, continues_with=ContinuesWith.EDITED)
    conversation = begin(project=project, annotator=alice)
    first = talk(conversation, "How hot?")
    judge_turn(conversation, best=2)
    Correction.objects.create(
        judgment=Judgment.objects.get(), completion=completions_shown(first)[1], text="Eighty degrees."
    )
    second = talk(conversation, "And coffee?")
    assert second.prompt.messages[1]["content"] == "Eighty degrees."
    first.refresh_from_db()
    assert (first.continued_with, first.continued_text) == (completions_shown(first)[1], "Eighty degrees.")


def test_a_revised_annotation_does_not_change_what_the_conversation_went_on_with(
    conversation: Conversation,
):
    first = talk(conversation, "How hot?")
    assignment = judge_turn(conversation, best=1)
    talk(conversation, "And coffee?")
    judge(assignment, best=2)
    first.refresh_from_db()
    assert first.continued_with == completions_shown(first)[0]


# ── Leases ────────────────────────────────────────────────────────────────────────────


def run_out() -> None:
    Assignment.objects.update(lease_expires_at=timezone.now() - timedelta(minutes=1))


def test_a_turn_whose_lease_ran_out_is_leased_again_in_the_same_order(
    conversation: Conversation, project: Project, bob: User
):
    turn = talk(conversation, "How hot?")
    Comparison.objects.update(priority=0)
    run_out()
    # Somebody else's request gives back what ran out, and Bob skips past it.
    lease = assign_next(project=project, annotator=bob)
    assert lease is not None
    assert lease.comparison == turn.comparison
    lease.state = AssignmentState.RELEASED
    lease.save()
    Comparison.objects.update(open_slots=1)

    standing = take_up_turn(standing=standing_of(conversation))
    assert standing.state == TurnState.JUDGING
    assert standing.assignment is not None
    assert standing.assignment.display_order == [completion.pk for completion in completions_shown(turn)]
    assert take_up_turn(standing=standing_of(conversation)).assignment == standing.assignment


def test_a_turn_that_another_annotator_got_meanwhile_goes_on_without_an_annotation(
    conversation: Conversation, project: Project, bob: User
):
    turn = talk(conversation, "How hot?")
    run_out()
    assert assign_next(project=project, annotator=bob) is not None
    standing = take_up_turn(standing=standing_of(conversation))
    assert (standing.state, standing.assignment) == (TurnState.JUDGED, None)
    assert goes_on_with(conversation) in (text_at(turn, 1), text_at(turn, 2))


def test_a_comparison_has_as_many_places_as_the_project_asks_for(
    project: Project, carol: User, alice: User, server: StreamingServer
):
    project.overlap = 3
    project.save()
    open_conversations(project, carol)
    turn = talk(begin(project=project, annotator=alice), "How hot?")
    assert turn.comparison is not None
    assert (turn.comparison.overlap, turn.comparison.open_slots) == (3, 2)


def test_a_response_that_names_its_model_is_quarantined_and_the_conversation_goes_on(
    conversation: Conversation, server: StreamingServer
):
    server.text = lambda body: "I am ChatGPT, and I say hot."
    turn = talk(conversation, "How hot?")
    assert Withholding.objects.get().comparison == turn.comparison
    standing = standing_of(conversation)
    assert (standing.state, standing.assignment, standing.may_go_on) == (TurnState.JUDGED, None, True)
    assert talk(conversation, "And coffee?").index == 2


def test_equal_responses_are_still_two_completions(conversation: Conversation, server: StreamingServer):
    server.text = lambda body: "Hot."
    turn = talk(conversation, "How hot?")
    assert len({completion.pk for completion in completions_shown(turn)}) == 2


# ── The end ───────────────────────────────────────────────────────────────────────────


def test_ending_gives_a_turn_that_waits_back_to_the_queue(
    conversation: Conversation, alice: User, bob: User, project: Project
):
    turn = talk(conversation, "How hot?")
    end_conversation(conversation=conversation, actor=alice, rating=4, comment=" fine ")
    conversation.refresh_from_db()
    assert (conversation.rating, conversation.comment) == (4, "fine")
    got = assign_next(project=project, annotator=bob)
    assert got is not None
    assert got.comparison == turn.comparison


def test_after_the_end_nothing_can_be_said(conversation: Conversation, alice: User):
    talk(conversation, "How hot?")
    end_conversation(conversation=conversation, actor=alice)
    with refused("conversation_over"):
        say(conversation=conversation, annotator=alice, text="And coffee?")


# ── Limits ────────────────────────────────────────────────────────────────────────────


def test_a_conversation_has_at_most_as_many_turns_as_the_project_allows(
    project: Project, carol: User, alice: User, server: StreamingServer
):
    open_conversations(project, carol, most_turns=2)
    conversation = begin(project=project, annotator=alice)
    for text in ("One?", "Two?"):
        talk(conversation, text)
        judge_turn(conversation)
    assert not standing_of(conversation).may_go_on
    with refused("conversation_too_long"):
        say(conversation=conversation, annotator=alice, text="Three?")


def test_the_daily_limit_covers_turns_too(conversation: Conversation, project: Project, alice: User):
    project.daily_limit = 1
    project.save()
    talk(conversation, "How hot?")
    judge_turn(conversation)
    with refused("no_more_conversation", NotAllowed):
        say(conversation=conversation, annotator=alice, text="And coffee?")


def test_outsiders_begin_nothing_and_nobody_begins_in_a_closed_project(
    project: Project, alice: User, oscar: User, settings_: ConversationSettings
):
    with refused("no_more_conversation", NotAllowed):
        begin(project=project, annotator=oscar)
    settings_.is_open = False
    settings_.save()
    with refused("conversations_closed"):
        begin(project=project, annotator=alice)


def test_a_conversation_goes_on_after_the_project_closed_them(
    conversation: Conversation, settings_: ConversationSettings
):
    settings_.is_open = False
    settings_.save()
    assert talk(conversation, "How hot?").index == 1


def test_with_too_few_checkpoints_left_nothing_is_stored(conversation: Conversation, alice: User):
    response = TurnResponse.objects.none()
    checkpoint = conversation.project.conversation_settings.checkpoints.first()
    checkpoint.files_deleted_at = timezone.now()
    checkpoint.save()
    with refused("too_few_checkpoints"):
        say(conversation=conversation, annotator=alice, text="How hot?")
    assert not response.exists()
    assert Prompt.objects.count() == 0


def test_generating_a_complete_turn_again_changes_nothing(
    conversation: Conversation, server: StreamingServer
):
    turn = talk(conversation, "How hot?")
    request_count = len(server.asked)
    generate_turn(turn=turn)
    assert (len(server.asked), Comparison.objects.count(), Assignment.objects.count()) == (
        request_count,
        1,
        1,
    )


def test_one_checkpoint_gives_both_responses_each_with_its_own_seed(
    project: Project, alice: User, carol: User, server: StreamingServer
):
    server.text = lambda body: f"Seed {body['seed']}."
    open_conversations(project, carol, names=["north"])
    turn = talk(begin(project=project, annotator=alice), "How hot is tea?")
    responses = TurnResponse.objects.filter(turn=turn)
    assert {response.checkpoint.name for response in responses} == {"north"}
    assert len({response.seed for response in responses}) == 2
    assert turn.comparison is not None
    assert turn.comparison.size == 2


def test_a_base_of_no_project_can_be_chosen_in_conversations_and_arenas(project: Project):
    source = CompletionSource.objects.create(name="from-a-folder", kind=SourceKind.CHECKPOINT)
    base = Checkpoint.objects.create(
        name="from-a-folder", kind=CheckpointKind.STARTER, base_model="x", source=source
    )
    other = factories.make_project(slug="coffee")
    make_checkpoints(other, ["of-another-project"])
    for form in (ConversationSettingsForm(project=project), ArenaForm(project=project)):
        field = form.fields["checkpoints"]
        assert isinstance(field, ModelMultipleChoiceField)
        assert list(field.queryset) == [base]
