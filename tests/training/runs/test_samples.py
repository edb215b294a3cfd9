"""Samples of a policy-gradient run: read from its folder, shaded, and shown to managers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from annotation.models import Project, User
from annotation.record.base import decode
from training.contract import ContractError
from training.contract.files import canonical_json
from training.contract.run import (
    LOG_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    SampledAnswer,
    read_samples,
    read_watch_warnings,
)
from training.models import Run, Snapshot
from training.selectors.runs import shaded

SignIn = Callable[[User], Client]


def token(
    text: str, reward: float | None = 0.0, advantage: float | None = 0.0, **more: Any
) -> dict[str, Any]:
    return {"text": text, "reward": reward, "advantage": advantage, "logp": -0.5, "kl": None, **more}


def line(step: int, text: str = "ab", **changes: Any) -> str:
    values = {
        "step": step,
        "prompt": "7",
        "message": "Reverse ba.",
        "text": text,
        "finish_reason": "stop",
        "reward": 1.0,
        "reason": "",
        "parts": {"right": 1.0},
        "tokens": [token("a"), token("b"), token("", reward=1.0, advantage=0.75)],
    }
    return canonical_json(values | changes) + "\n"


def answers(*lines: str) -> list[SampledAnswer]:
    return [decode(SampledAnswer, json.loads(text)) for text in lines]


def test_the_samples_of_one_step_are_read_and_no_others(tmp_path: Path) -> None:
    text = "".join([line(1), line(1, '"step":2,'), line(2, "x"), line(12), line(2, "y")])
    (tmp_path / SAMPLES_FILE).write_text(text, encoding="utf-8")
    assert [answer.text for answer in read_samples(tmp_path, 2)] == ["x", "y"]
    assert [answer.text for answer in read_samples(tmp_path, 1)] == ["ab", '"step":2,']
    assert read_samples(tmp_path, 3) == []
    [first, _] = read_samples(tmp_path, 1)
    assert [piece.text for piece in first.tokens] == ["a", "b", ""]
    assert first.tokens[2].advantage == 0.75


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    (tmp_path / SAMPLES_FILE).write_text(line(1) + line(1)[:-20], encoding="utf-8")
    assert len(read_samples(tmp_path, 1)) == 1
    assert read_samples(tmp_path / "no run", 1) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": "ab"}, "line 1, tokens: must be a list, not 'ab'"),
        (
            {"tokens": [{"text": "a"}]},
            "item 1, reward: the field is missing; .*, advantage: ",
        ),
        ({"tokens": [token("a", reward="x")]}, "line 1, tokens, item 1, reward: must be a number or null"),  # type: ignore[arg-type]
        ({"finish_reason": "bored"}, "line 1, finish_reason: must be 'stop' or 'length'"),
        ({"colour": "red"}, "line 1: unknown field 'colour'"),
    ],
)
def test_a_bad_sample_is_refused_with_its_line_and_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / SAMPLES_FILE).write_text(line(1, **change), encoding="utf-8")
    with pytest.raises(ContractError, match=message):
        read_samples(tmp_path, 1)


def test_warnings_of_the_watch_are_read_from_the_log_once_each(tmp_path: Path) -> None:
    log = tmp_path / LOG_FILE
    assert read_watch_warnings(log) == []
    log.write_text(
        "2026-11-21 22:00:00 Step 1 of 3: reward 0.5\n"
        "2026-11-21 22:00:01 Watch: step 40: answers became 60% longer\n"
        "2026-11-21 22:00:02 Told of Watch: nothing\n"
        "2026-11-21 22:00:03 Watch: step 40: answers became 60% longer\n"
        "2026-11-21 22:00:04 Watch: step 41: the held-out reward fell\n",
        encoding="utf-8",
    )
    assert read_watch_warnings(log) == [
        "step 40: answers became 60% longer",
        "step 41: the held-out reward fell",
    ]


def test_shades_are_on_one_scale_for_all_answers_of_a_step() -> None:
    # The largest is 2: 2 → 4, 1 → 2, −0.6 → 1.2 ≈ −1, a hair above 0 still has a shade, 0 and nothing none.
    first = line(
        1, tokens=[token("a", advantage=2.0), token("b", advantage=-0.6), token("c", advantage=0.001)]
    )
    other = line(1, tokens=[token("d", advantage=1.0), token("e"), token("f", advantage=None)])
    shades = shaded(answers(first, other), step=1, last_step=3, measure="advantage")
    assert [[piece.shade for piece in answer.tokens] for answer in shades.answers] == [[4, -1, 1], [2, 0, 0]]
    assert [piece.css for piece in shades.answers[0].tokens] == ["shade-p4", "shade-n1", "shade-p1"]
    assert shades.answers[1].tokens[1].css == ""
    assert (shades.largest, shades.before, shades.after) == (2.0, None, 2)


def test_a_step_in_which_nothing_was_earned_has_no_colour() -> None:
    shades = shaded(answers(line(2, tokens=[token("a"), token("")])), step=2, last_step=2, measure="kl")
    assert [piece.css for piece in shades.answers[0].tokens] == ["", ""]
    assert [piece.text for piece in shades.answers[0].tokens] == ["a", "∎"]
    assert (shades.has_reference, shades.before, shades.after) == (False, 1, None)


@pytest.fixture
def run(project: Project, rondo_home: Path) -> Run:
    """A run of two steps with samples and a warning in its folder."""
    snapshot = Snapshot.objects.create(
        project=project, digest="d" * 64, folder="snapshots/d", rounds=[1], counts={"judgments": 2}
    )
    run = Run.objects.create(
        name="tea-rl",
        method="policy_gradient",
        snapshot=snapshot,
        spec={},
        folder="runs/tea-rl",
        total_steps=2,
    )
    run.path.mkdir(parents=True)
    rows = [
        {"step": step, "reward": 0.5, "reward/people": 0.25, "watched/short": 0.1, "length": 9.5, "kl": 0.1}
        for step in (1, 2)
    ]
    (run.path / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    hostile = '<script>alert("x")</script>'
    scored = line(
        2,
        hostile,
        message="<b>bold</b>",
        parts={"people": 0.25, "items": None},
        tokens=[token(hostile, advantage=-1.0, kl=0.5), token("", reward=0.25, advantage=1.0, kl=0.0)],
    )
    unscored = line(2, reward=None, reason="no reference", finish_reason="length", tokens=[token("c")])
    (run.path / SAMPLES_FILE).write_text(line(1, "first step") + scored + unscored, encoding="utf-8")
    (run.path / LOG_FILE).write_text("2026-11-21 22:00:01 Watch: step 2: answers became 60% longer\n")
    return run


@pytest.mark.django_db
def test_a_manager_reads_what_was_said_and_what_it_earned(run: Run, carol: User, client_of: SignIn) -> None:
    page = client_of(carol).get(run.get_absolute_url()).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "&lt;b&gt;bold" in page
    assert 'class="token shade-n4"' in page
    assert "cannot be scored: no reference" in page
    assert '<p class="message message--warning">step 2: answers became 60% longer</p>' in page
    assert {"reward, people", "watched, short", "length"} <= set(
        re.findall(r"<th scope=\"row\">([a-z, ]+?) ?<", page)
    )
    assert "<dt>items</dt>" in page
    assert ' style="' not in page


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "shown", "colour"),
    [
        ("", 2, "advantage"),
        ("?step=1&colour=reward", 1, "reward"),
        ("?step=99&colour=kl", 2, "kl"),
        ("?step=0&colour=__class__", 2, "advantage"),
        ("?step=%C2%B2", 2, "advantage"),
        ("?step=-1", 2, "advantage"),
    ],
)
def test_step_and_colour_are_chosen_without_javascript(
    run: Run, carol: User, client_of: SignIn, query: str, shown: int, colour: str
) -> None:
    context = client_of(carol).get(run.get_absolute_url() + query).context
    assert context["samples"].step == shown
    assert context["samples"].measure == colour


@pytest.mark.django_db
def test_a_run_without_samples_has_no_such_section(run: Run, carol: User, client_of: SignIn) -> None:
    (run.path / SAMPLES_FILE).unlink()
    assert 'id="samples"' not in client_of(carol).get(run.get_absolute_url()).content.decode()
