"""Rubrics in a browser: written, published, rated by, and scored by an AI annotator; in every look."""

import re

import pytest
from playwright.sync_api import expect

from annotation.models import Project, Rubric, User
from annotation.services.projects.rubrics import (
    RubricCriterionInput,
    ask_rubric,
    publish_rubric,
    save_rubric,
)
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.training.judges.judge_scene import install, make_pairs, work
from training.models import RubricDraft
from training.services.checkpoints import register_starter
from training.services.judges import create_judge


def saved(project: Project, carol: User) -> Rubric:
    """A rubric of two versions, the second published and asked."""
    first = save_rubric(
        project=project,
        name="Helpfulness",
        criteria=[
            RubricCriterionInput(name="Accuracy", text="Are all claims true?", weight=3),
            RubricCriterionInput(name="Manners", text="Is it kind?"),
        ],
        saved_by=carol,
    )
    second = save_rubric(
        project=project,
        name="Helpfulness",
        criteria=[
            RubricCriterionInput(
                name="Accuracy", text="Are all claims true and current?", levels="1: false\n5: true", weight=3
            ),
            RubricCriterionInput(
                name="Short", text="Is it no longer than needed?", scale="thumbs", weight=0.5
            ),
        ],
        saved_by=carol,
        rubric=first.rubric,
    )
    return ask_rubric(rubric=publish_rubric(version=second, published_by=carol), is_asked=True, by=carol)


def test_a_manager_writes_a_rubric_and_an_annotator_rates_by_it(
    project: Project, carol: User, alice: User, open_as: Open
):
    factories.make_comparison(project)
    page = open_as(carol, "/projects/tea/rubrics/")
    page.get_by_role("link", name="Rubric", exact=True).click()
    page.get_by_label("Name", exact=True).first.fill("Helpfulness")
    page.locator("#id_criteria-0-name").fill("Accuracy")
    page.locator("#id_criteria-0-text").fill("Is it true?")
    page.locator("#id_criteria-0-weight").fill("2.5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    expect(page.get_by_text("not published")).to_be_visible()
    page.get_by_role("button", name="Publish version 1").click()
    page.get_by_role("button", name="Ask annotators to rate by it").click()
    expect(page.get_by_text("annotators rate by it")).to_be_visible()
    screen = open_as(alice, "/projects/tea/label/")
    expect(screen.get_by_text("Is it true?")).to_be_visible()
    screen.keyboard.press("1")
    for group in screen.get_by_role("radiogroup", name=re.compile("Accuracy")).all():
        group.get_by_role("radio", name="4").check(force=True)
    screen.get_by_role("button", name="Submit").click()
    expect(screen.get_by_role("radiogroup")).to_have_count(0)
    version = Rubric.objects.get().published
    assert version is not None
    assert version.judgments.get().ratings.count() == 2


def test_every_page_of_rubrics_is_without_barriers(
    project: Project, carol: User, alice: User, open_as: Open, barriers: Axe, monkeypatch: pytest.MonkeyPatch
):
    rubric = saved(project, carol)
    project.refresh_from_db()
    starter = register_starter(name="starter")
    server = install(monkeypatch)
    server.says = lambda answers, body: (
        "\n".join(
            f"{letter}{number}: {1 if letter == 'A' else number % 2} | The claims were checked one by one."
            for letter in "AB"
            for number in (1, 2)
        )
        .replace("B2: 0", "B2: no")
        .replace("A2: 1", "A2: yes")
    )
    [comparison] = make_pairs(project, 1)
    judge = create_judge(
        project=project,
        name="Judge",
        checkpoint=starter,
        created_by=carol,
        rubric=rubric.published,
    )
    work(judge)
    draft = RubricDraft.objects.create(
        project=project,
        checkpoint=starter,
        pairs=24,
        state="finished",
        message="2 criteria from 16 pairs, checked on 8",
        pairs_read=16,
        pairs_checked=8,
        criteria=[
            {"name": name, "text": "Is it so?", "scale": "five", "weight": 1.0, **check}
            for name, check in (
                ("Accuracy", {"proposals": 4, "agreeing": 6, "opposing": 1, "tied": 1}),
                ("Flattery", {"proposals": 1, "agreeing": 2, "opposing": 4, "tied": 2}),
            )
        ],
    )
    for address in (
        "/projects/tea/rubrics/",
        rubric.get_absolute_url(),
        f"{rubric.get_absolute_url()}edit/",
        "/projects/tea/rubric-drafts/",
        draft.get_absolute_url(),
        judge.get_absolute_url(),
        f"/projects/tea/items/{comparison.pk}/",
    ):
        assert barriers(open_as(carol, address)) == []
    assert barriers(open_as(alice, "/projects/tea/label/")) == []
