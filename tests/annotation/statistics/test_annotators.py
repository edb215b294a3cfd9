"""Own work, all annotators, one of them: figures by hand, own data alone, no gold unless feedback is on."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import AssignmentState, Purpose, Role
from annotation.models import Assignment, Comparison, ItemFlag, Membership, Project, User
from annotation.statistics.page import step_of, written
from tests import factories
from tests.annotation.statistics.statistics_scene import busy_project, ids_of, item, say
from tests.api.scene import Asker

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """No test reads what another has computed."""
    cache.clear()


def own_page(client: Client, project: Project, **query: str):
    answer = client.get(reverse("my-work", args=[project.slug]), query)
    assert answer.status_code == 200
    return answer


def skip(comparison: Comparison, annotator: User, reason: str) -> Assignment:
    now = timezone.now()
    return Assignment.objects.create(
        comparison=comparison,
        annotator=annotator,
        state=AssignmentState.SKIPPED,
        display_order=ids_of(comparison),
        reason=reason,
        leased_at=now,
        lease_expires_at=now,
        closed_at=now,
    )


# ── One's own work ────────────────────────────────────────────────────────────────────


def test_the_history_holds_own_annotations_in_own_letters_with_the_way_to_change_them(
    project: Project, alice: User, bob: User, client_of: ClientOf
):
    shared = item(project, prompt=factories.make_prompt(project, "Shared question"))
    # The second is better to Alice, who saw it as A, and the first to Bob.
    mine = say(shared, alice, [2, 1], order=[1, 0], active_seconds=75)
    say(shared, bob, [1, 2])
    say(item(project, prompt=factories.make_prompt(project, "Bob's question")), bob, [1, 2])
    answer = own_page(client_of(alice), project)
    assert [shown.preference for shown in answer.context["history"].rows] == ["A > B"]
    text = answer.content.decode()
    assert "Shared question" in text
    assert "1 min 15 s" in text
    assert reverse("revise", args=[project.slug, mine.assignment_id]) in text
    for secret in ("Bob&#x27;s question", "bob", "starter"):
        assert secret not in text
    assert client_of(alice).get(reverse("revise", args=[project.slug, mine.assignment_id])).status_code == 200


def test_the_figures_of_own_work_are_counted(project: Project, alice: User, client_of: ClientOf):
    for seconds, days in ((10, 0), (20, 1), (60, 1), (30, 40)):
        judgment = say(item(project), alice, [1, 2], active_seconds=seconds)
        closed_at = timezone.now() - timedelta(days=days)
        Assignment.objects.filter(pk=judgment.assignment_id).update(closed_at=closed_at)
    answer = own_page(client_of(alice), project)
    assert (answer.context["count"], answer.context["has_more"]) == (4, False)
    # (20 + 30) / 2
    assert answer.context["pace"].median_seconds == 25
    days = answer.context["days"]
    assert len(days.counts) == 30
    # Forty days ago is not in the last thirty.
    assert days.counts[-2:] == (2, 1)
    assert sum(days.counts) == 3


def test_a_large_number_is_not_counted_to_its_end(
    project: Project, alice: User, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("annotation.selectors.annotator_work.MOST_COUNTED", 2)
    for _ in range(3):
        say(item(project), alice, [1, 2])
    answer = own_page(client_of(alice), project)
    assert (answer.context["count"], answer.context["has_more"]) == (2, True)
    assert '<span class="stat__value">2+</span>' in answer.content.decode()


def test_a_long_history_comes_in_pages(
    project: Project, alice: User, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("annotation.selectors.annotator_work.ON_A_PAGE", 2)
    judgments = [say(item(project), alice, [1, 2]) for _ in range(3)]
    first = own_page(client_of(alice), project).context["history"]
    assert [shown.judgment for shown in first.rows] == judgments[:0:-1]
    second = own_page(client_of(alice), project, before=str(first.older)).context["history"]
    assert ([shown.judgment for shown in second.rows], second.older) == (judgments[:1], None)
    for nonsense in ("x", "-1", str(2**63)):
        history = own_page(client_of(alice), project, before=nonsense).context["history"]
        assert len(history.rows) == 2


def test_skipped_and_flagged_comparisons_are_listed_with_their_reasons(
    project: Project, alice: User, bob: User, client_of: ClientOf
):
    skip(item(project), alice, "I know nothing of tea.")
    skip(item(project), bob, "Reason of Bob.")
    judgment = say(item(project), alice, [1, 2])
    ItemFlag.objects.create(assignment=judgment.assignment, reason="Odd question", details="It has no end.")
    text = own_page(client_of(alice), project).content.decode()
    for expected in ("I know nothing of tea.", "Odd question", "It has no end."):
        assert expected in text
    assert "Reason of Bob." not in text
    # The page of a comparison shows what others said: there is no link to it.
    assert "/items/" not in text


def test_without_feedback_nothing_tells_a_gold_item_from_work(
    project: Project, alice: User, client_of: ClientOf
):
    gold = item(project, purpose=Purpose.GOLD, known=[1, 2])
    say(gold, alice, [2, 1])
    answer = own_page(client_of(alice), project)
    assert answer.context["gold"] == {}
    assert len(answer.context["history"].rows) == 1
    assert "gold" not in answer.content.decode().lower()


def test_with_feedback_the_first_answers_to_gold_items_count_and_none_shows_before_it_is_answered(
    project: Project, alice: User, bob: User, client_of: ClientOf
):
    project.gold_feedback = True
    project.save()
    right, wrong, unanswered, of_bob = (item(project, purpose=Purpose.GOLD, known=[1, 2]) for _ in range(4))
    say(right, alice, [1, 2])
    say(wrong, alice, [2, 1])
    say(of_bob, bob, [1, 2])
    now = timezone.now()
    Assignment.objects.create(
        comparison=unanswered,
        annotator=alice,
        state=AssignmentState.LEASED,
        display_order=ids_of(unanswered),
        leased_at=now,
        lease_expires_at=now + timedelta(hours=1),
    )
    answer = own_page(client_of(alice), project)
    assert sorted(answer.context["gold"].values()) == [False, True]
    text = answer.content.decode()
    assert "1 of 2" in text
    assert text.count("gold: as known") == 1
    assert text.count("gold: not as known") == 1


def test_an_annotation_is_not_looked_up_while_its_comparison_is_asked_again(
    project: Project, alice: User, client_of: ClientOf
):
    comparison = item(project)
    first = say(comparison, alice, [1, 2])
    now = timezone.now()
    again = Assignment.objects.create(
        comparison=comparison,
        annotator=alice,
        retest_of=first.assignment,
        state=AssignmentState.LEASED,
        display_order=ids_of(comparison),
        leased_at=now,
        lease_expires_at=now + timedelta(hours=1),
    )
    assert own_page(client_of(alice), project).context["history"].rows == []
    Assignment.objects.filter(pk=again.pk).update(state=AssignmentState.SUBMITTED)
    assert len(own_page(client_of(alice), project).context["history"].rows) == 1


def test_who_has_done_nothing_is_led_to_the_work(project: Project, alice: User, client_of: ClientOf):
    text = own_page(client_of(alice), project).content.decode()
    assert "No annotations yet." in text
    assert reverse("label", args=[project.slug]) in text


def test_own_work_costs_as_many_queries_with_much_of_it(
    project: Project, alice: User, client_of: ClientOf, django_assert_max_num_queries
):
    for _ in range(12):
        say(item(project), alice, [1, 2])
    client = client_of(alice)
    with django_assert_max_num_queries(14):
        own_page(client, project)


# ── All annotators ────────────────────────────────────────────────────────────────────


def table_of(client: Client, project: Project):
    answer = client.get(reverse("annotators", args=[project.slug]))
    assert answer.status_code == 200
    return answer


def test_the_table_has_hours_throughput_skips_and_who_has_not_begun(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    # 90 minutes of three annotations on two days, and one whose time nobody measured.
    for seconds, days in ((1800, 0), (1800, 1), (1800, 1), (None, 1)):
        say(item(project), alice, [1, 2], active_seconds=seconds, days_ago=days)
    skip(item(project), alice, "No idea.")
    rows = {row.name: row for row in table_of(client_of(carol), project).context["page"].rows}
    assert sorted(rows) == ["alice", "bob"]
    row = rows["alice"]
    assert (row.annotations, row.seconds, row.median_seconds) == (4, 5400, 1800.0)
    # Three measured in an hour and a half; four on two days; one of five skipped.
    assert (row.per_hour, row.per_day, row.skips, row.skip_share) == (2.0, 2.0, 1, 0.2)
    assert row.last_at.date() == timezone.now().date()
    idle = rows["bob"]
    assert (idle.annotations, idle.last_at, idle.per_hour, idle.skip_share) == (0, None, None, None)


def test_gold_accuracy_and_test_retest_are_those_of_the_statistics(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    for ranks in ([1, 2], [1, 2], [2, 1]):
        say(item(project, purpose=Purpose.GOLD, known=[1, 2]), alice, ranks)
    for again in ([1, 2], [2, 1]):
        comparison = item(project)
        say(comparison, alice, again, again=say(comparison, alice, [1, 2]))
    (row,) = [row for row in table_of(client_of(carol), project).context["page"].rows if row.name == "alice"]
    assert (row.gold.value, row.gold.items) == ("66.7\N{NO-BREAK SPACE}%", 3)
    assert (row.retest.value, row.retest.items) == ("50.0\N{NO-BREAK SPACE}%", 2)


def test_the_heat_map_shows_agreement_two_by_two_and_too_few(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    dora = factories.make_user("dora")
    # Alice and Bob share ten comparisons and agree on seven; Dora shares one with both of them.
    for number in range(10):
        comparison = item(project)
        say(comparison, alice, [1, 2])
        say(comparison, bob, [1, 2] if number < 7 else [2, 1])
        if number == 0:
            say(comparison, dora, [1, 2])
    say(item(project), carol, [1, 2])
    answer = table_of(client_of(carol), project)
    page = answer.context["page"]
    assert page.columns == ["alice", "bob", "carol", "dora"]
    assert [[cell.text for cell in row.cells] for row in page.heat] == [
        ["–", "70", "", "too few"],
        ["70", "–", "", "too few"],
        ["", "", "–", ""],
        ["too few", "too few", "", "–"],
    ]
    assert page.heat[0].cells[1].step == 3
    assert page.heat[0].cells[1].title == "10 comparisons in common"
    text = answer.content.decode()
    link = f"{reverse('statistics', args=[project.slug])}?annotator={alice.pk}&amp;other={bob.pk}"
    assert f'data-step="3" title="10 comparisons in common"><a href="{link}">70</a>' in text
    # The page behind the link tells the same.
    behind = client_of(carol).get(link.replace("&amp;", "&")).content.decode()
    assert "70.0\N{NO-BREAK SPACE}%" in behind


def test_rankings_agree_by_their_pairs(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    for _ in range(10):
        comparison = item(project, ["One.", "Two.", "Three."])
        say(comparison, alice, [1, 2, 3])
        # Of the pairs 12, 13 and 23 the last is the other way round: two of three agree.
        say(comparison, bob, [1, 3, 2])
    page = table_of(client_of(carol), project).context["page"]
    assert page.heat[0].cells[1].text == "67"


@pytest.mark.parametrize(
    ("share", "step"), [(0.0, 0), (0.19, 0), (0.2, 1), (0.5, 2), (0.79, 3), (0.8, 4), (1.0, 4)]
)
def test_colours_have_five_steps(share: float, step: int):
    assert step_of(share) == step


def test_the_heat_map_is_bounded_and_says_what_it_leaves_out(
    project: Project,
    alice: User,
    bob: User,
    carol: User,
    client_of: ClientOf,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("annotation.statistics.page.MOST_IN_MAP", 2)
    comparison = item(project)
    for annotator in (alice, bob, carol):
        say(comparison, annotator, [1, 2])
    say(item(project), bob, [1, 2])
    say(item(project), carol, [1, 2])
    answer = table_of(client_of(carol), project)
    assert answer.context["page"].columns == ["bob", "carol"]
    assert "1 annotator with fewer annotations is not in the map." in answer.content.decode()


def test_a_project_without_shared_comparisons_says_what_to_do(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    say(item(project), alice, [1, 2])
    text = table_of(client_of(carol), project).content.decode()
    assert "No comparison has two annotators yet. Set overlap to 2 or more." in text
    assert reverse("project-settings", args=[project.slug]) in text


def test_a_table_that_is_computed_costs_few_queries(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    busy_project(project, [alice, bob, carol])
    client = client_of(carol)
    table_of(client, project)
    with django_assert_max_num_queries(17):
        table_of(client, project)


def test_the_api_tells_the_same(project: Project, alice: User, bob: User, carol: User):
    for agree in (True, False):
        comparison = item(project)
        say(comparison, alice, [1, 2], active_seconds=30)
        say(comparison, bob, [1, 2] if agree else [2, 1])
    report = Asker(carol).get(f"/projects/{project.slug}/statistics/").json()
    assert report["shared"] == [{"first": "alice", "second": "bob", "share": 0.5, "comparisons": 2}]
    by_name = {person["annotator"]: person for person in report["people"]}
    assert (by_name["alice"]["active_seconds"], by_name["alice"]["active_days"]) == (60, 1)
    assert by_name["bob"]["active_seconds"] == 0


# ── One of them ───────────────────────────────────────────────────────────────────────


def test_a_person_has_figures_annotations_and_agreement_with_others(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    for _ in range(10):
        comparison = item(project)
        say(comparison, alice, [1, 2], order=[1, 0])
        say(comparison, bob, [1, 2])
    skip(item(project), alice, "No idea.")
    answer = client_of(carol).get(reverse("annotator", args=[project.slug, alice.pk]))
    assert answer.context["row"].annotations == 10
    assert [shown.preference for shown in answer.context["history"].rows] == ["B > A"] * 10
    assert [(name, cell.text) for _pk, name, cell in answer.context["heat"]] == [("bob", "100")]
    text = answer.content.decode()
    assert f"{reverse('statistics-item', args=[project.slug, comparison.pk])}?view=a{alice.pk}" in text
    assert "No idea." in text


def test_a_person_is_found_in_their_projects_only(
    project: Project, alice: User, oscar: User, carol: User, client_of: ClientOf
):
    client = client_of(carol)
    # Bob is a member who has not begun; a manager who annotates nothing is no annotator.
    assert client.get(reverse("annotator", args=[project.slug, alice.pk])).status_code == 200
    for stranger in (oscar.pk, carol.pk, 2**70):
        assert client.get(reverse("annotator", args=[project.slug, stranger])).status_code == 404
    other = factories.make_project(slug="coffee", managers=[carol])
    assert client.get(reverse("annotator", args=[other.slug, alice.pk])).status_code == 404


@pytest.mark.parametrize("role", [Role.ANNOTATOR, Role.REVIEWER])
def test_annotators_see_their_own_work_and_nobody_elses_figures(
    role: Role, project: Project, alice: User, bob: User, client_of: ClientOf
):
    Membership.objects.filter(project=project, user=bob).update(role=role)
    client = client_of(bob)
    assert client.get(reverse("my-work", args=[project.slug])).status_code == 200
    assert client.get(reverse("annotators", args=[project.slug])).status_code == 403
    assert client.get(reverse("annotator", args=[project.slug, bob.pk])).status_code == 403


@pytest.mark.parametrize(
    ("value", "share", "text"),
    [(4 / 6, True, "66.7\N{NO-BREAK SPACE}%"), (0.8999, False, "0.900"), (-0.0666, False, "-0.067")],
)
def test_figures_are_rounded_and_not_cut_off(value: float, share: bool, text: str):
    assert written(value, share=share) == text
