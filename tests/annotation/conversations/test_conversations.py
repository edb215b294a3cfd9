"""Conversations without a model: tasks, turns and the end."""

from typing import Any

import pytest
from django.db import IntegrityError

from annotation.choices import Purpose
from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, Conversation, ConversationTurn, Project, User
from annotation.models.conversations import MOST_TURNS
from annotation.selectors.conversations import conversations_of
from annotation.services.conversations import (
    LONGEST_MESSAGE,
    add_turn,
    archive_task,
    begin_conversation,
    end_conversation,
    put_to_judgment,
    save_task,
)
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def conversation(project: Project, alice: User) -> Conversation:
    return begin_conversation(project=project, annotator=alice)


def turn_of(conversation: Conversation, text: str = "How hot?") -> ConversationTurn:
    """A turn whose two responses wait for the annotation."""
    turn = add_turn(conversation=conversation, text=text, before=None, continuation=None)
    put_to_judgment(
        turn=turn,
        completions=factories.make_completions(turn.prompt, ["Hot.", "Cold."]),
        round_number=1,
        purpose=Purpose.WORK,
    )
    return turn


def test_only_managers_write_tasks(project: Project, alice: User, carol: User):
    with refused("manager_changes_conversations", NotAllowed):
        save_task(project=project, actor=alice, name="Refund")
    task = save_task(project=project, actor=carol, name="Refund")
    with refused("manager_changes_conversations", NotAllowed):
        archive_task(task=task, actor=alice)
    assert AuditEntry.objects.filter(action="conversation.task").count() == 1


def test_a_name_is_of_one_task(project: Project, carol: User):
    task = save_task(project=project, actor=carol, name="Refund")
    assert save_task(project=project, actor=carol, task=task, name="Refund", system="Be kind.") == task
    with refused("task_name_in_use"):
        save_task(project=project, actor=carol, name="Refund")


def test_an_archived_task_and_one_of_another_project_are_not_begun(
    project: Project, alice: User, carol: User
):
    task = save_task(project=project, actor=carol, name="Refund")
    other = factories.make_project(slug="coffee")
    with refused("task_not_offered"):
        begin_conversation(project=other, annotator=alice, task=task)
    archive_task(task=task, actor=carol)
    task.refresh_from_db()
    with refused("task_not_offered"):
        begin_conversation(project=project, annotator=alice, task=task)


@pytest.mark.parametrize("text", ["", " \n", "\x00", "x" * (LONGEST_MESSAGE + 1)])
def test_an_empty_message_and_one_that_is_too_long_are_refused(conversation: Conversation, text: str):
    with pytest.raises(Refusal):
        add_turn(conversation=conversation, text=text, before=None, continuation=None)


def test_a_message_is_stored_without_what_no_database_stores(conversation: Conversation):
    turn = add_turn(conversation=conversation, text=" a\x00\r\nb ", before=None, continuation=None)
    assert turn.prompt.last_question == "a\nb"


def test_the_database_allows_a_turn_once(conversation: Conversation):
    turn = turn_of(conversation)
    with pytest.raises(IntegrityError):
        ConversationTurn.objects.create(conversation=conversation, index=1, prompt=turn.prompt)


def test_the_database_allows_no_turn_after_the_last(conversation: Conversation):
    prompt = factories.make_prompt(conversation.project)
    with pytest.raises(IntegrityError):
        ConversationTurn.objects.create(conversation=conversation, index=MOST_TURNS + 1, prompt=prompt)


def test_ending_twice_is_ending_once_and_the_first_rating_stays(conversation: Conversation, alice: User):
    turn_of(conversation)
    first = end_conversation(conversation=conversation, actor=alice, rating=5, attack_success=0)
    again = end_conversation(conversation=conversation, actor=alice, rating=1, attack_success=4)
    assert (again.rating, again.attack_success, again.ended_at) == (5, 0, first.ended_at)


@pytest.mark.parametrize("values", [{"rating": 0}, {"rating": 6}, {"attack_success": 5}])
def test_a_rating_off_its_scale_is_refused(conversation: Conversation, alice: User, values: dict[str, Any]):
    turn_of(conversation)
    with pytest.raises(Refusal):
        end_conversation(conversation=conversation, actor=alice, **values)


def test_a_task_asks_for_a_number_of_turns_before_its_annotator_may_end_it(
    project: Project, alice: User, carol: User
):
    task = save_task(project=project, actor=carol, name="Refund", least_turns=2)
    conversation = begin_conversation(project=project, annotator=alice, task=task)
    turn_of(conversation)
    with refused("too_few_turns", least=2):
        end_conversation(conversation=conversation, actor=alice)
    # Its manager may.
    assert end_conversation(conversation=conversation, actor=carol).ended_at is not None


def test_others_end_nothing(conversation: Conversation, bob: User, oscar: User):
    for person in (bob, oscar):
        with refused("conversation_not_yours_to_end", NotAllowed):
            end_conversation(conversation=conversation, actor=person)


def test_the_list_counts_turns_and_annotated_turns(conversation: Conversation, alice: User, bob: User):
    turn = turn_of(conversation)
    add_turn(conversation=conversation, text="And coffee?", before=turn, continuation=None)
    begin_conversation(project=conversation.project, annotator=bob)
    row: Any = conversations_of(conversation.project, annotator=alice).get()
    assert (row.turn_count, row.judged) == (2, 0)
    assert conversations_of(conversation.project).count() == 2
