"""Bulk actions that decide who meets a comparison: quarantine, assignment; and export of a selection."""

import json
from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from annotation.choices import WithholdingState
from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Comparison, Project, User, Withholding
from annotation.selectors.access import round_of_work
from annotation.selectors.progress import progress_of
from annotation.services import bulk
from annotation.services.assignments.next import assign_next
from annotation.services.projects.invitations import remove_member
from annotation.services.texts import decide_withholding
from annotation.statistics.home import home_rows
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]


def next_of(project: Project, user: User) -> Comparison | None:
    leased = assign_next(project=project, annotator=user)
    return leased.comparison if leased else None


class TestQuarantine:
    def test_a_quarantined_comparison_goes_to_nobody_until_it_is_released(
        self, project: Project, alice: User, bob: User, carol: User
    ):
        project.overlap = 2
        project.save()
        comparison, leased = factories.make_comparison(project), factories.make_comparison(project)
        factories.make_judgment(comparison, alice)
        factories.lease_to(leased, carol)
        chosen = [comparison.pk, leased.pk]
        preview = bulk.quarantine(project=project, actor=carol, chosen=chosen, dry_run=True)
        assert not Withholding.objects.exists()
        assert bulk.quarantine(project=project, actor=carol, chosen=chosen) == preview
        assert (preview.changed, preview.chosen) == (1, 2)
        assert next_of(project, bob) == leased
        assert bulk.quarantine(project=project, actor=carol, chosen=[comparison.pk]).changed == 0
        # Alice's annotation stays and holds its place: one of two opens again.
        assert comparison.judgments.count() == 1
        withholding = Withholding.objects.get(comparison=comparison)
        decide_withholding(withholding=withholding, decided_by=carol, release=True)
        comparison.refresh_from_db()
        assert (comparison.overlap, comparison.open_slots) == (2, 1)

    def test_a_released_comparison_can_be_quarantined_again(self, project: Project, carol: User):
        comparison = factories.make_comparison(project)
        for _ in range(2):
            assert bulk.quarantine(project=project, actor=carol, chosen=[comparison.pk]).changed == 1
            withholding = Withholding.objects.get()
            assert (withholding.state, withholding.requested_by) == (WithholdingState.PENDING, carol)
            assert bulk.release(project=project, actor=carol, chosen=[comparison.pk]).changed == 1
            comparison.refresh_from_db()
            assert comparison.open_slots == 1

    def test_gold_is_not_quarantined(self, project: Project, carol: User):
        gold = factories.make_gold_item(project)
        assert bulk.quarantine(project=project, actor=carol, chosen=[gold.pk]).changed == 0

    def test_the_page_names_who_wants_it_so_and_releases_it(
        self, project: Project, carol: User, client_of: ClientOf
    ):
        comparison = factories.make_comparison(project)
        bulk.quarantine(project=project, actor=carol, chosen=[comparison.pk])
        browser = client_of(carol)
        page = browser.get(reverse("withheld", args=[project.slug])).content.decode()
        assert "Quarantined by carol." in page
        assert "<mark>" not in page
        pk = Withholding.objects.get().pk
        browser.post(reverse("withheld-decide", args=[project.slug, pk]), {"decision": "release"})
        comparison.refresh_from_db()
        assert comparison.open_slots == 1
        page = browser.get(reverse("withheld", args=[project.slug])).content.decode()
        assert comparison.prompt.last_question in page

    def test_a_row_without_quote_and_manager_is_refused_by_the_database(self, project: Project):
        comparison = factories.make_comparison(project)
        with pytest.raises(IntegrityError), transaction.atomic():
            Withholding.objects.create(comparison=comparison)


