"""Runs, checkpoints and drift in a real browser: curves grow and tell their values; every page holds axe."""

import json
import math

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from annotation.models import Project, User
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.training.registry.registry_rows import make_starter, make_trained
from training.choices import CheckpointKind, RoundState, StepKind
from training.contract.run import MachineUse, append_machine_use
from training.models import Checkpoint, DriftFigure, DriftMeasurement, Round, RoundStep, Run

pytestmark = pytest.mark.django_db(transaction=True)


def write_steps(run: Run, first: int, last: int, *, speed: float = 1.0) -> None:
    with (run.path / "metrics.jsonl").open("a") as stream:
        for step in range(first, last + 1):
            row = {
                "step": step, "loss": 2 / step**0.5 + 0.1 * math.sin(step * speed), "kl": step * 0.01 * speed,
                "reward": math.log(step * speed + 1), "gradient_norm": 1.0, "margin": step * 0.01 - 0.5,
                "entropy": None if 40 < step < 60 else 2.0 - step / 200,
            }  # fmt: skip
            if step % 20 == 0:
                row["held_out_accuracy"] = 0.6 + 0.1 * math.sin(step / 40)
            stream.write(json.dumps(row) + "\n")


@pytest.fixture
def policy(project: Project, alice: User) -> Checkpoint:
    """Two rounds of reward models and policies, with metrics and figures of drift."""
    base = make_starter("SmolLM2-135M-Instruct")
    parent: Checkpoint = base
    for number in (1, 2, 3):
        round_ = Round.objects.create(
            project=project, number=number, policy=parent, state=RoundState.PROMOTED
        )
        reward = make_trained(f"tea-round-{number}-reward", project, kind=CheckpointKind.REWARD)
        spec = {"settings": {"rewards": [{"checkpoint": f"../../checkpoints/{reward.name}"}]}}
        figures = {"held_out_accuracy": 0.7, "held_out_accuracy_low": 0.6, "held_out_accuracy_high": 0.8}
        made = make_trained(f"tea-round-{number}-policy", project, parent=parent, spec=spec, metrics=figures)
        Checkpoint.objects.filter(pk__in=[made.pk, reward.pk]).update(base_model=base.name)
        RoundStep.objects.create(round=round_, kind=StepKind.TRAIN_REWARD_MODEL, position=2, run=reward.run)
        RoundStep.objects.create(round=round_, kind=StepKind.TRAIN_POLICY, position=3, run=made.run)
        write_steps(made.run, 1, 120, speed=number / 2)
        for judged in (1, 2, 3):
            share = 0.75 - 0.12 * abs(judged - number)
            DriftFigure.objects.create(
                checkpoint=reward, round_number=judged, pairs=40, held_out_pairs=9,
                agreeing=round(40 * share),
                prompts=20, unscored=judged - 1, trained_on=10, low=share - 0.12, high=share + 0.11,
            )  # fmt: skip
        parent = made
    DriftMeasurement.objects.create(
        project=project, state="finished", message="9 figures",
        started_at="2026-01-01T00:00Z", finished_at="2026-01-01T00:01Z",
    )  # fmt: skip
    factories.make_judgment(factories.make_comparison(project), alice)
    parent.tags, parent.notes = ["best so far"], "Answers in **rhyme**."
    parent.save()
    return Checkpoint.objects.select_related("run").get(pk=parent.pk)


