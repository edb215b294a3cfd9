"""Side-by-side comparisons by request: asked, looked at and voted on."""

from collections.abc import Callable
from html import unescape

from django.test import Client
from django.urls import reverse

from annotation.models import User
from training.models import SideBySide

SignIn = Callable[[User], Client]
NAMES = ("north", "south", "east", "west", "centre")


def question_form(**changes: object) -> dict[str, object]:
    return {
        "project": "tea",
        "left": "north",
        "right": "south",
        "text": "How hot?",
        "temperature": "0.5",
        "seed": "3",
        "max_tokens": "50",
        **changes,
    }


def ask(client: Client, **changes: object) -> SideBySide:
    answer = client.post(reverse("compare-answer"), question_form(**changes))
    assert answer.status_code == 302, unescape(answer.content.decode())
    return SideBySide.objects.latest("pk")


def page_of(client: Client, shown: SideBySide) -> str:
    return client.get(shown.get_absolute_url()).content.decode()


def vote(client: Client, shown: SideBySide, choice: str, **ranks: object) -> None:
    client.post(reverse("compare-vote", args=[shown.slug]), {"vote": choice, **ranks})


def place_of(shown: SideBySide, name: str) -> int:
    return shown.answers.get(checkpoint__name=name).position


def better(shown: SideBySide, name: str) -> str:
    return ("first", "second")[place_of(shown, name) - 1]
