"""User names that look alike: letters of one script, and none that only imitates Latin."""

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from annotation.models import User
from annotation.services.people.accounts import require_one_meaning

MIXED = ("аlice", "alicе", "bοb", "carоl.smith", "Ꭺdmin")
IMITATED = ("сосо", "ΑΝΝΑ", "оре.2")
FINE = (
    "alice",
    "José",
    "Zoë_2",
    "анна",
    "Ελένη",
    "田中さくら",
    "김영희金",
    "محمد",
    "דנה",
    "r2-d2",
    "123",
    "a.b@example.org",
)


@pytest.mark.parametrize("name", MIXED)
def test_a_name_of_two_scripts_is_refused(name: str):
    with pytest.raises(ValidationError) as refused:
        require_one_meaning(name)
    assert refused.value.code == "several_scripts"


@pytest.mark.parametrize("name", IMITATED)
def test_a_name_whose_letters_all_look_latin_and_are_not_is_refused(name: str):
    with pytest.raises(ValidationError) as refused:
        require_one_meaning(name)
    assert refused.value.code == "looks_latin"


@pytest.mark.parametrize("name", FINE)
def test_names_of_one_script_are_taken(name: str):
    require_one_meaning(name)


@pytest.mark.django_db
def test_the_admin_makes_no_account_with_such_a_name_and_keeps_those_there_are(admin_client: Client):
    values = {"username": "аlice", "password1": "correct horse battery", "password2": "correct horse battery"}
    answer = admin_client.post(reverse("admin:annotation_user_add"), {**values, "usable_password": "true"})
    assert "username" in answer.context["adminform"].form.errors
    assert not User.objects.filter(username="аlice").exists()