class TestAssign:
    def test_an_assigned_comparison_goes_to_its_members_alone(
        self, project: Project, alice: User, bob: User, carol: User
    ):
        mine, free = factories.make_comparison(project), factories.make_comparison(project)
        effect = bulk.reserve(project=project, actor=carol, chosen=[mine.pk], value=" alice, carol,")
        assert (effect.changed, effect.chosen) == (1, 1)
        assert set(mine.reserved_for.all()) == {alice, carol}
        assert next_of(project, bob) == free
        assert next_of(project, alice) == mine
        details = AuditEntry.objects.get(action="data.reserve").details
        assert details == {"comparisons": 1, "members": ["alice", "carol"]}

    def test_an_empty_value_gives_it_to_everybody_again(self, project: Project, bob: User, carol: User):
        comparison = factories.make_comparison(project)
        bulk.reserve(project=project, actor=carol, chosen=[comparison.pk], value="alice")
        assert next_of(project, bob) is None
        bulk.reserve(project=project, actor=carol, chosen=[comparison.pk], value="")
        assert next_of(project, bob) == comparison

    def test_what_was_assigned_to_a_removed_member_alone_is_everybodys(
        self, project: Project, alice: User, bob: User, carol: User
    ):
        comparison = factories.make_comparison(project)
        bulk.reserve(project=project, actor=carol, chosen=[comparison.pk], value="alice")
        remove_member(membership=project.memberships.get(user=alice), removed_by=carol)
        assert next_of(project, bob) == comparison

    def test_progress_round_and_home_leave_out_what_others_are_assigned(
        self, project: Project, alice: User, bob: User, carol: User, monkeypatch: pytest.MonkeyPatch
    ):
        first, second, new = (factories.make_comparison(project, round_number=n) for n in (1, 1, 2))
        bulk.reserve(project=project, actor=carol, chosen=[first.pk, new.pk], value="alice")
        assert round_of_work(project, bob) == 1
        assert round_of_work(project, alice) == 2
        assert [progress_of(project, user, 1).total for user in (alice, bob)] == [2, 1]
        # Counted otherwise where much is open, to the same numbers.
        monkeypatch.setattr("annotation.selectors.progress.EXACT_UP_TO", 0)
        assert [progress_of(project, user, 1).total for user in (alice, bob)] == [2, 1]
        bulk.reserve(project=project, actor=carol, chosen=[second.pk], value="alice")
        assert [row.has_work for row in home_rows(bob)] == [False]
        assert [row.has_work for row in home_rows(alice)] == [True]

    def test_what_one_has_had_is_not_counted_twice(
        self, project: Project, alice: User, bob: User, carol: User, monkeypatch: pytest.MonkeyPatch
    ):
        project.overlap = 2
        project.save()
        had, other = (factories.make_comparison(project) for _ in range(2))
        bulk.reserve(project=project, actor=carol, chosen=[had.pk], value="alice,bob")
        factories.make_judgment(had, alice)
        monkeypatch.setattr("annotation.selectors.progress.EXACT_UP_TO", 0)
        progress = progress_of(project, alice, 1)
        # One judged, and `other` left; the second place of `had` is Bob's.
        assert (progress.done, progress.total) == (1, 2)
        assert progress_of(project, bob, 1).total == 2
        assert other.open_slots == 2

    def test_an_unknown_name_is_refused_and_nothing_changes(self, project: Project, alice: User, carol: User):
        factories.make_user("stranger")
        comparison = factories.make_comparison(project)
        with refused("unknown_members") as caught:
            bulk.reserve(project=project, actor=carol, chosen=[comparison.pk], value="alice, stranger")
        assert "stranger" in caught.value.message
        assert not comparison.reserved_for.exists()

    def test_the_table_shows_and_filters_by_member(
        self, project: Project, alice: User, carol: User, client_of: ClientOf
    ):
        mine, free = factories.make_comparison(project), factories.make_comparison(project)
        browser = client_of(carol)
        act = reverse("data-act", args=[project.slug, "comparisons"])
        form = {"action": "reserve", "value-reserve": "alice", "chosen": [mine.pk]}
        page = browser.post(act, form)
        assert page.context["value"] == "alice"
        browser.post(act, form | {"confirmed": "yes"})
        address = reverse("data-comparisons", args=[project.slug])
        page = browser.get(address, {"assigned": str(alice.pk), "columns": ["prompt", "assigned"]})
        rows = page.content.decode()
        assert f"/items/{mine.pk}/" in rows
        assert f"/items/{free.pk}/" not in rows