def test_curves_grow_while_the_run_goes_on_and_tell_their_values(
    policy: Checkpoint, carol: User, open_as: Open, axe: Axe
):
    run = policy.run
    Run.objects.filter(pk=run.pk).update(
        state="running", step=120, total_steps=400, seconds_left=300, message="training",
        started_at="2026-01-01T00:00Z",
    )  # fmt: skip
    append_machine_use(
        run.path,
        MachineUse(
            time=0.0, step=120, device="cpu", memory_bytes=2**31, cpu_cores=1.97, tokens_per_second=812.5
        ),
    )
    (run.path / "log.txt").write_text("2026-01-01 00:00:00 Step 120 of 400\n")
    other = "tea-round-1-policy"
    page = open_as(carol, f"{run.get_absolute_url()}?with={other}")
    loss = page.locator('[data-metric="loss"]')
    values, plot = loss.locator(".curve__values strong"), loss.get_by_role("slider")
    expect(loss.locator("canvas")).to_have_count(1)
    expect(values).to_have_text(["0.1025", "0.1521"])
    expect(page.get_by_role("table", name="Last values")).to_have_count(0)
    expect(page.get_by_role("slider", name="kl, nats")).to_be_visible()
    # A step is chosen from the keyboard: every chart tells its value there.
    plot.focus()
    page.keyboard.press("Home")
    expect(values.first).to_have_text("2.1")
    expect(plot).to_have_attribute("aria-valuetext", f"Step 1; {run.name} 2.1; {other} 2.048")
    expect(page.locator('[data-metric="kl"] figcaption')).to_have_text("klStep 10.0150.005")
    page.keyboard.press("ArrowRight")
    expect(plot).to_have_attribute("aria-valuenow", "2")
    page.keyboard.press("Escape")
    expect(values.first).to_have_text("0.1025")
    # The mouse tells values, too, and a drag zooms in, of all charts at once.
    box = plot.locator(".u-over").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 10, box["y"] + 40)
    expect(loss.locator("figcaption")).to_contain_text("Step 4")
    page.mouse.move(box["x"] + 10, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 40, steps=4)
    page.mouse.up()
    plot.focus()
    page.keyboard.press("End")
    assert int(plot.get_attribute("aria-valuenow") or "0") in range(90, 105)
    page.get_by_role("button", name="Zoom out").click(click_count=6)
    plot.focus()
    page.keyboard.press("End")
    expect(plot).to_have_attribute("aria-valuenow", "120")
    page.keyboard.press("Escape")
    # What the trainer adds appears without a reload, and so does the log.
    write_steps(run, 121, 200, speed=1.5)
    (run.path / "log.txt").write_text("2026-01-01 00:00:00 Step 200 of 400\n")
    expect(page.locator("#run-log")).to_contain_text("Step 200 of 400")
    expect(values.first).to_have_text("0.04145")
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").select_option("0.9")
    expect(page.locator('[data-metric="margin"]').get_by_text("drawn on a linear scale")).to_be_visible()
    expect(loss.get_by_text("drawn on a linear scale")).to_be_hidden()
    page.locator("details[data-more] > summary").click()
    expect(page.locator('[data-metric="gradient_norm"] canvas')).to_have_count(1)
    assert axe(page) == []


def test_charts_of_a_round_outlive_the_parts_that_are_swapped(
    policy: Checkpoint, project: Project, carol: User, open_as: Open, axe: Axe
):
    Round.objects.filter(project=project, number=3).update(state=RoundState.TRAINING_POLICY)
    RoundStep.objects.filter(run=policy.run).update(state="running", worker="w", heartbeat_at=timezone.now())
    Run.objects.filter(pk=policy.run.pk).update(state="running", step=120, total_steps=400)
    page = open_as(carol, f"/projects/{project.slug}/rounds/3/")
    plot = page.locator('[data-metric="loss"]').get_by_role("slider")
    expect(plot.locator("canvas")).to_be_visible()
    plot.focus()
    page.keyboard.press("Home")
    (policy.run.path / "log.txt").write_text("2026-01-01 00:00:00 Step 121 of 400\n")
    expect(page.locator("pre.log").first).to_contain_text("Step 121 of 400")
    expect(plot).to_be_focused()
    expect(plot).to_have_attribute("aria-valuenow", "1")
    assert axe(page) == []


def test_charts_fit_a_phone(policy: Checkpoint, carol: User, open_as: Open):
    page = open_as(carol, policy.run.get_absolute_url(), viewport={"width": 360, "height": 800})
    expect(page.locator('[data-metric="loss"] canvas')).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_pages_of_checkpoints_hold_what_axe_asks_and_fit_a_phone(
    policy: Checkpoint, project: Project, carol: User, open_as: Open, axe: Axe
):
    addresses = {
        "checkpoints": "/checkpoints/",
        "checkpoint": policy.get_absolute_url(),
        "delete": f"{policy.get_absolute_url()}delete/",
        "drift": f"/projects/{project.slug}/drift/",
        "drift-items": f"/projects/{project.slug}/drift/tea-round-1-reward/1/",
    }
    for name, address in addresses.items():
        page = open_as(carol, address)
        if name == "checkpoint":
            page.get_by_role("button", name="Verify now").click()
            for summary in page.locator("details.disclosure > summary").all():
                summary.click()
        assert axe(page) == [], name
        page.set_viewport_size({"width": 360, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, name
        page.close()
