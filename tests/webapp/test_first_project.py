"""The project that a first start opens."""

import json

import pytest

from annotation.choices import CategoryScope, Granularity, Role
from annotation.models import Membership, Project, Prompt, User
from training.choices import RoundState
from training.models import Round
from webapp.first_project import GUIDELINES, HELD_OUT, PROMPTS, SLUG, ensure_first_project
from webapp.supervision.preflight import ensure_accounts

pytestmark = pytest.mark.django_db


def test_it_holds_enough_prompts_with_guidelines_categories_members_and_an_open_round():
    ensure_accounts()
    ensure_first_project()
    project = Project.objects.get(slug=SLUG)
    lines = [line for file in (PROMPTS, HELD_OUT) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) >= 160
    assert project.prompts.count() == len(lines), "two prompts are the same"
    assert project.guidelines.get().text == GUIDELINES.read_text(encoding="utf-8")
    assert {(c.scope, c.granularity) for c in project.categories.all()} == {
        (CategoryScope.SPAN, Granularity.SUB_SENTENCE),
        (CategoryScope.SPAN, Granularity.SENTENCE),
        (CategoryScope.MISSING, Granularity.WHOLE),
    }
    roles = dict(Membership.objects.filter(project=project).values_list("user__username", "role"))
    assert roles == {"admin": Role.MANAGER, "annotator": Role.ANNOTATOR}
    assert Round.objects.get(project=project).number == 1


def test_a_second_start_adds_nothing():
    ensure_accounts()
    ensure_first_project()
    counted = (Project, Prompt, Round, Membership)
    before = [model.objects.count() for model in counted]
    ensure_first_project()
    assert [model.objects.count() for model in counted] == before


@pytest.mark.parametrize("refusals", [0, 2, 99])
def test_a_first_start_does_not_fail_where_the_first_round_cannot_be_opened_now(
    monkeypatch: pytest.MonkeyPatch, refusals: int
):
    """Where a busy machine lets no check of the chat template through, a manager opens the draft later."""
    asked: list[object] = []

    def busy(policy: object) -> list[str]:
        asked.append(policy)
        # Opening a first round asks twice, the second time for the stored result.
        return ["The check could not run now."] if len(asked) <= 2 * refusals else []

    monkeypatch.setattr("training.services.rounds.controls.untrainable_template", busy)
    outcome = ensure_first_project()
    round_ = Round.objects.get()
    assert round_.state == (RoundState.DRAFT if refusals == 99 else RoundState.SAMPLING)
    assert round_.recipe["evaluation"]["people_judgments"] == 10
    assert ("The check could not run now." in outcome) == (refusals == 99)
    assert round_.steps.count() == (0 if refusals == 99 else 1)


def test_a_database_with_another_project_gets_no_first_one(project):
    ensure_first_project()
    assert list(Project.objects.all()) == [project]


def test_both_splits_have_prompts_so_that_a_round_can_train_and_be_held_against_something():
    ensure_first_project()
    splits = list(Prompt.objects.values_list("split", flat=True))
    # A true win rate of 0.7 takes about 94 people's judgments alone, and far fewer with a model that agrees.
    assert splits.count("held-out") >= 48
    assert splits.count("train") >= 110


def test_every_kind_of_the_later_prompts_is_on_both_sides():
    ensure_first_project()
    sides = {
        tag: {str(split) for split, tags in Prompt.objects.values_list("split", "tags") if tag in tags}
        for tag in ("list", "steps", "explain", "format", "rewrite", "summary", "facts")
    }
    assert all(side == {"train", "held-out"} for side in sides.values()), sides


def test_the_prompts_are_diverse_and_some_have_passages_that_missing_info_can_point_at():
    rows = [
        json.loads(line)
        for file in (PROMPTS, HELD_OUT)
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    tags = {tag for row in rows for tag in row["tags"]}
    assert {"facts", "tone", "code", "maths", "formula", "context", "rewrite", "safety", "planning"} <= tags
    assert {"list", "steps", "explain", "format", "summary"} <= tags
    with_context = [row for row in rows if row.get("context")]
    assert len(with_context) >= 8
    for row in with_context:
        for passage in row["context"]:
            assert 3 <= len(passage["sentences"]) <= 8, passage["title"]
    several_turns = [row for row in rows if isinstance(row["prompt"], list)]
    assert len(several_turns) >= 3
    assert all(turns["prompt"][-1]["role"] == "user" for turns in several_turns)


def test_admin_and_annotator_are_made_once_with_passwords_that_work():
    made = {account.username: account.password for account in ensure_accounts()}
    assert set(made) == {"admin", "annotator"}
    admin, annotator = User.objects.get(username="admin"), User.objects.get(username="annotator")
    assert admin.is_superuser
    assert admin.is_staff
    assert not annotator.is_superuser
    assert not annotator.is_staff
    assert admin.check_password(made["admin"])
    assert annotator.check_password(made["annotator"])
    assert ensure_accounts() == []


def test_a_database_with_people_gets_no_annotator_of_ours(alice):
    assert [account.username for account in ensure_accounts()] == ["admin"]
    assert set(User.objects.values_list("username", flat=True)) == {"alice", "admin"}


def test_somebody_called_admin_who_is_no_superuser_keeps_their_password(django_user_model):
    django_user_model.objects.create_user("admin", password="their own")
    made = ensure_accounts()
    assert [account.username for account in made] == ["rondo-admin"]
    assert User.objects.get(username="admin").check_password("their own")
    assert not User.objects.get(username="admin").is_superuser
