"""Runs, their comparison and the playground in a real browser: tasks in few clicks, without reloads."""

import re

import pytest
from playwright.sync_api import expect

from annotation.choices import Split
from annotation.models import Project, User
from tests import factories
from tests.browser.conftest import Axe, Open, until_loaded
from tests.browser.test_run_page import policy, write_steps
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.engine.streaming_server import StreamingServer
from training.models import Checkpoint, Run, SideBySide
from training.services.prompt_sets import create_prompt_set
from training.services.runs.runs import sweep_summaries

__all__ = ["policy"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def runs(policy: Checkpoint) -> list[Run]:
    """Six runs with summaries, of which the second reward model is the best."""
    stored_runs = list(Run.objects.order_by("pk"))
    for number, run in enumerate(stored_runs):
        run.spec = {
            "method": run.method,
            "seed": number,
            "settings": {"optimiser": {"learning_rate": 1e-4 * (1 + number), "batch_size": 8}},
        }
        run.save()
    for run, accuracy in zip(stored_runs[::2], (0.61, 0.83, 0.74), strict=True):
        write_steps(run, 1, 120)
        report = f'{{"step": 100, "figures": {{"held_out_accuracy": {accuracy}}}, "details": {{}}}}'
        (run.path / "evaluation.json").write_text(report)
    sweep_summaries()
    Run.objects.filter(pk=stored_runs[2].pk).update(tags=["baseline"], notes="The **one** to beat.")
    return list(Run.objects.order_by("pk"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    fake_server.text = lambda body: f"Steep it for {len(body['model'])} minutes."
    monkeypatch.setattr("training.services.side_by_side.engine_for", fake_server.engine)
    monkeypatch.setattr("training.views.side_by_side.Engine", fake_server.engine)
    return fake_server


@pytest.fixture
def prompt_set(project: Project, carol: User, server: StreamingServer) -> None:
    """Two checkpoints, and a set of three prompts."""
    make_checkpoints(project, ("first-base", "first-policy"))
    prompts = [
        factories.make_prompt(project, f"How long should tea number {n} steep?", split=Split.HELD_OUT)
        for n in range(3)
    ]
    create_prompt_set(
        project=project, name="Everyday tea", prompts=[prompt.pk for prompt in prompts], created_by=carol
    )


def test_filters_order_and_columns_change_the_table_alone(
    runs: list[Run], carol: User, open_as: Open, axe: Axe
):
    page = open_as(carol, "/projects/tea/runs/")
    page.evaluate("window.here = true")
    rows = page.locator("#runs-table tbody tr")
    expect(rows).to_have_count(6)
    page.get_by_label("Kind").select_option(label="reward model")
    expect(rows).to_have_count(3)
    page.get_by_role("columnheader", name="Held-out accuracy").get_by_role("link").click()
    expect(rows.first).to_contain_text("0.83")
    expect(page).to_have_url(re.compile(r"kind=reward.*sort=-held_out_accuracy"))
    # Typing keeps the order, and the cursor stays in the field.
    page.get_by_label("Name or notes").press_sequentially("round-3")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile(r"text=round-3.*sort=-held_out_accuracy"))
    expect(page.get_by_label("Name or notes")).to_be_focused()
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Seed", exact=True).uncheck()
    expect(page.get_by_role("columnheader", name="Seed")).to_have_count(0)
    assert page.evaluate("window.here")
    assert axe(page) == []
    page.go_back()
    expect(page.get_by_role("columnheader", name="Seed")).to_have_count(1)


def test_pages_of_runs_have_no_barrier_and_fit(
    runs: list[Run], prompt_set: None, carol: User, open_as: Open, barriers: Axe
):
    page = open_as(carol, "/")
    origin = "/".join(page.url.split("/")[:3])
    ids = "&".join(f"run={run.pk}" for run in runs)
    (runs[2].path / "log.txt").write_text("2026-01-01 00:00:00 Step 1 of 120\n" * 9)
    addresses = {
        "runs": "/projects/tea/runs/?sort=-held_out_accuracy",
        "compare-runs": f"/projects/tea/runs/compare/?{ids}",
        "run": runs[2].get_absolute_url(),
        "checkpoints": "/checkpoints/?project=tea&sort=-accuracy",
        "playground": "/compare/?project=tea&find=tea",
        "sets": "/projects/tea/prompt-sets/",
        "set": "/projects/tea/prompt-sets/1/?find=tea",
    }
    for name, address in addresses.items():
        page.goto(origin + (re.sub(r"sets/1/", _first_set(), address) if name == "set" else address))
        until_loaded(page)
        if name in ("compare-runs", "run"):
            expect(page.locator('[data-metric="loss"] canvas')).to_be_visible()
        for summary in page.locator("main details.disclosure > summary").all():
            summary.click()
        assert barriers(page) == [], name


def _first_set() -> str:
    from training.models import PromptSet

    return f"sets/{PromptSet.objects.earliest('pk').pk}/"


def test_curves_of_compared_runs_share_their_charts(runs: list[Run], carol: User, open_as: Open):
    ids = "&".join(f"run={run.pk}" for run in runs)
    page = open_as(carol, f"/projects/tea/runs/compare/?{ids}")
    values = page.locator('[data-metric="loss"] .curve__values > span')
    expect(values).to_have_count(6)
    groups = page.locator("[data-group]:visible > .label")
    expect(groups).to_have_text(["Objective", "Held-out", "Reward", "Policy and KL divergence"])


def test_the_log_is_searched_while_typing(runs: list[Run], carol: User, open_as: Open, axe: Axe):
    (runs[2].path / "log.txt").write_text("Step 1 of 2\nWARNING slow disk\nStep 2 of 2\n")
    page = open_as(carol, runs[2].get_absolute_url())
    expect(page.locator("#run-log")).to_contain_text("Step 2 of 2")
    page.get_by_label("Search the log").press_sequentially("warn")
    expect(page.locator("#run-log")).to_contain_text("1 line contains “warn”")
    expect(page.locator("#run-log pre")).to_have_text("WARNING slow disk")
    assert axe(page) == []


def test_tags_and_notes_are_edited_on_the_page(runs: list[Run], carol: User, open_as: Open, axe: Axe):
    page = open_as(carol, runs[0].get_absolute_url())
    page.locator("summary", has_text="Edit tags and notes").click()
    page.get_by_label("Tags", exact=True).fill("keep, <b>")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("is no tag")
    page.get_by_label("Tags", exact=True).fill("keep")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="keep", exact=True)).to_be_visible()


def test_prompts_are_found_while_typing_and_the_chat_is_asked_again(
    prompt_set: None, carol: User, open_as: Open, axe: Axe
):
    page = open_as(carol, "/compare/?project=tea")
    page.get_by_label("Prompt of the project").first.press_sequentially("number 2")
    expect(page.locator("#prompt-choices input")).to_have_count(2)
    page.get_by_label("How long should tea number 2 steep?").check()
    assert axe(page) == []
    page.get_by_label("System prompt").fill("Answer in one sentence.")
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    expect(page.get_by_text("Answer in one sentence.").first).to_be_visible()
    page.locator("summary", has_text="Regenerate or change settings").click()
    page.locator(".again").get_by_label("Temperature").fill("1.5")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    newest = SideBySide.objects.latest("pk")
    assert (newest.sampling["temperature"], newest.is_hidden, SideBySide.objects.count()) == (1.5, True, 2)
    assert page.url.endswith(newest.get_absolute_url())
