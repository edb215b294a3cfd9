"""The sidebar of a project and the search: what each role sees of them."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import ReviewReason, WithholdingState
from annotation.models import Project, Review, User, Withholding
from tests import factories
from webapp.navigation.pages import search
from webapp.navigation.sections import SECTIONS, Link, SectionEntry, entries

ClientOf = Callable[[User], Client]


def labels(project: Project, user: User) -> list[str]:
    return [str(entry.label) for entry in entries(project, user, "")]


def results(user: User, text: str, project: Project | None = None) -> dict[str, list[str]]:
    groups = search(user=user, text=text, project=project)
    return {group.title: [str(result.label) for result in group.results] for group in groups}


def test_a_labeller_sees_the_work_and_a_manager_all_sections(project: Project, alice: User, carol: User):
    assert labels(project, alice) == ["Overview", "Label", "Learn"]
    assert labels(project, carol) == [str(section.label) for section in SECTIONS]


def test_a_page_marks_its_section_and_its_tab(project: Project, carol: User):
    current = [entry for entry in entries(project, carol, "review") if entry.current]
    assert [entry.name for entry in current] == ["quality"]
    assert [str(page.label) for page in current[0].pages if page.current] == ["Reviews"]


def test_every_page_of_the_sections_opens_for_a_manager(project: Project, carol: User, client_of: ClientOf):
    client = client_of(carol)
    for entry in entries(project, carol, ""):
        for page in entry.pages:
            assert client.get(page.address).status_code == 200, page.address


def test_search_finds_projects_pages_and_prompts_of_a_manager(project: Project, carol: User):
    prompt = factories.make_prompt(project, "How long should oolong steep?")
    factories.make_comparison(project, prompt=prompt)
    assert results(carol, "oolong") == {"Prompts": ["How long should oolong steep?"]}
    assert results(carol, project.name.upper())["Projects"] == [project.name]
    assert results(carol, "webh", project) == {"Pages": ["Webhooks"]}


@pytest.mark.parametrize("text", ["oolong", "ünï", "SmolLM"])
def test_search_shows_nobody_what_they_may_not_open(project: Project, alice: User, oscar: User, text: str):
    prompt = factories.make_prompt(project, "How long should oolong steep, ünï?")
    factories.make_comparison(project, prompt=prompt)
    assert results(alice, text, project) == {}
    assert results(oscar, text) == results(oscar, project.name) == {}


def test_a_prompt_is_found_by_letters_that_json_writes_escaped(project: Project, carol: User):
    prompt = factories.make_prompt(project, "Wie lange zieht grüner Tee?")
    factories.make_comparison(project, prompt=prompt)
    assert results(carol, "grüner") == {"Prompts": ["Wie lange zieht grüner Tee?"]}


def test_the_palette_gets_a_fragment_and_everyone_else_a_page(
    project: Project, alice: User, client_of: ClientOf
):
    client: Client = client_of(alice)
    address = reverse("search")
    assert "<html" in client.get(address, {"q": "tea"}).content.decode()
    fragment = client.get(address, {"q": "tea"}, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in fragment
    assert reverse("project", args=[project.slug]) in fragment


@pytest.mark.parametrize("text", ["%", "'", "x" * 5000])
def test_any_text_can_be_searched_for(project: Project, carol: User, client_of: ClientOf, text: str):
    answer = client_of(carol).get(reverse("search"), {"q": text, "project": f"{project.slug}"})
    assert answer.status_code == 200


def waiting(project: Project, user: User) -> dict[str, str]:
    return {entry.name: entry.waiting for entry in entries(project, user, "") if entry.waiting}


def test_the_sidebar_counts_reviews_for_those_who_may_decide_them(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    for _ in range(2):
        comparison = factories.make_comparison(project)
        Review.objects.create(comparison=comparison, reason=ReviewReason.RANDOM)
    factories.make_judgment(comparison, carol)
    assert waiting(project, alice) == {}
    # Carol annotated one of the two: she may not decide it.
    assert waiting(project, carol) == {"quality": "1"}
    page = client_of(carol).get(reverse("project", args=[project.slug])).content.decode()
    assert f'href="{reverse("reviews", args=[project.slug])}"' in page


def test_the_sidebar_counts_quarantined_comparisons_until_they_are_released(project: Project, carol: User):
    comparison = factories.make_comparison(project)
    completion = comparison.completions.first()
    Withholding.objects.create(comparison=comparison, completion=completion, start=0, end=1, quote="x")
    assert waiting(project, carol) == {"quality": "1"}
    Withholding.objects.update(state=WithholdingState.RELEASED)
    assert waiting(project, carol) == {}


def test_more_than_ninety_nine_are_not_counted():
    links = [Link("Reviews", "/reviews/", False, 100), Link("Quarantined", "/withheld/", False, 3)]
    assert SectionEntry("quality", "Quality", "gauge", links, False).waiting == "99+"
    assert SectionEntry("quality", "Quality", "gauge", links[1:], False).waiting == "3"
    assert SectionEntry("quality", "Quality", "gauge", links[1:], False).address == "/withheld/"
