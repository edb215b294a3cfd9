"""The page of a run: live, beside other runs, to be taken away; and nobody else's secrets in it."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Project, Prompt, User
from tests import factories
from training.contract.run import MachineUse, append_machine_use, read_machine_use
from training.models import Run
from training.recipe.recipe import Recipe, default_recipe
from training.services.runs.files import crc32c, event_file, secrets_in, zip_of_folder
from training.services.runs.runs import create_run
from training.services.snapshots import freeze_snapshot

SignIn = Callable[[User], Client]


@pytest.fixture
def run(project: Project, alice: User) -> Run:
    """A run that waits, of a snapshot of one judgment; its folder is there."""
    prompt = factories.make_prompt(project, "How long?", split="train")
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    return make_run("reward-1", project)


def make_run(name: str, project: Project) -> Run:
    made = create_run(
        name=name,
        snapshot=freeze_snapshot(project=project, rounds=[1]),
        settings_of_method=Recipe.from_json(default_recipe()).reward,
        base_model="base",
        parent=None,
        seed=1,
    )
    made.path.mkdir(parents=True)
    return made


def write_metrics(run: Run, steps: int, **values: float) -> None:
    with (run.path / "metrics.jsonl").open("a") as stream:
        for step in range(1, steps + 1):
            stream.write(json.dumps({"step": step, "loss": 1 / step, **values}) + "\n")


def test_the_page_shows_curves_machine_data_and_what_was_dropped(run: Run, carol: User, client_of: SignIn):
    write_metrics(run, 3, gradient_norm=2.0)
    append_machine_use(
        run.path,
        MachineUse(
            time=0.0, step=3, device="cuda:0 (H100)", memory_bytes=3 * 2**30, cpu_cores=1.5,
            tokens_per_second=2500.0, gpu_memory_bytes=2**30, gpu_memory_total_bytes=80 * 2**30,
        ),
    )  # fmt: skip
    (run.path / "dropped.jsonl").write_text(
        "".join(json.dumps({"judgment": f"j{n}", "reason": "too long"}) + "\n" for n in range(60))
    )
    page = client_of(carol).get(run.get_absolute_url()).content.decode()
    assert page.index('<th scope="row">loss') < page.index('<th scope="row">gradient norm')
    assert "cuda:0 (H100)" in page
    assert "1.0\xa0GB of 80.0\xa0GB" in page
    assert "60 entries could not be learned from" in page
    assert "60 × too long" in page
    assert page.count("judgment j") == 50


def test_the_live_part_is_sent_again_only_when_something_changed(run: Run, carol: User, client_of: SignIn):
    client = client_of(carol)
    first = client.get(reverse("run-live", args=[run.pk]))
    assert b"hx-get" in first.content  # it waits for its trainer, so it goes on
    same = client.get(reverse("run-live", args=[run.pk]), headers={"If-None-Match": first["ETag"]})
    assert (same.status_code, same.content) == (304, b"")
    (run.path / "log.txt").write_text("2026-01-01 00:00:00 Step 1 of 3\n")
    news = client.get(reverse("run-live", args=[run.pk]), headers={"If-None-Match": first["ETag"]})
    assert news.status_code == 200
    log = client.get(reverse("run-log", args=[run.pk]))
    assert b"Step 1 of 3" in log.content
    Run.objects.filter(pk=run.pk).update(state="finished")
    assert b"hx-get" not in client.get(reverse("run-live", args=[run.pk])).content


def test_only_what_is_new_in_the_curves_is_sent(run: Run, carol: User, client_of: SignIn):
    client, url = client_of(carol), reverse("run-curves", args=[run.pk])
    write_metrics(run, 5)
    (first,) = client.get(url).json()["runs"]
    assert first["all"]
    assert [point[0] for point in first["metrics"]["loss"]] == [1, 2, 3, 4, 5]
    (same,) = client.get(url, {"since": first["mark"]}).json()["runs"]
    assert (same["all"], same["metrics"]) == (False, {})
    with (run.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 6, "loss": 7.0}\n')
    (news,) = client.get(url, {"since": same["mark"]}).json()["runs"]
    # The last known step comes again with the new one: its bucket may have grown.
    assert news["metrics"]["loss"] == [[5, 0.2, 5, 0.2, 0.2], [6, 7.0, 6, 7.0, 7.0]]
    assert (news["latest"]["loss"], news["total_steps"], news["goes_on"]) == (7.0, 0, True)


def test_charts_know_each_metric_with_its_unit_those_to_look_at_first_in_front(
    run: Run, carol: User, client_of: SignIn
):
    (run.path / "metrics.jsonl").write_text(
        '{"step": 1, "seconds": 2.0, "loss": 1.0, "kl": 0.5, "entropy": null}\n'
    )
    assert client_of(carol).get(reverse("run-curves", args=[run.pk])).json()["metrics"] == [
        {"name": "kl", "title": "kl", "unit": "nats", "group": "policy", "first": True},
        {"name": "loss", "title": "loss", "unit": "", "group": "objective", "first": True},
        {"name": "seconds", "title": "seconds", "unit": "s", "group": "other", "first": False},
    ]


def test_a_mark_of_another_width_or_of_nonsense_gets_everything(run: Run, carol: User, client_of: SignIn):
    client, url = client_of(carol), reverse("run-curves", args=[run.pk])
    write_metrics(run, 200)
    (first,) = client.get(url).json()["runs"]
    with (run.path / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(201, 600))
    for mark in (first["mark"], "", "x-y", "1-2-3-", "-" * 9):
        (curves,) = client.get(url, {"since": mark}).json()["runs"]
        assert curves["all"], mark
        assert curves["width"] == 4  # 600 steps in at most 256 buckets
        assert curves["metrics"]["loss"][0][0] == 3  # the least of 1, 1/2 and 1/3


def test_other_runs_of_the_project_are_drawn_over_it_and_of_other_projects_not(
    run: Run, project: Project, carol: User, alice: User, client_of: SignIn
):
    write_metrics(run, 3)
    for name in ("reward-2", "reward-3", "reward-4", "reward-5"):
        write_metrics(make_run(name, project), 4)
    elsewhere = factories.make_project(slug="coffee", annotators=[alice])
    prompt = factories.make_prompt(elsewhere, "How strong?", split="train")
    factories.make_judgment(factories.make_comparison(elsewhere, prompt=prompt), alice)
    write_metrics(make_run("foreign", elsewhere), 4)
    names = ["foreign", "reward-3", "reward-2", "reward-1", "nobody", "reward-5"]
    client = client_of(carol)
    curves = client.get(reverse("run-curves", args=[run.pk]), {"with": names}).json()["runs"]
    assert [curve["run"] for curve in curves] == ["reward-1", "reward-3", "reward-2", "reward-5"]
    page = client.get(run.get_absolute_url(), {"with": ["reward-3", "reward-2"]}).content.decode()
    assert "foreign" not in page
    for kind in range(3):
        assert f"curve__line--{kind}" in page  # each has dashes of its own, not a colour alone
    assert page.index(">reward-3</a>") < page.index(">reward-2</a>")


def test_everything_can_be_taken_away_but_no_secret_and_nothing_a_link_points_to(
    run: Run, carol: User, client_of: SignIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("RONDO_JUDGE_KEY", "sk-very-secret")
    write_metrics(run, 2)
    (run.path / "log.txt").write_text("asked with Bearer sk-very-secret\nand went on\n")
    (run.path / "lock").write_text("123")
    (run.path / "checkpoint").mkdir()
    weights = os.urandom(300_000)
    (run.path / "checkpoint" / "adapter_model.safetensors").write_bytes(weights)
    (tmp_path / "passwd").write_text("root")
    (run.path / "innocent.txt").symlink_to(tmp_path / "passwd")
    (run.path / "folder").symlink_to(tmp_path, target_is_directory=True)
    answer = client_of(carol).get(reverse("run-download", args=[run.pk]))
    assert answer["Content-Disposition"] == 'attachment; filename="reward-1.zip"'
    with zipfile.ZipFile(io.BytesIO(b"".join(answer))) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            "reward-1/checkpoint/adapter_model.safetensors",
            "reward-1/log.txt",
            "reward-1/metrics.jsonl",
        ]
        assert archive.read("reward-1/log.txt") == b"asked with Bearer [struck out]\nand went on\n"
        assert archive.read("reward-1/checkpoint/adapter_model.safetensors") == weights


def test_an_archive_comes_in_pieces(tmp_path: Path):
    (tmp_path / "big.safetensors").write_bytes(os.urandom(3_000_000))
    pieces = list(zip_of_folder(tmp_path, name="run"))
    assert max(map(len, pieces)) < 600_000


def test_secrets_are_known_by_the_names_of_their_variables():
    secrets = secrets_in({"RONDO_HUB_TOKEN": "hf_12345678", "HOME": "/home/someone", "SHORT_KEY": "abc"})
    assert secrets == [b"hf_12345678"]


def test_the_event_file_is_what_tensorboard_reads(run: Run, carol: User, client_of: SignIn, tmp_path: Path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    write_metrics(run, 3, seconds=2.0)
    started = datetime(2026, 1, 31, tzinfo=UTC)
    Run.objects.filter(pk=run.pk).update(started_at=started)
    answer = client_of(carol).get(reverse("run-tensorboard", args=[run.pk]))
    assert "events.out.tfevents." in answer["Content-Disposition"]
    path = tmp_path / "events.out.tfevents.1.x"
    path.write_bytes(b"".join(answer))
    version, *events = loader.EventFileLoader(str(path)).Load()
    assert version.file_version == "brain.Event:2"
    assert [event.step for event in events] == [1, 2, 3]
    assert [event.wall_time - started.timestamp() for event in events] == [2.0, 4.0, 6.0]
    first = {value.tag: value.tensor.float_val[0] for value in events[0].summary.value}
    assert first == {"loss": 1.0, "seconds": 2.0}


def test_the_checksum_is_castagnolis():
    # The check value of CRC-32C (RFC 3720, B.4), and of no bytes.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_steps_of_many_bits_and_numbers_beyond_a_float_are_written(tmp_path: Path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    rows = [{"step": 300_000, "loss": 1e300, "kl": float("nan"), "ok": True, "note": "x"}]
    path = tmp_path / "events.out.tfevents.1.x"
    path.write_bytes(b"".join(event_file(rows, started_at=0.0)))
    _, event = loader.EventFileLoader(str(path)).Load()
    assert event.step == 300_000
    assert [(value.tag, value.tensor.float_val[0]) for value in event.summary.value] == [
        ("loss", pytest.approx(3.4028235e38))
    ]


def test_machine_lines_that_are_torn_or_strange_are_left_out(tmp_path: Path):
    use = MachineUse(time=1.0, step=2, device="cpu", memory_bytes=5, cpu_cores=0.5)
    append_machine_use(tmp_path, use)
    with (tmp_path / "machine.jsonl").open("a") as stream:
        stream.write('{"colour": 1}\nnothing\n{"time": 3.0')
    assert read_machine_use(tmp_path) == [use]


def test_a_run_page_asks_the_database_as_often_for_four_runs_as_for_one(
    run: Run, project: Project, carol: User, client_of: SignIn, django_assert_max_num_queries
):
    names = [make_run(f"reward-{n}", project).name for n in range(2, 5)]
    client = client_of(carol)
    with django_assert_max_num_queries(9):
        client.get(run.get_absolute_url())
    with django_assert_max_num_queries(9):
        client.get(run.get_absolute_url(), {"with": names})


@pytest.mark.parametrize("name", ["run-live", "run-curves", "run-download", "run-tensorboard"])
def test_parts_of_a_run_are_as_closed_as_its_page(
    run: Run, alice: User, oscar: User, client_of: SignIn, name: str, prompts: list[Prompt]
):
    url = reverse(name, args=[run.pk])
    assert client_of(alice).get(url).status_code == 403
    assert client_of(oscar).get(url).status_code == 404
