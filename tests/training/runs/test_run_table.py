"""The table of runs, their summaries, tags and notes; runs beside each other; the search of a log."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.models import AuditEntry, Project, User
from tests import factories
from tests.api.scene import Asker
from tests.training.registry.registry_rows import make_snapshot
from training.models import Run
from training.selectors.run_table import best_values, offered_columns
from training.selectors.runs import comparison_of
from training.services.runs.runs import MOST_METRICS, summarise, sweep_summaries

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


def make_run(project: Project, name: str, *, rate: float = 1e-4, seed: int = 1, **fields: Any) -> Run:
    """A finished run with a learning rate, a seed and a summary."""
    spec = {
        "method": "reward",
        "seed": seed,
        "settings": {"optimiser": {"learning_rate": rate, "batch_size": 8}, "lora": {"rank": 16}},
    }
    values = {"method": "reward", "state": "finished", "folder": f"runs/{name}", **fields}
    return Run.objects.create(name=name, snapshot=make_snapshot(project), spec=spec, **values)


@pytest.fixture
def runs(project: Project) -> dict[str, Run]:
    """Three reward models and a policy that has no accuracy."""
    now = timezone.now()
    return {
        "fair": make_run(project, "fair", summary={"held_out_accuracy": 0.7, "held_out_log_loss": 0.6}),
        "best": make_run(
            project, "best", rate=2e-4, seed=9, summary={"held_out_accuracy": 0.9, "held_out_log_loss": 0.5}
        ),
        "poor": make_run(project, "poor", rate=5e-5, summary={"held_out_accuracy": 0.1}, tags=["old"]),
        "policy": make_run(
            project,
            "policy",
            method="preference",
            state="failed",
            summary={"kl": 1.5, "reward/helpful": 2.0},
            notes="Diverged.",
            started_at=now - timedelta(minutes=3),
            finished_at=now,
        ),
    }


@pytest.fixture
def manager(carol: User, runs: dict[str, Run], client_of: SignIn) -> Client:
    return client_of(carol)


def listed(client: Client, **query: Any) -> list[str]:
    page = client.get(reverse("runs", args=["tea"]), query)
    assert page.status_code == 200
    table = page.content.decode().partition('id="runs-table"')[2]
    return re.findall(r'<th scope="row">\s*<a href="[^"]+">([^<]+)</a>', table)


# ── Table ─────────────────────────────────────────────────────────────────────────────


def test_runs_are_listed_newest_first_and_sorted_by_any_metric_or_setting(manager: Client):
    assert listed(manager) == ["policy", "poor", "best", "fair"]
    # A run without the metric comes last in both orders.
    assert listed(manager, sort="-held_out_accuracy") == ["best", "fair", "poor", "policy"]
    assert listed(manager, sort="held_out_accuracy") == ["poor", "fair", "best", "policy"]
    assert listed(manager, sort="-learning_rate") == ["best", "policy", "fair", "poor"]
    assert listed(manager, sort="-seed")[0] == "best"
    assert listed(manager, sort="-duration")[0] == "policy"
    assert listed(manager, sort="-reward/helpful")[0] == "policy"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"text": "diverged"}, ["policy"]),
        ({"text": "BES"}, ["best"]),
        ({"kind": "reward"}, ["poor", "best", "fair"]),
        ({"kind": "policy"}, ["policy"]),
        ({"method": "preference"}, ["policy"]),
        ({"state": "failed"}, ["policy"]),
        ({"tag": "old"}, ["poor"]),
        ({"state": "failed", "kind": "reward"}, []),
    ],
)
def test_filters_leave_the_runs_that_match(manager: Client, query: dict[str, str], names: list[str]):
    assert listed(manager, **query) == names


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "-spec__secret"},
        {"sort": "__class__"},
        {"sort": "'; drop table training_run; --"},
        {"sort": '-$."x"'},
        {"col": ["__init__", "spec", "x" * 500]},
        {"col": ["held_out_accuracy"] * 300},
        {"page": "-1"},
        {"page": "9" * 40},
        {"page": "last"},
        {"round": "9" * 30},
        {"round": "one"},
        {"state": "gone"},
        {"method": "x"},
        {"kind": "starter"},
        {"tag": "%"},
    ],
)
def test_hostile_parameters_count_as_left_out(manager: Client, query: dict[str, Any]):
    assert listed(manager, **query) == ["policy", "poor", "best", "fair"]


def test_a_text_with_a_nul_is_refused(manager: Client):
    assert manager.get(reverse("runs", args=["tea"]), {"text": "be\0st"}).status_code == 400


def test_the_best_value_of_a_metric_is_marked_and_leads_to_its_run(manager: Client, runs: dict[str, Run]):
    page = manager.get(reverse("runs", args=["tea"])).content.decode()
    cards, _, table = page.partition('id="runs-table"')
    assert runs["best"].get_absolute_url() in cards
    marked = re.findall(r'<td class="number nowrap runs__best">\s*([^\s<]+)', table)
    # The highest accuracy and the lowest log loss; of KL divergences none is the best.
    assert sorted(marked) == ["0.5", "0.9"]
    by_reward = manager.get(reverse("runs", args=["tea"]), {"col": ["reward/helpful"]}).content.decode()
    assert re.findall(r'runs__best">\s*([^\s<]+)', by_reward) == ["2"]


def test_columns_are_chosen_by_the_address_and_stay_with_the_order(manager: Client):
    page = manager.get(reverse("runs", args=["tea"]), {"col": ["seed", "nothing"], "sort": "-seed"})
    head = re.search(r"<thead>.*?</thead>", page.content.decode(), re.S)
    assert head
    assert re.findall(r'class="table__sort"[^>]*>([^<]+?) ?<', head[0]) == ["Seed"]
    assert 'aria-sort="descending"' in head[0]
    assert "?col=seed&amp;sort=seed" in head[0]


def test_htmx_gets_the_table_alone(manager: Client):
    part = manager.get(reverse("runs", args=["tea"]), {"tag": "old"}, headers={"HX-Request": "true"})
    assert part.content.decode().strip().startswith('<div id="runs-table"')
    assert "HX-Request" in part["Vary"]


def test_runs_of_another_project_are_neither_listed_nor_best(manager: Client, alice: User):
    elsewhere = factories.make_project(slug="coffee", annotators=[alice])
    make_run(elsewhere, "foreign", summary={"held_out_accuracy": 0.99})
    page = manager.get(reverse("runs", args=["tea"])).content.decode()
    assert "foreign" not in page


def test_the_api_filters_alike_and_tells_summary_tags_and_notes(
    carol: User, runs: dict[str, Run], project: Project
):
    ask = Asker(carol)
    rows = ask.get("/projects/tea/runs/?kind=policy&text=policy").json()["results"]
    assert [(row["name"], row["summary"], row["notes"]) for row in rows] == [
        ("policy", {"kl": 1.5, "reward/helpful": 2.0}, "Diverged.")
    ]
    assert [row["name"] for row in ask.get("/projects/tea/runs/?tag=old").json()["results"]] == ["poor"]
    assert ask.get("/projects/tea/runs/?round=7").json()["results"] == []
    assert ask.get("/projects/tea/runs/?kind=starter").status_code == 422


# ── Summaries ─────────────────────────────────────────────────────────────────────────


def test_a_summary_holds_the_last_number_of_each_metric_and_the_figures_of_the_checkpoint(project: Project):
    run = make_run(project, "fresh", summary=None)
    run.path.mkdir(parents=True)
    rows = [
        {"step": 1, "loss": 0.9, "held_out_accuracy": 0.8},
        {"step": 2, "loss": 0.4, "held_out_accuracy": 0.5, "kl": None},
    ]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = {"step": 1, "figures": {"held_out_accuracy": 0.8, "held_out_nothing": None}, "details": {}}
    (run.path / "evaluation.json").write_text(json.dumps(report))
    sweep_summaries()
    run.refresh_from_db()
    assert run.summary == {"held_out_accuracy": 0.8, "loss": 0.4}


def test_a_run_without_files_or_with_a_damaged_evaluation_gets_a_summary_of_what_is_there(project: Project):
    run = make_run(project, "gone", summary=None)
    summarise(run)
    assert run.summary == {}
    damaged = make_run(project, "damaged", summary=None)
    damaged.path.mkdir(parents=True)
    (damaged.path / "evaluation.json").write_text("{")
    (damaged.path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    summarise(damaged)
    assert damaged.summary == {"loss": 1.0}


def test_a_trainer_that_names_thousands_of_metrics_fills_no_row_with_them(project: Project):
    run = make_run(project, "wide", summary=None)
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text(
        json.dumps({"step": 1} | {f"metric {n}": n for n in range(2000)}) + "\n"
    )
    summarise(run)
    assert len(run.summary or {}) == MOST_METRICS


def test_the_sweep_leaves_runs_that_go_on_and_those_that_have_a_summary(project: Project):
    going = make_run(project, "going", summary=None, state="running")
    done = make_run(project, "done", summary={"loss": 1.0})
    sweep_summaries()
    for run in (going, done):
        run.refresh_from_db()
    assert (going.summary, done.summary) == (None, {"loss": 1.0})


# ── Tags and notes ────────────────────────────────────────────────────────────────────


def test_a_manager_tags_a_run_and_the_change_is_in_the_activity(manager: Client, runs: dict[str, Run]):
    run = runs["best"]
    address = reverse("run-describe", args=[run.pk])
    saved = manager.post(address, {"tags": "keep, baseline,keep", "notes": "# Good\r\n**one**"})
    assert saved.status_code == 302
    run.refresh_from_db()
    assert (run.tags, run.notes) == (["keep", "baseline"], "# Good\n**one**")
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["run.note", "run.tag"]
    page = manager.get(run.get_absolute_url()).content.decode()
    assert "<strong>one</strong>" in page
    assert f"{reverse('runs', args=['tea'])}?tag=baseline" in page
    # The same again changes nothing.
    manager.post(address, {"tags": "keep, baseline", "notes": "# Good\n**one**"})
    assert AuditEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("tags", "notes", "message"),
    [
        ("<script>", "", "is no tag"),
        (",".join(f"t{n}" for n in range(21)), "", "at most 20 tags"),
        ("x" * 41, "", "is no tag"),
        ("", "n" * 20_001, "at most 20000 characters"),
        ("", "a\0b", "NUL character"),
    ],
)
def test_what_is_no_tag_or_too_long_is_refused_and_stays_in_the_form(
    manager: Client, runs: dict[str, Run], tags: str, notes: str, message: str
):
    run = runs["best"]
    page = manager.post(reverse("run-describe", args=[run.pk]), {"tags": tags, "notes": notes})
    assert page.status_code == 422
    assert message in unescape(page.content.decode())
    run.refresh_from_db()
    assert (run.tags, run.notes) == ([], "")


def test_the_api_changes_what_is_sent_and_nothing_else(carol: User, runs: dict[str, Run]):
    run = runs["poor"]
    ask = Asker(carol)
    changed = ask("PATCH", f"/runs/{run.pk}/", {"notes": "Too short."})
    assert (changed.status_code, changed.json()["tags"], changed.json()["notes"]) == (
        200,
        ["old"],
        "Too short.",
    )
    assert ask("PATCH", f"/runs/{run.pk}/", {"tags": ["<"]}).status_code == 422
    stale = ask("PATCH", f"/runs/{run.pk}/", {"tags": []}, headers={"If-Match": '"old"'})
    assert stale.status_code == 412


# ── Beside each other ─────────────────────────────────────────────────────────────────


def compared(client: Client, *ids: object, **more: str) -> str:
    page = client.get(reverse("runs-compare", args=["tea"]), {"run": list(map(str, ids)), **more})
    assert page.status_code == 200
    return unescape(page.content.decode())


def rows_of(page: str, section: str) -> dict[str, list[str]]:
    table = page.partition(f'<h2 id="{section}">')[2].partition("</table>")[0]
    rows = re.findall(r'<tr[^>]*>\s*<th scope="row">(.*?)</th>(.*?)</tr>', table, re.S)
    return {
        name: [
            re.sub(r"<[^>]+>", " ", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", cells, re.S)
        ]
        for name, cells in rows
    }


def test_what_differs_in_the_configurations_stands_side_by_side(manager: Client, runs: dict[str, Run]):
    page = compared(manager, runs["fair"].pk, runs["best"].pk)
    assert rows_of(page, "configuration") == {"Learning rate": ["0.0001", "0.0002"], "Seed": ["1", "9"]}
    everything = compared(manager, runs["fair"].pk, runs["best"].pk, all="1")
    assert rows_of(everything, "configuration") == {
        "Adapter rank": ["16", "16"],
        "Batch size": ["8", "8"],
        "Learning rate": ["0.0001", "0.0002"],
        "Seed": ["1", "9"],
        "method": ["reward", "reward"],
    }


def test_metrics_stand_side_by_side_and_the_best_is_marked(manager: Client, runs: dict[str, Run]):
    metrics = rows_of(compared(manager, runs["best"].pk, runs["poor"].pk), "metrics")
    assert re.split(r"\s+", metrics["Held-out accuracy"][0]) == ["0.9", "best"]
    assert metrics["Held-out accuracy"][1] == "0.1"
    # One run alone has it, so nothing is compared.
    assert metrics["Held-out log loss"] == ["0.5", "—"]


def test_curves_of_all_compared_runs_are_drawn_together(manager: Client, project: Project):
    chosen = [make_run(project, f"run-{n}") for n in range(6)]
    page = compared(manager, *(run.pk for run in chosen))
    assert [f"curve__line--{n}" in page for n in range(7)] == [True] * 6 + [False]
    address = page.partition('data-curves="')[2].partition('"')[0]
    drawn = manager.get(address).json()["runs"]
    assert [curve["run"] for curve in drawn] == [run.name for run in chosen]


def test_at_most_six_runs_of_the_project_are_compared(manager: Client, project: Project, alice: User):
    elsewhere = factories.make_project(slug="coffee", annotators=[alice])
    foreign = make_run(elsewhere, "foreign")
    chosen = [make_run(project, f"run-{n}") for n in range(8)]
    page = compared(manager, foreign.pk, *(run.pk for run in chosen))
    assert "foreign" not in page
    assert "run-5</a>" in page
    assert "run-6" not in page


@pytest.mark.parametrize("ids", [(), ("1e3",), ("-1", "x"), ("9" * 40, "²"), ("0", "0")])
def test_fewer_than_two_runs_lead_back_to_the_table(manager: Client, ids: tuple[str, ...]):
    assert "Select two runs or more" in compared(manager, *ids)


def test_runs_with_one_configuration_say_so(manager: Client, project: Project):
    pair = [make_run(project, name) for name in ("one", "two")]
    page = compared(manager, *(run.pk for run in pair))
    assert "These runs have the same configuration." in page


# ── Run page ──────────────────────────────────────────────────────────────────────────


def test_headline_figures_come_first_with_their_intervals(manager: Client, runs: dict[str, Run]):
    run = runs["best"]
    run.summary |= {"held_out_accuracy_low": 0.85, "held_out_accuracy_high": 0.94, "gradient_norm": 7.0}
    # On training data: each figure has one name on the page, that of held-out data.
    run.summary |= {"accuracy": 0.99, "loss": 0.1, "held_out_loss": 0.3}
    run.save()
    page = manager.get(run.get_absolute_url()).content.decode()
    strip = page.partition('class="headlines"')[2].partition("</dl>")[0]
    assert re.findall(r"<dt[^>]*>([^<]+)</dt>", strip) == ["Held-out accuracy", "Held-out log loss"]
    assert "0.85–0.94" in strip
    assert page.index('class="headlines"') < page.index('id="curves-title"')


def test_the_log_is_searched_in_any_case(manager: Client, runs: dict[str, Run]):
    run = runs["best"]
    run.path.mkdir(parents=True)
    lines = [f"Step {n} of 300" for n in range(1, 301)] + ["WARNING: slow <b>disk</b>"]
    (run.path / "log.txt").write_text("\n".join(lines))
    part = manager.get(reverse("run-log", args=[run.pk]), {"log": "warning"}).content.decode()
    assert "1 line contains" in part
    ended = manager.get(reverse("run-log", args=[run.pk])).content.decode()
    assert "Step 299 of 300\nStep 300 of 300\n" in ended
    assert "slow &lt;b&gt;disk" in part
    assert "Step 300" not in part
    many = manager.get(reverse("run-log", args=[run.pk]), {"log": "step"}).content.decode()
    assert "300 lines contain" in many
    assert ("Step 300 of 300" in many, "Step 100 of 300" in many) == (True, False)
    # Without a script the page itself searches.
    assert "1 line contains" in manager.get(run.get_absolute_url(), {"log": "WARNING"}).content.decode()
    assert (
        "0 lines contain"
        in manager.get(reverse("run-log", args=[run.pk]), {"log": "a" * 999}).content.decode()
    )


def test_the_beginning_of_a_very_long_log_is_not_searched(
    manager: Client, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("training.selectors.runs._LOG_BYTES_SEARCHED", 20)
    run = runs["best"]
    run.path.mkdir(parents=True)
    (run.path / "log.txt").write_text("needle at first\n" + "hay\n" * 3 + "a needle last\n")
    part = manager.get(reverse("run-log", args=[run.pk]), {"log": "needle"}).content.decode()
    assert "a needle last" in part
    assert "needle at first" not in part
    assert "was not searched" in part


def test_the_api_searches_the_log_as_the_page_does(carol: User, runs: dict[str, Run]):
    run = runs["best"]
    run.path.mkdir(parents=True)
    (run.path / "log.txt").write_text("one\nTWO\nthree\n")
    ask = Asker(carol)
    assert ask.get(f"/runs/{run.pk}/log/?text=two").json() == {"lines": ["TWO"]}
    assert ask.get(f"/runs/{run.pk}/log/").json() == {"lines": ["one", "TWO", "three"]}


def test_training_losses_of_different_methods_are_never_compared(project: Project):
    reward = make_run(project, "reward", summary={"loss": 0.7, "held_out_accuracy": 0.5})
    other = make_run(project, "other", summary={"loss": 0.6, "held_out_accuracy": 0.6})
    policy = make_run(project, "policy", method="preference", summary={"loss": 0.1, "held_out_accuracy": 0.4})

    def best_in(*compared: Run) -> dict[str, float | None]:
        return {str(line.label): line.best for line in comparison_of(compared, all_settings=False).metrics}

    assert best_in(reward, other) == {"Held-out accuracy": 0.6, "Loss": 0.6}
    assert best_in(reward, policy) == {"Held-out accuracy": 0.5, "Loss": None}
    offered = offered_columns(Run.objects.all())
    columns = [offered["loss"], offered["held_out_accuracy"]]
    assert best_values(Run.objects.all(), columns) == {"held_out_accuracy": 0.6}
    assert best_values(Run.objects.filter(method="reward"), columns)["loss"] == 0.6
