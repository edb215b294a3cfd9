"""Keys of one's own: what may be chosen, what is refused and why, and what the pages show."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Project, User
from annotation.services.people.shortcuts import (
    ACTIONS,
    InvalidKey,
    change_keys,
    keys_of,
    own_keys,
    shown_key,
)
from tests import factories

pytestmark = pytest.mark.django_db


def test_every_action_has_a_key_from_the_start_and_none_is_there_twice(alice: User):
    keys = keys_of(alice)
    assert keys["submit"] == "Enter"
    assert keys["undo"] == "z"
    assert own_keys(alice) == {}
    for place in {action.place for action in ACTIONS}:
        defaults = [action.default for action in ACTIONS if action.place == place]
        assert len(set(defaults)) == len(defaults)


def test_a_chosen_key_stays_and_the_others_are_as_they_were(alice: User):
    change_keys(user=alice, keys={"undo": "U", "mark_note": " f2 "})
    alice.refresh_from_db()
    assert own_keys(alice) == {"undo": "u", "mark_note": "F2"}
    assert keys_of(alice)["skip"] == "s"
    change_keys(user=alice, keys={"undo": ""})
    assert own_keys(alice) == {}


def test_two_actions_may_exchange_their_keys(alice: User):
    change_keys(user=alice, keys={"undo": "s", "skip": "z"})
    assert (keys_of(alice)["undo"], keys_of(alice)["skip"]) == ("s", "z")


@pytest.mark.parametrize(
    ("keys", "field", "message"),
    [
        ({"undo": "s"}, "undo", "is the key of “Skip” already"),
        ({"mark_note": "Delete"}, "mark_note", "is the key of “Remove the span” already"),
        ({"undo": "b"}, "undo", "“b” is the key of a response or of a step"),
        ({"comment": "7"}, "comment", "“7” is the key of a response or of a step"),
        ({"comment": "0"}, "comment", "“0” is the key of a response or of a step"),
        ({"undo": "ArrowLeft"}, "undo", "“ArrowLeft” moves about on the page"),
        ({"undo": "Tab"}, "undo", "“Tab” is no key"),
        ({"undo": "Escape"}, "undo", "“Escape” is no key"),
        ({"undo": "Ctrl+Z"}, "undo", "“Ctrl+Z” is no key"),
        ({"dance": "d"}, "dance", "There is no action “dance”"),
    ],
)
def test_a_key_that_cannot_be_is_refused_by_name(alice: User, keys: dict[str, str], field: str, message: str):
    with pytest.raises(InvalidKey) as refused:
        change_keys(user=alice, keys=keys)
    assert refused.value.field == field
    assert message in refused.value.message
    alice.refresh_from_db()
    assert alice.keys == {}


def test_a_key_of_a_mark_may_be_one_of_the_screen_too(alice: User):
    change_keys(user=alice, keys={"mark_note": "t"})
    assert keys_of(alice)["mark_note"] == keys_of(alice)["comment"] == "t"


@pytest.mark.parametrize(
    ("key", "signs"),
    [("z", ["Z"]), ("?", ["?"]), ("Enter", ["↵"]), ("Shift+ArrowLeft", ["⇧", "←"]), ("F2", ["F2"])],
)
def test_keys_are_shown_as_they_stand_on_keyboards(key: str, signs: list[str]):
    assert shown_key(key) == signs


# ── The pages ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def browser(alice: User, client_of: Callable[[User], Client]) -> Client:
    return client_of(alice)


def test_keys_are_changed_by_a_plain_form_and_set_back(browser: Client, alice: User):
    address = reverse("keys")
    page = browser.get(address).content.decode()
    assert 'name="undo" value="z"' in page
    answer = browser.post(address, {**keys_of(alice), "undo": "u"}, follow=True)
    assert answer.redirect_chain == [(address, 302)]
    assert 'name="undo" value="u"' in answer.content.decode()
    assert "Your keys are stored." in answer.content.decode()
    browser.post(address, {"undo": "u", "reset": "1"})
    alice.refresh_from_db()
    assert alice.keys == {}


def test_a_refused_form_comes_back_as_it_was_sent_with_the_reason_at_its_field(browser: Client, alice: User):
    answer = browser.post(reverse("keys"), {**keys_of(alice), "undo": "s", "comment": ";"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert 'name="comment" value=";"' in page
    assert 'aria-describedby="error-undo"' in page
    assert "is the key of “Skip” already" in page
    alice.refresh_from_db()
    assert alice.keys == {}


def test_the_screen_knows_ones_own_keys_and_says_whose_key_a_category_lost(
    browser: Client, project: Project, alice: User
):
    factories.make_comparison(project)
    change_keys(user=alice, keys={"undo": "u", "both_bad": ";"})
    page = browser.get(reverse("label", args=[project.slug])).content.decode()
    assert 'data-key=";"' in page
    assert "<s><kbd>u</kbd></s>" in page
    assert "Untruthful: you use this key for something else" in page
    # The other category keeps its key, and the project keeps both.
    assert "annotate the selection: Irrelevant" in page
    assert project.categories.get(key="untruthful").shortcut == "u"


def test_what_one_chose_is_nobody_elses(browser: Client, alice: User, bob: User, client_of):
    change_keys(user=alice, keys={"undo": "u"})
    assert 'name="undo" value="z"' in client_of(bob).get(reverse("keys")).content.decode()
