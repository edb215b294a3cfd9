"""The evaluation's page and the file that is mailed: figures, pictures, and where it got worse first."""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.template.loader import render_to_string
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import DjangoDbBlocker

from annotation.models import Project, Prompt, User
from annotation.services.texts import create_comparison
from tests import factories
from tests.shared_rows import made_in, shared_rows
from tests.training.engine.fake_server import FakeServer
from tests.training.evaluation.evaluation_scene import evaluate, trained_round
from training.figures.evaluation_statistics import EvaluationFigure
from training.models import Checkpoint, Evaluation
from training.selectors.evaluations import DrawnWinRate, report_of, slices_of

pytestmark = pytest.mark.django_db

ATTACK = '<script>alert(1)</script><img src="https://evil.example/x.png">'


@pytest.fixture(scope="module")
def scene(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Evaluated on three held-out prompts: a loss of 4, a tie of equal answers, and a gain of 7."""
    with shared_rows(django_db_blocker):
        with made_in(tmp_path_factory.mktemp("evaluated")):
            alice, bob, carol = (factories.make_user(name) for name in ("alice", "bob", "carol"))
            project = factories.make_project(annotators=[alice, bob], managers=[carol])
            texts = {
                "Loses": ("good answer", "bad ans"),
                "Ties": ("the same", "the same"),
                "Wins": (f"short {ATTACK}", f"longer and {ATTACK} x"),
            }
            for question in texts:
                factories.make_prompt(project, question, split="held-out")
            server = FakeServer()
            server.text = lambda body: texts[body["messages"][-1]["content"]][body["model"] == "tea-policy"]
            server.kl = [0.5, 0.25]
            rules = [{"name": "brief", "kind": "length", "options": {"most": 2}}]
            evaluate(trained_round(project, evaluation={"prompts": 3, "rules": rules}), server)
        yield


@pytest.fixture
def project(scene: None, db: None) -> Project:
    """The project of the scene."""
    return Project.objects.get()


@pytest.fixture
def alice(scene: None, db: None) -> User:
    """Annotates in the project of the scene."""
    return User.objects.get(username="alice")


@pytest.fixture
def carol(scene: None, db: None) -> User:
    """Manages the project of the scene."""
    return User.objects.get(username="carol")


@pytest.fixture
def checkpoint(scene: None, db: None) -> Checkpoint:
    """The policy of the scene, which was evaluated."""
    return Checkpoint.objects.get(name="tea-policy")


class Structure(HTMLParser):
    """The structure of a page: its tags, and all that they would fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attributes if name in ("src", "href", "action")]
        assert not [name for name, _ in attributes if name.startswith("on")]


def test_prompts_where_it_got_worse_come_first(checkpoint: Checkpoint):
    report = report_of(checkpoint)
    assert [row.prompt.last_question for row in report.rows] == ["Loses", "Ties", "Wins"]
    # The reward is the length: "bad ans" is 4 characters shorter, and "longer and … x" 7 longer.
    assert [row.gain for row in report.rows] == [-4, 0, 7]
    assert [row.outcome for row in report.rows] == ["worse", "identical", "better"]
    assert [(bar.value, bar.y, bar.height) for bar in report.bars] == [
        (-4, 40.0, 22.86), (0, 40.0, 0.0), (7, 0.0, 40.0),
    ]  # fmt: skip


def test_the_words_that_differ_are_marked_on_each_side(checkpoint: Checkpoint):
    first = report_of(checkpoint).rows[0]
    assert "".join(piece.text for piece in first.left) == "good answer"
    assert [piece.text for piece in first.right if piece.kind == "inserted"] == ["bad ans"]


def test_an_interval_beyond_one_half_is_a_verdict():
    def verdict(low: float | None, high: float | None) -> str:
        return DrawnWinRate(
            label="", figure=EvaluationFigure(value=0.5, low=low, high=high, prompts=9), y=0
        ).verdict

    assert [verdict(0.51, 0.9), verdict(0.1, 0.49), verdict(0.4, 0.6), verdict(None, None)] == [
        "better",
        "worse",
        "open",
        "open",
    ]


def test_a_win_rate_with_a_wide_interval_is_not_shown_and_comes_after_the_others():
    def is_rated(low: float | None, high: float | None) -> bool:
        return DrawnWinRate(
            label="", figure=EvaluationFigure(value=0.5, low=low, high=high, prompts=9), y=0
        ).is_rated

    assert [is_rated(0.25, 0.75), is_rated(0.2, 0.75), is_rated(None, None)] == [True, False, True]


def test_the_page_shows_figures_and_texts_and_is_for_managers(
    checkpoint: Checkpoint, carol: User, alice: User, oscar: User, client_of: Callable[[User], Client]
):
    address = f"/checkpoints/{checkpoint.name}/evaluation/"
    page = client_of(carol).get(address).content.decode()
    assert "Win rate against the parent" in page
    # Of three prompts the interval spans nearly everything.
    assert "too few prompts" in page
    assert "rule brief" in page
    assert "<script>alert" not in page
    listed = client_of(carol).get("/checkpoints/", {"evaluated": "1", "sort": "-win_rate"}).content.decode()
    assert f'<a href="{address}">too few prompts</a>' in listed
    assert client_of(alice).get(address).status_code == 403
    assert client_of(oscar).get(address).status_code == 404


