"""Threads between annotators and managers: who sees which, whom a comment reaches, and hostile text."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState, NotificationKind, Purpose, ReviewReason, Role
from annotation.errors import NotAllowed, Refusal
from annotation.models import Assignment, Comment, Comparison, Membership, Notification, Project, User
from annotation.selectors.inbox import threads_of, without_thread
from annotation.services.inbox import edit_comment, mentioned_in, post_comment, resolve_thread
from annotation.services.reviews import open_review
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]


@pytest.fixture
def comparison(project: Project) -> Comparison:
    project.overlap = 2
    project.save()
    return factories.make_comparison(project)


@pytest.fixture
def of_alice(comparison: Comparison, alice: User) -> Assignment:
    return factories.lease_to(comparison, alice)


@pytest.fixture
def of_bob(comparison: Comparison, bob: User, of_alice: Assignment) -> Assignment:
    return factories.lease_to(comparison, bob)


def notifications_of(user: User) -> list[tuple[str, str]]:
    rows = Notification.objects.filter(user=user).order_by("pk")
    return [(row.kind, row.excerpt) for row in rows]


def test_an_annotator_sees_their_own_thread_and_managers_see_all(
    comparison: Comparison, of_alice: Assignment, of_bob: Assignment, alice: User, bob: User, carol: User
):
    post_comment(assignment=of_alice, author=alice, text="Is steeping cold meant?")
    post_comment(assignment=of_bob, author=bob, text="I prefer A, right?")
    seen = {
        user.username: [
            shown.comment.text
            for thread in threads_of(comparison=comparison, reader=user)
            for shown in thread.comments
        ]
        for user in (alice, bob, carol)
    }
    assert seen == {
        "alice": ["Is steeping cold meant?"],
        "bob": ["I prefer A, right?"],
        "carol": ["Is steeping cold meant?", "I prefer A, right?"],
    }


def test_an_annotator_gets_nothing_of_the_other_thread_by_any_address(
    project: Project,
    comparison: Comparison,
    of_alice: Assignment,
    of_bob: Assignment,
    alice: User,
    bob: User,
    carol: User,
    client_of: ClientOf,
):
    question = post_comment(assignment=of_bob, author=bob, text="SECRET-OF-BOB")
    post_comment(assignment=of_bob, author=carol, text="SECRET-TO-BOB, see @alice")
    client = client_of(alice)
    ask_page = client.get(reverse("ask", args=[project.slug, of_alice.pk]))
    screen = client.get(reverse("label", args=[project.slug]))
    assert ask_page.status_code == screen.status_code == 200
    assert b"SECRET" not in ask_page.content + screen.content
    assert client.get(reverse("ask", args=[project.slug, of_bob.pk])).status_code == 404
    assert client.post(reverse("ask", args=[project.slug, of_bob.pk]), {"text": "x"}).status_code == 404
    assert client.get(reverse("comments", args=[project.slug, comparison.pk])).status_code == 403
    assert client.get(reverse("comment-edit", args=[project.slug, question.pk])).status_code == 404
    # A mention of another annotator reaches nobody: she may not see that thread.
    assert notifications_of(alice) == []


def test_a_thread_names_no_model(
    project: Project, of_alice: Assignment, alice: User, carol: User, client_of: ClientOf
):
    post_comment(assignment=of_alice, author=alice, text="Hm?")
    page = client_of(alice).get(reverse("ask", args=[project.slug, of_alice.pk])).content
    assert b"starter" not in page


def test_a_retest_does_not_show_the_first_thread(comparison: Comparison, of_alice: Assignment, alice: User):
    post_comment(assignment=of_alice, author=alice, text="Seen before?")
    first = Assignment.objects.get(pk=of_alice.pk)
    Assignment.objects.filter(pk=first.pk).update(state=AssignmentState.EXPIRED)
    again = Assignment.objects.create(
        comparison=comparison,
        annotator=alice,
        display_order=first.display_order,
        state=AssignmentState.LEASED,
        leased_at=first.leased_at,
        lease_expires_at=first.lease_expires_at,
        retest_of=first,
    )
    assert list(again.comments.all()) == []


def test_an_outsider_another_annotator_and_an_arena_are_refused(
    comparison: Comparison, of_alice: Assignment, bob: User, oscar: User, alice: User
):
    for stranger in (bob, oscar):
        with refused("not_concerned_with_comparison", NotAllowed):
            post_comment(assignment=of_alice, author=stranger, text="Let me in")
    Comparison.objects.filter(pk=comparison.pk).update(purpose=Purpose.ARENA, open_slots=0)
    in_arena = Assignment.objects.get(pk=of_alice.pk)
    with refused("not_concerned_with_comparison", NotAllowed):
        post_comment(assignment=in_arena, author=alice, text="Which model is it?")
    assert Comment.objects.count() == 0


def test_a_reviewer_sees_threads_but_not_while_a_review_is_undecided_nor_as_annotator(
    project: Project, comparison: Comparison, of_alice: Assignment, alice: User, bob: User, of_bob: Assignment
):
    rita = factories.make_user("rita")
    Membership.objects.create(project=project, user=rita, role=Role.REVIEWER)
    Membership.objects.filter(user=bob).update(role=Role.REVIEWER)
    post_comment(assignment=of_alice, author=alice, text="Hm?")
    assert len(threads_of(comparison=comparison, reader=rita)) == 1
    assert threads_of(comparison=comparison, reader=bob) == []
    open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    assert threads_of(comparison=comparison, reader=rita) == []
    with refused("not_concerned_with_comparison", NotAllowed):
        post_comment(assignment=of_alice, author=rita, text="A is right")


def test_a_question_reaches_managers_and_the_reply_its_annotator_once(
    of_alice: Assignment, alice: User, bob: User, carol: User
):
    post_comment(assignment=of_alice, author=alice, text="Is cold tea tea?")
    assert notifications_of(carol) == [(NotificationKind.QUESTION, "Is cold tea tea?")]
    answer = post_comment(assignment=of_alice, author=carol, text="@alice Yes.")
    assert notifications_of(alice) == [(NotificationKind.MENTION, "@alice Yes.")]
    edit_comment(comment=answer, author=carol, text="@alice Yes, @alice.")
    assert len(notifications_of(alice)) == 1
    post_comment(assignment=of_alice, author=carol, text="See the guidelines.")
    assert notifications_of(alice)[1:] == [(NotificationKind.REPLY, "See the guidelines.")]
    assert notifications_of(bob) == []


def open_questions(assignment: Assignment) -> QuerySet[Comment]:
    return Comment.objects.filter(
        assignment=assignment, author=assignment.annotator, resolved_at__isnull=True
    )


def test_an_answer_resolves_and_so_does_the_button(of_alice: Assignment, alice: User, carol: User):
    post_comment(assignment=of_alice, author=alice, text="One?")
    assert open_questions(of_alice).count() == 1
    post_comment(assignment=of_alice, author=carol, text="Two.")
    assert open_questions(of_alice).count() == 0
    post_comment(assignment=of_alice, author=alice, text="Three?")
    with refused("reviewer_resolves_questions", NotAllowed):
        resolve_thread(assignment=of_alice, user=alice)
    assert resolve_thread(assignment=of_alice, user=carol) == 1
    assert open_questions(of_alice).count() == 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@Carol and (@bob), @carol.", ["carol", "bob"]),
        ("carol@example.org and a@x", []),
        ("@a.b-c_d+e@f", ["a.b-c_d+e@f"]),
        ("nothing", []),
    ],
)
def test_names_are_read_from_a_text(text: str, names: list[str]):
    assert mentioned_in(text) == names


@pytest.mark.parametrize("text", ["", "  \n ", "x" * 5001, "a\x00b", "a\ud800b"])
def test_a_text_that_cannot_be_kept_is_refused(of_alice: Assignment, alice: User, text: str):
    with pytest.raises(Refusal):
        post_comment(assignment=of_alice, author=alice, text=text)


def test_hostile_text_is_shown_as_text(
    project: Project,
    comparison: Comparison,
    of_alice: Assignment,
    alice: User,
    carol: User,
    client_of: ClientOf,
):
    hostile = "<script>alert(1)</script> ![x](https://evil.example/x.png) [y](javascript:alert(1))"
    post_comment(assignment=of_alice, author=alice, text=hostile)
    for user, address in (
        (alice, reverse("ask", args=[project.slug, of_alice.pk])),
        (carol, reverse("comments", args=[project.slug, comparison.pk])),
        (carol, reverse("inbox")),
    ):
        page = client_of(user).get(address).content.decode()
        assert "<script>alert" not in page
        assert "<img" not in page
        assert 'href="javascript' not in page


def test_the_small_form_answers_htmx_with_itself_and_keeps_the_lease(
    project: Project, of_alice: Assignment, alice: User, client_of: ClientOf
):
    address = reverse("ask", args=[project.slug, of_alice.pk])
    answer = client_of(alice).post(address, {"text": "Hm?"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert answer.content.decode().strip().startswith('<form id="ask-form"')
    of_alice.refresh_from_db()
    assert of_alice.state == AssignmentState.LEASED
    refused = client_of(alice).post(address, {"text": ""}, headers={"HX-Request": "true"})
    assert refused.status_code == 422


def test_a_manager_answers_and_resolves_on_the_page(
    project: Project,
    comparison: Comparison,
    of_alice: Assignment,
    alice: User,
    carol: User,
    client_of: ClientOf,
):
    post_comment(assignment=of_alice, author=alice, text="Hm?")
    address = reverse("comments", args=[project.slug, comparison.pk])
    client = client_of(carol)
    sent = client.post(address, {"assignment": of_alice.pk, "text": "Yes."})
    assert sent.status_code == 302
    assert sent["Location"] == f"{address}#thread-{of_alice.pk}"
    assert client.post(address, {"assignment": of_alice.pk, "text": ""}).status_code == 422
    assert client.post(address, {"assignment": "9" * 30, "text": "x"}).status_code == 404
    post_comment(assignment=of_alice, author=alice, text="Thanks?")
    assert client.post(address, {"assignment": of_alice.pk, "resolve": "1"}).status_code == 302
    assert not Comment.objects.filter(resolved_at=None, author=alice).exists()
    mine = Comment.objects.get(author=carol)
    edited = client.post(reverse("comment-edit", args=[project.slug, mine.pk]), {"text": "No."})
    assert edited.status_code == 302
    mine.refresh_from_db()
    assert (mine.text, mine.edited_at is not None) == ("No.", True)


def test_a_manager_begins_a_thread_with_an_annotator_and_mentions_others(
    comparison: Comparison,
    of_alice: Assignment,
    of_bob: Assignment,
    alice: User,
    bob: User,
    carol: User,
    rita: User,
    client_of: ClientOf,
):
    address = reverse("comments", args=[comparison.project.slug, comparison.pk])
    page = client_of(carol).get(address).content.decode()
    assert all(f">{name}</option>" in page for name in ("alice", "bob"))
    sent = {"assignment": of_alice.pk, "text": "Why A? @rita, what do you think?"}
    assert client_of(carol).post(address, sent).status_code == 302
    assert [kind for kind, _text in notifications_of(alice)] == [NotificationKind.COMMENT]
    assert [kind for kind, _text in notifications_of(rita)] == [NotificationKind.MENTION]
    assert notifications_of(bob) == []
    page = client_of(carol).get(address).content.decode()
    assert ">alice</option>" not in page
    assert "resolved" not in page
    post_comment(assignment=of_alice, author=alice, text="A names its source.")
    post_comment(assignment=of_alice, author=carol, text="Thank you.")
    assert notifications_of(alice)[-1] == (NotificationKind.REPLY, "Thank you.")


def test_a_reviewer_who_is_blind_begins_no_thread(comparison: Comparison, of_alice: Assignment, rita: User):
    assert without_thread(comparison=comparison, reader=rita) == [of_alice]
    open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    assert without_thread(comparison=comparison, reader=rita) == []


def test_the_team_talks_about_a_comparison_that_nobody_annotated_and_no_annotator_sees_it(
    project: Project, alice: User, carol: User, rita: User, client_of: ClientOf
):
    comparison = factories.make_comparison(project)
    address = reverse("comments", args=[project.slug, comparison.pk])
    sent = {"team": "1", "text": "Is this a good prompt, @rita and @alice?"}
    assert client_of(carol).post(address, {**sent, "text": " "}).status_code == 422
    assert client_of(carol).post(address, sent).status_code == 302
    assert [kind for kind, _text in notifications_of(rita)] == [NotificationKind.MENTION]
    assert notifications_of(alice) == []
    assert client_of(rita).post(address, {**sent, "text": "I think so."}).status_code == 302
    assert notifications_of(carol) == [(NotificationKind.REPLY, "I think so.")]
    own = Comment.objects.get(author=carol)
    edit = reverse("comment-edit", args=[project.slug, own.pk])
    assert client_of(carol).post(edit, {"text": "Is it?"}).status_code == 302
    assert client_of(rita).get(edit).status_code == 404

    assignment = factories.lease_to(comparison, alice)
    asked = client_of(alice).get(reverse("ask", args=[project.slug, assignment.pk])).content.decode()
    assert "Is it?" not in asked
    assert client_of(alice).post(address, sent).status_code == 403
    # A reviewer who has to decide it is blind to what others think.
    open_review(comparison=comparison, reason=ReviewReason.REQUESTED)
    assert "Is it?" not in client_of(rita).get(address).content.decode()
    assert client_of(rita).post(address, sent).status_code == 403
    with pytest.raises(IntegrityError), transaction.atomic():
        Comment.objects.create(comparison=comparison, assignment=assignment, author=carol, text="Both.")
