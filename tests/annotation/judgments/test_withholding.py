"""Comparisons in which a model names itself: kept from annotators until a manager decides."""

import pytest

from annotation.choices import WithholdingState
from annotation.errors import NotAllowed
from annotation.models import Comparison, Project, User, Withholding
from annotation.selectors.queues import withheld_texts
from annotation.services.assignments.next import assign_next
from annotation.services.texts import create_comparison, decide_withholding
from tests import factories
from tests.annotation.labelling.work import lease
from tests.refusals import refused

pytestmark = pytest.mark.django_db

TELLING = ["Two minutes.", "Tea? 🍵 As SmolLM, I say two minutes."]


@pytest.fixture
def withholding(project: Project) -> Withholding:
    project.overlap = 3
    project.save()
    comparison = factories.make_comparison(project, TELLING)
    return comparison.withholding


def test_a_text_that_names_its_model_is_withheld_with_its_place(project: Project, withholding: Withholding):
    comparison = withholding.comparison
    assert (comparison.overlap, comparison.open_slots) == (3, 0)
    assert withholding.state == WithholdingState.PENDING
    assert withholding.completion.text == TELLING[1]
    assert withholding.quote == "As SmolLM, I"
    assert TELLING[1][withholding.start : withholding.end] == "As SmolLM, I"
    assert [text.withholding for text in withheld_texts(project)] == [withholding]


def test_nobody_gets_what_is_withheld(project: Project, alice: User, withholding: Withholding):
    assert assign_next(project=project, annotator=alice) is None
    other = factories.make_comparison(project)
    assert lease(project, alice).comparison == other


def test_a_release_opens_all_its_places(
    project: Project, alice: User, bob: User, carol: User, withholding: Withholding
):
    decided = decide_withholding(withholding=withholding, decided_by=carol, release=True)
    assert (decided.state, decided.decided_by) == (WithholdingState.RELEASED, carol)
    assert decided.decided_at is not None
    assert Comparison.objects.get().open_slots == 3
    assert lease(project, alice).comparison == lease(project, bob).comparison
    assert not withheld_texts(project)


def test_what_is_discarded_stays_closed(project: Project, alice: User, carol: User, withholding: Withholding):
    decide_withholding(withholding=withholding, decided_by=carol, release=False)
    assert Comparison.objects.get().open_slots == 0
    assert assign_next(project=project, annotator=alice) is None
    assert not withheld_texts(project)


@pytest.mark.parametrize("second", [True, False])
def test_two_managers_decide_once(
    project: Project, alice: User, carol: User, admin: User, withholding: Withholding, second: bool
):
    late = Withholding.objects.get(pk=withholding.pk)
    decide_withholding(withholding=withholding, decided_by=carol, release=True)
    lease(project, alice)
    with refused("quarantine_decided", name="carol"):
        decide_withholding(withholding=late, decided_by=admin, release=second)
    # A second release would have opened Alice's place again.
    assert Comparison.objects.get().open_slots == 2
    assert Withholding.objects.get().decided_by == carol


def test_only_a_manager_decides(alice: User, oscar: User, withholding: Withholding):
    for person in (alice, oscar):
        with refused("manager_releases_completions", NotAllowed):
            decide_withholding(withholding=withholding, decided_by=person, release=True)
    assert Withholding.objects.get().state == WithholdingState.PENDING


def test_creating_it_again_withholds_it_once(project: Project, withholding: Withholding):
    comparison = withholding.comparison
    again = create_comparison(
        prompt=comparison.prompt, completions=list(comparison.completions.all()), round_number=1
    )
    assert again == comparison
    assert Withholding.objects.count() == 1


def test_what_the_prompt_or_its_passages_name_is_not_withheld(project: Project):
    prompt = factories.make_prompt(project, "Are you SmolLM?")
    assert factories.make_comparison(project, TELLING, prompt=prompt).open_slots == 1
    passage = factories.make_prompt(
        project, "Who are you?", context=[("Models", ["There are SmolLM and others."])]
    )
    assert factories.make_comparison(project, TELLING, prompt=passage).open_slots == 1
    assert not Withholding.objects.exists()


def test_the_name_of_the_source_itself_is_found(project: Project):
    prompt = factories.make_prompt(project)
    source = factories.make_source("Steeper7-2B")
    completions = factories.make_completions(prompt, ["Two minutes.", "Steeper7 says so."], source=source)
    quarantine = create_comparison(prompt=prompt, completions=completions, round_number=1).withholding
    assert quarantine.quote == "Steeper7"


def test_ordinary_comparisons_are_not_withheld(project: Project, alice: User):
    comparison = factories.make_comparison(project, ["As an AI, I cannot taste tea.", "Two minutes."])
    assert lease(project, alice).comparison == comparison
    assert not Withholding.objects.exists()