class TestExportOfASelection:
    def test_the_table_opens_the_export_with_what_is_selected(
        self, project: Project, alice: User, carol: User, client_of: ClientOf
    ):
        first, second = (factories.make_comparison(project) for _ in range(2))
        for comparison in (first, second):
            factories.make_judgment(comparison, alice)
        browser = client_of(carol)
        page = browser.post(
            reverse("data-act", args=[project.slug, "comparisons"]),
            {"action": "export", "chosen": [first.pk]},
            follow=True,
        )
        assert page.redirect_chain[0][0].endswith(f"/export/?comparisons={first.pk}")
        assert "1 selected comparison" in page.content.decode()
        assert page.context["counts"].judgments == 1
        address = reverse("export", args=[project.slug, "jsonl"])
        lines = b"".join(browser.get(address, {"comparisons": str(first.pk)})).splitlines()
        assert [int(json.loads(line)["comparison"]) for line in lines] == [first.pk]

    def test_the_api_exports_the_named_comparisons(
        self, project: Project, alice: User, carol: User, client_of: ClientOf
    ):
        comparisons = [factories.make_comparison(project) for _ in range(3)]
        for comparison in comparisons:
            factories.make_judgment(comparison, alice)
        chosen = [comparisons[0].pk, comparisons[2].pk]
        answer = client_of(carol).get(
            f"/api/v1/projects/{project.slug}/exports/jsonl/",
            {"comparisons": ",".join(map(str, chosen))},
        )
        rows = [json.loads(line) for line in b"".join(answer).splitlines()]
        assert sorted(int(row["comparison"]) for row in rows) == chosen

    def test_too_many_and_unreadable_ids_are_refused(
        self, project: Project, carol: User, client_of: ClientOf
    ):
        browser = client_of(carol)
        act = reverse("data-act", args=[project.slug, "comparisons"])
        chosen = ",".join(map(str, range(1, 502)))
        page = browser.post(act, {"action": "export", "chosen": chosen}, follow=True)
        assert "Select 1 to 500 comparisons to export" in page.content.decode()
        page = browser.get(reverse("export-choose", args=[project.slug]), {"comparisons": "1;2"})
        assert page.status_code == 422
        assert "The selected comparisons cannot be read." in page.content.decode()


def test_the_api_quarantines_and_assigns(project: Project, alice: User, carol: User, client_of: ClientOf):
    first, second = factories.make_comparison(project), factories.make_comparison(project)
    browser, address = client_of(carol), f"/api/v1/projects/{project.slug}/comparisons/act/"

    def act(**body: object) -> list[tuple[str, int]]:
        answer = browser.post(address, body, content_type="application/json")
        assert answer.status_code == 200, answer.content
        return [(result["action"], result["changed"]) for result in answer.json()]

    assert act(comparisons=[first.pk], quarantine=True) == [("quarantine", 1)]
    assert act(comparisons=[second.pk], assign=["alice"]) == [("assign", 1)]
    project.refresh_from_db()
    assert next_of(project, carol) is None
    assert act(comparisons=[second.pk], assign=[]) == [("assign", 1)]
    assert next_of(project, carol) == second
    withheld = browser.get(f"/api/v1/projects/{project.slug}/withheld/").json()
    rows = withheld["results"] if isinstance(withheld, dict) else withheld
    assert [(row["comparison"], row["completion"], row["requested_by"]) for row in rows] == [
        (first.pk, None, "carol")
    ]
    refused = browser.post(
        address, {"comparisons": [second.pk], "assign": ["nobody"]}, content_type="application/json"
    )
    assert refused.status_code == 422


def test_annotators_do_neither(project: Project, alice: User):
    comparison = factories.make_comparison(project)
    with refused("manager_changes_data", NotAllowed):
        bulk.quarantine(project=project, actor=alice, chosen=[comparison.pk])
    with refused("manager_changes_data", NotAllowed):
        bulk.reserve(project=project, actor=alice, chosen=[comparison.pk], value="alice")
