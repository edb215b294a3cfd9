"""Allocation of work: rules by tag and skill decide who gets what; members have a limit in all."""

import uuid
from collections.abc import Callable, Mapping

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Role, Verdict, WhyNothing
from annotation.errors import Refusal
from annotation.models import Assignment, AuditEntry, Comparison, Membership, Project, User
from annotation.selectors.access import round_of_work
from annotation.selectors.eligibility import why_nothing
from annotation.selectors.progress import EXACT_UP_TO, progress_of
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.projects.invitations import change_allotment
from annotation.services.projects.projects import change_settings
from annotation.statistics.home import home_rows
from tests import factories
from tests.api.scene import Asker
from tests.records import judgment_record
from tests.refusals import refused

ClientOf = Callable[[User], Client]
GERMAN = {"tag": "german", "skill": "German"}
CODE = {"tag": "code", "skill": "Python"}


@pytest.fixture
def project(project: Project) -> Project:
    project.allocation = [GERMAN, CODE]
    project.retest_share = 0.0
    project.save()
    return project


def comparison_with(project: Project, *tags: str, round_number: int = 1) -> Comparison:
    comparison = factories.make_comparison(project, round_number=round_number)
    comparison.prompt.tags = list(tags)
    comparison.prompt.save()
    return comparison


def has(project: Project, user: User, *skills: str, total_limit: int | None = None) -> None:
    Membership.objects.filter(project=project, user=user).update(skills=list(skills), total_limit=total_limit)


def work_of(project: Project, annotator: User) -> list[int]:
    """Take and submit what there is; the comparisons in order."""
    done = []
    while (leased := assign_next(project=project, annotator=annotator)) is not None:
        first, second = leased.display_order
        submit_judgment(
            assignment=leased,
            annotator=annotator,
            answer=judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2}),
            idempotency_key=uuid.uuid4(),
        )
        done.append(leased.comparison_id)
    return done


@pytest.mark.django_db
class TestRules:
    def test_a_tag_with_a_rule_goes_only_to_those_with_the_skill(
        self, project: Project, alice: User, bob: User
    ):
        german = comparison_with(project, "german", "long")
        free = comparison_with(project, "long")
        both = comparison_with(project, "code", "german")
        has(project, alice, "German")
        has(project, bob, "German", "Python")
        assert work_of(project, alice) == [german.pk, free.pk]
        assert why_nothing(project, alice) == WhyNothing.OTHER_SKILLS
        assert work_of(project, bob) == [both.pk]
        assert why_nothing(project, bob) == WhyNothing.NOTHING_LEFT

    def test_a_share_of_a_tag_goes_to_those_with_the_skill_and_the_rest_to_everybody(
        self, project: Project, alice: User, bob: User, carol: User
    ):
        project.allocation = [{**GERMAN, "share": 30}, CODE]
        project.save()
        made = [comparison_with(project, "german") for _ in range(4)]
        # Drawn when a comparison is made; its last two digits decide.
        for comparison, drawn in zip(made, (129, 130, 7_000_000, 99), strict=True):
            Comparison.objects.filter(pk=comparison.pk).update(shuffle=drawn)
        has(project, bob, "German")
        assert progress_of(project, alice, 1).total == 2
        assert sorted(work_of(project, alice)) == [made[1].pk, made[3].pk]
        assert why_nothing(project, alice) == WhyNothing.OTHER_SKILLS
        assert sorted(work_of(project, bob)) == [made[0].pk, made[2].pk]

    @pytest.mark.parametrize("share", [0, 101, True, 2.5, "30", None])
    def test_a_share_that_is_no_percentage_is_refused(self, project: Project, carol: User, share: object):
        with pytest.raises(Refusal, match="share in percent from 1 to 100"):
            change_settings(
                project=project, settings={"allocation": [{**GERMAN, "share": share}]}, changed_by=carol
            )

    def test_a_part_of_a_tag_is_not_the_tag(self, project: Project, alice: User):
        other = comparison_with(project, "germanic")
        assert work_of(project, alice) == [other.pk]

    def test_a_tag_in_other_letters_is_found_as_databases_keep_it(self, project: Project, alice: User):
        project.allocation = [{"tag": 'Grüße "höflich"', "skill": "German"}]
        project.save()
        comparison_with(project, 'Grüße "höflich"')
        assert work_of(project, alice) == []

    def test_without_rules_everybody_gets_everything(self, project: Project, alice: User):
        project.allocation = []
        project.save()
        german = comparison_with(project, "german")
        assert work_of(project, alice) == [german.pk]

    def test_rules_bind_managers_but_no_superuser_from_outside(
        self, project: Project, carol: User, admin: User
    ):
        german = comparison_with(project, "german")
        assert work_of(project, carol) == []
        assert work_of(project, admin) == [german.pk]

    def test_gold_goes_by_the_rules_too(self, project: Project, alice: User, bob: User):
        project.gold_share = 1.0
        project.save()
        gold = factories.make_gold_item(project)
        gold.prompt.tags = ["german"]
        gold.prompt.save()
        # Work comes from another prompt: gold stands in its place.
        free = [comparison_with(project) for _ in range(2)]
        Comparison.objects.filter(pk__in=[comparison.pk for comparison in free]).update(
            overlap=2, open_slots=2
        )
        has(project, bob, "German")
        assert gold.pk not in work_of(project, alice)
        assert gold.pk in work_of(project, bob)

    def test_the_random_arm_goes_by_the_rules(self, project: Project, alice: User):
        project.acquisition = "uncertainty"
        project.control_share = 1.0
        project.save()
        for _ in range(10):
            comparison_with(project, "german")
        free = comparison_with(project)
        assert work_of(project, alice) == [free.pk]

    def test_who_has_had_the_head_of_the_queue_still_gets_the_rest(
        self, project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
    ):
        # Two places each: the walk starts behind one's own place after five that one has had.
        monkeypatch.setattr("annotation.services.assignments.next._LOOK_AHEAD", 5)
        project.overlap = 2
        project.save()
        for index in range(16):
            comparison_with(project, *(["german"] if index % 2 else []))
        has(project, bob, "German")
        assert len(work_of(project, alice)) == 8
        assert len(work_of(project, bob)) == 16

    def test_progress_and_round_count_what_one_can_get(
        self, project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
    ):
        for tags in ((), ("german",), ("german",), ("code",)):
            comparison_with(project, *tags)
        comparison_with(project, "german", round_number=2)
        has(project, alice, "Python")
        has(project, bob, "German")
        assert round_of_work(project, alice) == 1
        assert round_of_work(project, bob) == 2
        assert progress_of(project, alice, 1).total == 2
        # Where much is open it is counted otherwise, to the same number.
        assert EXACT_UP_TO > 4
        monkeypatch.setattr("annotation.selectors.progress.EXACT_UP_TO", 0)
        assert progress_of(project, alice, 1).total == 2
        assert progress_of(project, bob, 1).total == 3

    def test_home_names_work_that_one_can_get(self, project: Project, alice: User, bob: User):
        comparison_with(project, "german")
        has(project, bob, "German")
        assert [row.has_work for row in home_rows(alice)] == [False]
        assert [row.has_work for row in home_rows(bob)] == [True]

    def test_the_labelling_page_says_why_nothing_comes(
        self, project: Project, alice: User, client_of: ClientOf
    ):
        comparison_with(project, "german")
        page = client_of(alice).get(reverse("label", args=[project.slug])).content.decode()
        assert "Nothing is open for your skills" in page


