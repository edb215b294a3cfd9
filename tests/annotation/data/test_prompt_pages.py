"""Prompts in the application: written, copied, and compared with those that say almost the same."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import AuditEntry, Project, Prompt, User
from annotation.selectors.tables.search import near_duplicates, shingles
from tests import factories

ClientOf = Callable[[User], Client]


def user_turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_shingles_are_runs_of_three_words_without_case_and_punctuation():
    assert shingles("How long, should TEA steep?") == {
        "how long should",
        "long should tea",
        "should tea steep",
    }
    assert shingles("Why tea?") == {"why tea"}
    assert shingles(" …") == set()


def test_similar_prompts_are_found_the_most_similar_first(project: Project):
    same = factories.make_prompt(project, "how long should black tea steep")
    longer = factories.make_prompt(project, "How long should black tea steep in summer?")
    factories.make_prompt(project, "Is coffee a fruit?")
    duplicates = near_duplicates(project, user_turn("How long should black tea steep?"))
    # 4 of 4 shingles; and 4 of the 6 that both have together.
    assert [(duplicate.prompt, duplicate.similarity) for duplicate in duplicates] == [
        (same, 1.0),
        (longer, pytest.approx(4 / 6)),
    ]
    assert [duplicate.prompt for duplicate in near_duplicates(project, same.messages, besides=same)] == [
        longer
    ]


def test_a_manager_writes_a_prompt_with_tags_and_a_reference(
    project: Project, carol: User, client_of: ClientOf
):
    answer = client_of(carol).post(
        reverse("prompt-new", args=[project.slug]),
        {
            "system": "Be brief.",
            "question": "Why is tea green?",
            "reference": "It is not oxidised.",
            "tags": "tea, colour, tea",
        },
    )
    prompt = Prompt.objects.get()
    assert answer["Location"] == reverse("prompt", args=[project.slug, prompt.pk])
    assert prompt.messages == [{"role": "system", "content": "Be brief."}, *user_turn("Why is tea green?")]
    assert (prompt.references, prompt.tags) == (["It is not oxidised."], ["tea", "colour"])
    assert AuditEntry.objects.filter(action="data.prompt", actor=carol).exists()


def test_an_almost_equal_prompt_is_added_only_once_confirmed(
    project: Project, carol: User, client_of: ClientOf
):
    factories.make_prompt(project, "How long should black tea steep?")
    client, address = client_of(carol), reverse("prompt-new", args=[project.slug])
    body = {"question": "How long should black tea steep now?"}
    warned = client.post(address, body)
    assert warned.status_code == 422
    assert "Near-duplicates" in warned.content.decode()
    assert Prompt.objects.count() == 1
    assert client.post(address, {**body, "confirmed": "yes"}).status_code == 302
    assert Prompt.objects.count() == 2


def test_a_prompt_that_is_there_is_not_added_twice(project: Project, carol: User, client_of: ClientOf):
    factories.make_prompt(project, "How long should black tea steep?")
    answer = client_of(carol).post(
        reverse("prompt-new", args=[project.slug]),
        {"question": "How long should black tea steep?", "confirmed": "yes"},
        follow=True,
    )
    assert "has this prompt already" in answer.content.decode()
    assert Prompt.objects.count() == 1


@pytest.mark.parametrize("body", [{"question": "  "}, {"question": "Tea?", "tags": "<b>"}])
def test_what_is_wrong_is_said_and_nothing_is_added(
    project: Project, carol: User, client_of: ClientOf, body: dict[str, str]
):
    answer = client_of(carol).post(reverse("prompt-new", args=[project.slug]), body)
    assert answer.status_code == 422
    assert not Prompt.objects.exists()


def test_an_edited_prompt_is_a_new_one_with_turns_and_passages_of_the_old(
    project: Project, carol: User, client_of: ClientOf
):
    old = factories.make_prompt(project, "And green tea?")
    turns = [{"role": "user", "content": "Black tea?"}, {"role": "assistant", "content": "Four minutes."}]
    Prompt.objects.filter(pk=old.pk).update(messages=[*turns, *user_turn("And green tea?")])
    client, address = client_of(carol), f"{reverse('prompt-new', args=[project.slug])}?from={old.pk}"
    form = client.get(address).content.decode()
    assert "And green tea?" in form
    assert "Four minutes." in form
    client.post(address, {"question": "And white tea?"})
    new = Prompt.objects.latest("pk")
    assert new.messages == [*turns, *user_turn("And white tea?")]
    old.refresh_from_db()
    assert old.last_question == "And green tea?"


def test_the_page_of_a_prompt_leads_to_its_comparisons(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = factories.make_comparison(project, question="How long should tea steep?")
    address = reverse("prompt", args=[project.slug, comparison.prompt_id])
    page = client_of(carol).get(address).content.decode()
    assert "How long should tea steep?" in page
    assert reverse("statistics-item", args=[project.slug, comparison.pk]) in page
    assert client_of(alice).get(address).status_code == 403


def test_prompts_of_another_project_stay_there(project: Project, carol: User, client_of: ClientOf):
    other = factories.make_prompt(factories.make_project(slug="other"), "Secret?")
    client = client_of(carol)
    assert client.get(reverse("prompt", args=[project.slug, other.pk])).status_code == 404
    address = f"{reverse('prompt-new', args=[project.slug])}?from={other.pk}"
    assert client.get(address).status_code == 404
