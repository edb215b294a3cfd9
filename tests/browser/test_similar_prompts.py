"""Search by meaning: a manager embeds prompts, finds near-duplicates, deletes and tags them."""

import httpx
import pytest
from playwright.sync_api import expect

from annotation.models import Project, Prompt, User
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.training.registry.registry_rows import make_starter
from tests.training.test_embeddings import QUESTIONS, Embedder
from training.engine import Engine
from training.models import EmbeddingJob
from training.services.embeddings import do_embeddings

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_manager_finds_near_duplicates_and_acts_on_them(
    project: Project, carol: User, open_as: Open, barriers: Axe, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "training.services.embeddings.engine_for", lambda _: Engine(transport=httpx.MockTransport(Embedder()))
    )
    make_starter("small")
    kept, double, *_others = (factories.make_prompt(project, question) for question in QUESTIONS)
    page = open_as(carol, "/projects/tea/data/prompts/")
    page.get_by_role("link", name="Near-duplicates").last.click()
    page.get_by_role("button", name="Embed prompts").click()
    expect(page.locator("#embeddings progress, #embeddings p").first).to_be_visible()
    do_embeddings(EmbeddingJob.objects.get().pk)
    page.reload()
    group = page.get_by_role("group", name="Group 1")
    expect(group.get_by_role("link")).to_have_text([kept.last_question, double.last_question])
    # All but the oldest are selected.
    expect(group.locator("input:checked")).to_have_value(str(double.pk))
    assert barriers(page) == []
    page.get_by_role("button", name="Delete the selected prompts").click()
    expect(page.get_by_text("1 of 1 selected rows is changed.")).to_be_visible()
    assert Prompt.objects.count() == 4
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("1 row changed.")).to_be_visible()
    assert not Prompt.objects.filter(pk=double.pk).exists()
    # Brought back, it is the first that is like the other.
    page.get_by_role("button", name="Undo Delete prompts").click()
    expect(page.get_by_text("1 row is as before")).to_be_visible()
    page.locator(f'[name="chosen"][value="{kept.pk}"]').check()
    page.get_by_role("button", name="More like this").click()
    first = page.locator("tbody tr").first
    expect(first.get_by_role("link", name=double.last_question)).to_be_visible()
    assert barriers(page) == []
    first.get_by_role("checkbox").check()
    page.get_by_label("Tag").fill("double")
    page.get_by_role("button", name="Add tag").click()
    page.get_by_role("button", name="Add tag").click()
    expect(page.get_by_text("1 row changed.")).to_be_visible()
    assert [prompt.pk for prompt in Prompt.objects.filter(tags__icontains="double")] == [double.pk]