@pytest.mark.django_db
class TestLimitInAll:
    def test_it_ends_the_work_of_a_member(
        self, project: Project, alice: User, bob: User, client_of: ClientOf
    ):
        for _ in range(4):
            comparison_with(project)
        has(project, alice, total_limit=3)
        assert len(work_of(project, alice)) == 3
        assert why_nothing(project, alice) == WhyNothing.TOTAL_REACHED
        page = client_of(alice).get(reverse("label", args=[project.slug])).content.decode()
        assert "You have reached your limit of 3 comparisons in this project." in page
        assert len(work_of(project, bob)) == 1

    def test_nothing_is_leased_ahead_beyond_it(self, project: Project, alice: User, client_of: ClientOf):
        for _ in range(3):
            comparison_with(project)
        has(project, alice, total_limit=1)
        client = client_of(alice)
        client.get(reverse("label", args=[project.slug]))
        client.get(reverse("label-ahead", args=[project.slug]))
        assert Assignment.objects.filter(annotator=alice).count() == 1


@pytest.mark.django_db
class TestPage:
    def test_rules_are_added_and_removed(self, project: Project, carol: User, client_of: ClientOf):
        client, address = client_of(carol), reverse("allocation-rules", args=[project.slug])

        def rules_after(**fields: str) -> list[Mapping[str, str]]:
            assert client.post(address, fields).status_code == 302
            return list(Project.objects.get(pk=project.pk).allocation)

        safety = {"tag": "safety", "skill": "Safety", "share": 25}
        assert rules_after(tag=" safety ", skill="Safety", share="25") == [GERMAN, CODE, safety]
        assert rules_after(remove="german") == [CODE, safety]
        assert AuditEntry.objects.filter(action="project.settings").count() == 2

    def test_a_second_rule_of_a_tag_is_refused_with_what_was_entered(
        self, project: Project, carol: User, client_of: ClientOf
    ):
        answer = client_of(carol).post(
            reverse("allocation-rules", args=[project.slug]), {"tag": "german", "skill": "Swiss"}
        )
        assert answer.status_code == 422
        page = answer.content.decode()
        assert "The tag german has a rule already. Remove it first." in page
        assert 'value="Swiss"' in page

    def test_it_shows_what_a_rule_concerns(
        self, project: Project, alice: User, carol: User, client_of: ClientOf
    ):
        comparison_with(project, "german")
        has(project, alice, "Python")
        rows = client_of(carol).get(reverse("allocation", args=[project.slug])).context["rules"]
        assert [(row.tag, row.open, row.members) for row in rows] == [("german", 1, 0), ("code", 0, 1)]

    def test_skills_and_limits_of_a_member_are_changed_and_recorded(
        self, project: Project, alice: User, carol: User, client_of: ClientOf
    ):
        membership = project.memberships.get(user=alice)
        address = reverse("allocation-member", args=[project.slug, membership.pk])
        client = client_of(carol)
        client.post(
            address, {"skills": "German,  Old  Norse, German,", "daily_limit": "5", "total_limit": "9"}
        )
        membership.refresh_from_db()
        changed = (membership.skills, membership.daily_limit, membership.total_limit)
        assert changed == (["German", "Old Norse"], 5, 9)
        # What cannot be is refused, and all stays.
        client.post(address, {"skills": "", "daily_limit": "0", "total_limit": "9"})
        client.post(address, {"skills": "x" * 61, "daily_limit": "", "total_limit": ""})
        membership.refresh_from_db()
        assert (membership.skills, membership.daily_limit, membership.total_limit) == changed
        actions = set(AuditEntry.objects.values_list("action", flat=True))
        assert {"member.skills", "member.daily_limit", "member.total_limit"} <= actions

    def test_a_large_projects_page_comes_before_its_counts(
        self, project: Project, alice: User, carol: User, client_of: ClientOf, monkeypatch
    ):
        monkeypatch.setattr("annotation.statistics.cached.LARGE", 0)
        factories.make_judgment(comparison_with(project), alice)
        client, address = client_of(carol), reverse("allocation", args=[project.slug])
        page = client.get(address)
        assert (page.context["has_counts"], b'hx-select="#members"' in page.content) == (False, True)
        page = client.get(address, headers={"HX-Request": "true"})
        assert [count for member, count in page.context["members"] if member.user == alice] == [1]
        assert b'hx-select="#members"' not in page.content

    def test_a_member_of_another_project_is_not_found(
        self, project: Project, carol: User, client_of: ClientOf
    ):
        other = factories.make_project(slug="coffee", annotators=[carol])
        pk = other.memberships.get(user=carol).pk
        answer = client_of(carol).post(reverse("allocation-member", args=[project.slug, pk]), {})
        assert answer.status_code == 404