def test_slices_by_metadata_add_up_to_the_whole_and_stand_on_the_page_and_in_the_api(
    checkpoint: Checkpoint, project: Project, alice: User, carol: User, client_of: Callable[[User], Client]
):
    report = report_of(checkpoint)
    for row in report.rows:
        domain = {"Loses": "medical", "Wins": "law"}.get(row.prompt.last_question)
        Prompt.objects.filter(pk=row.prompt.pk).update(metadata=domain and {"domain": domain})
    # People prefer the new response where the reward model prefers the old one.
    loses = report.rows[0].prompt
    old, new = (loses.completions.get(source=each.source) for each in (report.evaluation.parent, checkpoint))
    comparison = create_comparison(prompt=loses, completions=[old, new], round_number=1)
    factories.make_judgment(comparison, alice, (2, 1))
    people = report_of(checkpoint).people
    slices = {each.value: each for each in slices_of(report.evaluation, people, "domain")}
    assert {value: each.prompts for value, each in slices.items()} == {"medical": 1, "law": 1, None: 1}
    rates = {value: each.win_rate.value for value, each in slices.items() if each.win_rate}
    assert rates == {"medical": 0.0, "law": 1.0, None: 0.5}
    medical = slices["medical"]
    assert medical.people is not None
    assert medical.accuracy is not None
    assert (medical.people.value, medical.accuracy.value, medical.accuracy.low) == (1.0, 0.0, 0.0)
    assert 0.7 < (medical.accuracy.high or 0) < 0.9
    assert slices["law"].accuracy is None

    browser = client_of(carol)
    page = browser.get(f"/checkpoints/{checkpoint.name}/evaluation/", {"by": "domain"}).content.decode()
    assert '<th scope="row">medical</th>' in page
    answer = browser.get(f"/api/v1/checkpoints/{checkpoint.name}/evaluation/slices/", {"by": "domain"})
    assert {each["value"]: each["prompts"] for each in answer.json()} == {"medical": 1, "law": 1, None: 1}


def test_the_file_stands_alone_and_runs_nothing(
    checkpoint: Checkpoint, carol: User, client_of: Callable[[User], Client]
):
    answer = client_of(carol).get(f"/checkpoints/{checkpoint.name}/evaluation/file/")
    assert answer["Content-Disposition"] == 'attachment; filename="tea-policy-evaluation.html"'
    page = answer.content.decode()
    structure = Structure(page)
    assert not {"script", "img", "link", "iframe", "form", "a"} & set(structure.tags)
    assert structure.fetched == []
    assert not re.search(r"url\(|@import", page)
    # The attack is there to be read.
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert structure.tags.count("article") == 3
    assert structure.tags.count("svg") == 2


def test_the_command_writes_the_same_file(checkpoint: Checkpoint, tmp_path: Path):
    target = tmp_path / "report.html"
    call_command("evaluation_report", "tea-policy", output=target)
    assert "Prompts, largest regressions first" in target.read_text(encoding="utf-8")


def test_the_command_says_what_is_missing(checkpoint: Checkpoint, tmp_path: Path):
    with pytest.raises(CommandError, match="no checkpoint 'nobody'"):
        call_command("evaluation_report", "nobody", output=tmp_path / "x")
    Evaluation.objects.all().delete()
    with pytest.raises(CommandError, match="has not been evaluated"):
        call_command("evaluation_report", "tea-policy", output=tmp_path / "x")


def test_people_stand_beside_the_reward_model(checkpoint: Checkpoint, project: Project, alice: User):
    row = next(row for row in report_of(checkpoint).evaluation.rows.all() if row.old.text != row.new.text)
    comparison = create_comparison(prompt=row.prompt, completions=[row.old, row.new], round_number=1)
    ranks = [
        2 if candidate.completion_id == row.old_id else 1
        for candidate in comparison.candidates.order_by("index")
    ]
    factories.make_judgment(comparison, alice, ranks=ranks)
    report = report_of(checkpoint)
    assert report.shares[0].label == "people, held-out prompts"
    assert report.shares[0].figure.value == 1
    assert (report.shares[0].by_people, report.shares[0].is_rated) == (True, False)
    assert report.people.judgments == 1


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (1.5, 0.5, 2.5, "1.5 (0.5 – 2.5)"),
        (1.5, None, None, "1.5"),
        (-0.2753, -0.75, 0.125, "≈ 0 (sampling error: -0.75 – 0.125)"),
        (-0.2753, None, None, "≈ 0 (sampling error: -0.2753)"),
    ],
)
def test_an_estimate_of_a_divergence_below_0_is_about_0(value, low, high, shown):
    kl = {"value": value, "low": low, "high": high}
    assert " ".join(strip_tags(render_to_string("training/divergence.html", {"kl": kl})).split()) == shown
