"""Passkeys are offered where a browser can use them, and nowhere else."""

import pytest
from django.test import Client
from django.urls import reverse

from tests import factories

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("host", "secure", "offered"),
    [
        ("127.0.0.1:8000", False, False),
        ("[::1]:8000", False, False),
        ("127.0.0.1:8000", True, False),
        ("rondo.example", False, False),
        ("rondo.example", True, True),
        ("localhost:8000", False, True),
    ],
)
def test_a_passkey_is_offered_only_at_an_address_where_it_can_work(settings, host, secure, offered):
    settings.ALLOWED_HOSTS = ["*"]
    settings.SECURE_SSL_REDIRECT = False
    page = Client(headers={"host": host}).get(reverse("account_login"), secure=secure).content.decode()
    assert ('id="passkey_login"' in page) is offered
    assert ("Passkeys do not work at this address" in page) is not offered


def test_the_page_of_a_response_links_to_the_comparison(client_of, carol, alice, project):
    judgment = factories.make_judgment(factories.make_comparison(project), alice)
    place = judgment.ranks.first()
    page = client_of(carol).get(reverse("completion", args=[place.completion_id])).content.decode()
    assert reverse("statistics-item", args=[project.slug, judgment.comparison_id]) in page


def test_the_account_page_says_why_no_passkey_can_be_added_at_this_address(client_of, alice):
    page = client_of(alice).get(reverse("account")).content.decode()
    assert "Passkeys do not work at this address" in page
