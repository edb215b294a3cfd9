"""Every command of the guide's table, or what it calls, is run by a test: here, or by the one named here."""

import ast
import subprocess
import sys
from io import StringIO

import pytest
from django.core.management import call_command

from annotation.models import User
from tests.architecture.test_house import ROOT, rows_of

# The command → the test that runs it.
RUN_BY = {
    "make run": ("tests/webapp/test_up.py", "test_a_first_start_shows_passwords_that_work"),
    "make guide": ("tests/webapp/test_guide.py", "test_the_static_site_is_built_without_a_warning"),
    "make reverse": ("tests/rlhf/policy_gradient/test_reverse_runs.py", "test_one_command_trains_both_runs"),
    "up": ("tests/webapp/test_up.py", "test_a_first_start_shows_passwords_that_work"),
    "import_prompts": ("tests/annotation/exchange/test_import_prompts.py", "test_the_command_imports_a_file"),
    "import_judgments": (
        "tests/annotation/exchange/test_import_judgments.py",
        "test_a_whole_file_comes_in_exact",
    ),
    "export_judgments": ("tests/annotation/exchange/test_export_judgments.py", "test_a_file_appears_whole"),
    "agreement": (
        "tests/annotation/statistics/test_statistics_pages.py",
        "test_the_command_gives_json_of_one_round",
    ),
    "evaluation_report": (
        "tests/training/evaluation/test_evaluation_report.py",
        "test_the_command_writes_the_same_file",
    ),
    "verify_checkpoints": (
        "tests/training/registry/test_registry.py",
        "test_the_command_names_damaged_checkpoints",
    ),
    "measure_yardstick": (
        "tests/training/evaluation/test_yardsticks.py",
        "test_figures_are_kept_and_shown_beside_those_of_others",
    ),
    "training.rlhf.yardsticks": (
        "tests/rlhf/yardsticks/test_yardsticks.py",
        "test_the_command_measures_a_reward_model_and_writes_the_result",
    ),
    "retention": ("tests/training/registry/test_registry.py", "test_the_newest_that_nothing_needs"),
    "backup": ("tests/webapp/test_backup.py", "test_sqlite_comes_back_as_it_was"),
    "restore": ("tests/webapp/test_backup.py", "test_sqlite_comes_back_as_it_was"),
    "share_files": ("tests/training/runs/test_shared_files.py", "test_an_installation_that_gets_a_store"),
    "count_votes": (
        "tests/training/comparing/test_leaderboard_counts.py",
        "test_votes_counted_in_portions_are_those_of_a_count_from_the_beginning",
    ),
    "doctor": ("tests/operations/test_status.py", "test_the_doctor_says_the_same"),
    "demo": ("tests/webapp/test_demo.py", "test_the_demo_has_a_promoted_an_undecided_and_a_failed_round"),
    "check": ("tests/webapp/test_headers.py", "test_a_production_set_up_passes_every_check"),
    "training.rlhf": ("tests/loop/test_once_around.py", "test_a_tiny_model_goes_once_around_the_loop"),
    "training.rlhf.policy_gradient.sweep": (
        "tests/rlhf/policy_gradient/test_sweep.py",
        "test_the_command_reads_weights_and_tells_refusals",
    ),
    "training.rlhf.export": ("tests/rlhf/model/test_plain_loading.py", "test_an_export_with_merged_weights"),
    "training.rlhf.examples.cart_pole": (
        "tests/rlhf/policy_gradient/test_examples.py",
        "test_both_methods_solve_cart_pole",
    ),
    "training.serving": ("tests/serving/test_life.py", "test_it_does_not_start_without_a_key"),
    "training.serving.router": (
        "tests/serving/router/test_router.py",
        "test_the_router_says_what_is_wrong_with_its_command_line",
    ),
    "training.rlhf.model.inspection": (
        "tests/training/registry/test_base_models.py",
        "test_a_qwen2_is_inspected_like_a_llama",
    ),
    "training.files.hub": (
        "tests/training/registry/test_remote_base_models.py",
        "test_a_model_of_the_hub_is_pinned_to_its_commit_and_downloaded_once_its_licence_is_accepted",
    ),
}
# Those below, and what would run the tests, or all checks, within a test.
HERE = {"changepassword", "make help"}
BY_CI = {"make test", "make lint", "make install"}
"""`.ci/run` is made of these."""
LAID_OUT = {
    "make format": "ruff format",
    "make bench": "tests.benchmarks.first_comparison",
    "make screenshots": ".ci/screenshots.py",
    "make test-fast": ".ci/test.py --fast",
    "make test-faults": ".ci/test.py --faults",
    "make test-processes": "test_processes.py",
    "make test-ray": ".ci/environments.py ray",
    "make test-vllm": ".ci/environments.py vllm",
    "make test-quantised": ".ci/environments.py quantised",
    "make lock": ".ci/lock.py",
    "make wheel": "-m build --wheel",
    "make test-wheel": "tests/webapp/test_wheel.py",
    "make sbom": ".ci/bill.py --write",
}
"""Targets that write files or measure for minutes: make is asked which commands it would run."""


def command_of(row: str) -> str:
    """The word by which a row of the table is known."""
    words = row.split()
    return row if words[0] == "make" else words[2]


def test_each_command_of_the_guide_has_a_test_that_runs_it():
    commands = {command_of(row) for row in rows_of("commands")}
    assert commands == {*RUN_BY, *HERE, *BY_CI, *LAID_OUT}


@pytest.mark.parametrize(("path", "name"), sorted(set(RUN_BY.values())))
def test_the_test_that_is_named_is_there(path: str, name: str):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [test_name for test_name in names if test_name.startswith(name)]


@pytest.mark.parametrize("command", sorted(BY_CI - {"make install"}))
def test_ci_runs_it(command: str):
    target = command.removeprefix("make ")
    assert f"make --no-print-directory {target}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize(("command", "does"), sorted(LAID_OUT.items()))
def test_make_would_do_it(command: str, does: str):
    completed = subprocess.run(
        [*command.split(), "--dry-run", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert does in completed.stdout


def test_make_help_lists_every_target_of_the_table():
    output = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = [row for row in rows_of("commands") if row.startswith("make")]
    assert [row for row in targets if f"  {row} " not in output] == []


def test_a_password_is_set_anew(alice: User, monkeypatch: pytest.MonkeyPatch):
    typed = iter(["a kettle of four words", "a kettle of four words"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(typed))
    call_command("changepassword", "alice", stdout=StringIO())
    alice.refresh_from_db()
    assert alice.check_password("a kettle of four words")