@pytest.mark.django_db
class TestServices:
    @pytest.mark.parametrize(
        "rules",
        [
            "german",
            ["german"],
            [{"tag": "german"}],
            [GERMAN | {"limit": 1}],
            [{"tag": "", "skill": "German"}],
            [{"tag": "german", "skill": " German"}],
            [{"tag": "german", "skill": 3}],
            [{"tag": "a\x00b", "skill": "German"}],
            [GERMAN, GERMAN],
            [{"tag": str(number), "skill": "German"} for number in range(51)],
        ],
    )
    def test_rules_of_another_shape_are_refused(self, project: Project, carol: User, rules: object):
        with refused("invalid_fields") as caught:
            change_settings(project=project, settings={"allocation": rules}, changed_by=carol)
        assert caught.value.field == "allocation"
        assert Project.objects.get(pk=project.pk).allocation == [GERMAN, CODE]

    @pytest.mark.parametrize("skills", ["German", [""], ["a", "a"], [1], [str(n) for n in range(51)]])
    def test_skills_of_another_shape_are_refused(
        self, project: Project, alice: User, carol: User, skills: object
    ):
        membership = project.memberships.get(user=alice)
        with refused("invalid_member") as caught:
            change_allotment(membership=membership, changes={"skills": skills}, changed_by=carol)
        assert caught.value.field == "skills"


@pytest.mark.django_db
class TestApi:
    def test_rules_are_read_and_changed(self, project: Project, carol: User):
        asker = Asker(carol)
        address = f"/projects/{project.slug}/settings/"
        # Without a share a rule is about all of its tag.
        assert asker("GET", address).json()["allocation"] == [
            GERMAN | {"share": 100},
            CODE | {"share": 100},
        ]
        half = CODE | {"share": 50}
        assert asker("PATCH", address, {"allocation": [half]}).json()["allocation"] == [half]
        assert asker("PATCH", address, {"allocation": [CODE, CODE]}).status_code == 422
        wrong: object
        for wrong in ({}, [{"tag": "code"}], [CODE | {"share": 0}], "code", None):
            assert asker("PATCH", address, {"allocation": wrong}).status_code == 422, wrong
        assert asker("GET", address).json()["allocation"] == [half]

    def test_skills_and_limit_in_all_of_a_member_are_set(self, project: Project, alice: User, carol: User):
        asker = Asker(carol)
        address = f"/projects/{project.slug}/members/alice/"
        body = {"role": Role.ANNOTATOR, "skills": ["German", "German"], "total_limit": 7}
        answer = asker("PUT", address, body).json()
        assert (answer["skills"], answer["total_limit"]) == (["German"], 7)
        # What is left out stays.
        answer = asker("PUT", address, {"role": Role.ANNOTATOR, "total_limit": None}).json()
        assert (answer["skills"], answer["total_limit"]) == (["German"], None)
