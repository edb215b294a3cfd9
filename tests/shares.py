"""A pytest plugin: which tests run on which database where both are there.

Locks, commits, constraints, triggers, SQL of our own, search, queries into JSON and jobs run on both, for
there the databases differ. The API, and what goes through a browser or takes long, run on one of them, the
stricter and more concurrent PostgreSQL. What asks for pages runs on SQLite: it asks what is shown and who may
come in. So do services that only read and write rows. That PostgreSQL understands the queries of every page
and stores what the API writes is shown by one walk over all addresses there, in every role, and by the API's
tests. While one works on the code, `make test-fast` runs what asks for no page.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

NOT_READ_ON_POSTGRESQL = (
    "tests/annotation/acquisition/",
    "tests/annotation/agreement/",
    "tests/annotation/comparison/",
    "tests/annotation/conversations/",
    "tests/annotation/exchange/formats/",
    "tests/annotation/labelling/test_",
    "tests/annotation/record/",
    "tests/annotation/statistics/test_",
    "tests/annotation/suggestions/test_",
    "tests/annotation/test_calibration_blindness.py",
    "tests/annotation/traces/",
    "tests/architecture/test_house.py",
    "tests/architecture/test_languages.py",
    "tests/benchmarks/test_gpu.py",
    "tests/faults/test_damaged_state.py",
    "tests/rlhf/",
    "tests/serving/",
    "tests/store/",
    "tests/training/contract/",
    "tests/training/conversations/",
    "tests/training/engine/test_v1_client.py",
    "tests/training/evaluation/test_decision",
    "tests/training/judges/test_",
    "tests/training/launchers/test_outside_trainer.py",
    "tests/training/recipe/",
    "tests/training/registry/test_",
    "tests/training/runs/test_processes.py",
    "tests/training/snapshots/",
    "tests/training/suggestions/",
    "tests/webapp/test_guide",
)
"""Files of which no test runs on PostgreSQL: they are not even read there, nor torch with them."""


ON_SQLITE_ALONE = (
    "tests/architecture/",
    # Counts the steps of SQLite's machine.
    "tests/annotation/assignments/test_queue.py::test_the_walk_is_as_short",
    "tests/annotation/acquisition/",
    "tests/annotation/agreement/",
    "tests/annotation/test_calibration_blindness.py",
    "tests/annotation/comparison/",
    "tests/annotation/data/test_prompt_pages.py",
    "tests/annotation/data/test_word_index.py",
    "tests/annotation/labelling/",
    "tests/annotation/projects/test_preview_and_archive.py",
    "tests/annotation/projects/test_settings_pages.py",
    "tests/annotation/quality/test_manager_queues.py",
    "tests/annotation/statistics/test_annotators.py",
    "tests/annotation/statistics/test_statistics_pages.py",
    "tests/annotation/test_admin.py",
    "tests/annotation/text/",
    "tests/operations/test_status.py",
    "tests/training/evaluation/test_evaluation_report.py",
    "tests/training/judges/test_judge_pages.py",
    "tests/training/ratings/",
    "tests/training/recipe/",
    "tests/training/registry/test_base_models.py",
    "tests/training/registry/test_checkpoint_page.py",
    "tests/training/registry/test_remote_base_models.py",
    "tests/training/runs/test_run_page",
    "tests/training/snapshots/test_comparison_uses.py",
    "tests/training/test_admin.py",
    "tests/training/test_dashboard.py",
    "tests/training/test_pages.py",
    "tests/webapp/test_accounts.py",
    "tests/webapp/test_away.py",
    "tests/webapp/test_demo",
    "tests/webapp/test_disk_space.py",
    "tests/webapp/test_first_project.py",
    "tests/webapp/test_guide_blocks.py",
    "tests/webapp/test_headers.py",
    "tests/webapp/test_navigation.py",
    "tests/webapp/test_sign_in.py",
    "tests/webapp/test_start.py",
    "tests/webapp/test_upgrade.py",
    "tests/webapp/test_write_lock.py",
)
"""Pages, forms and the admin, rendered once; files of base models; a database of 0.1, which is one of SQLite;
and the write lock of SQLite."""

SERVICES_ON_SQLITE_ALONE = (
    "tests/annotation/assignments/test_qualification.py",
    "tests/annotation/assignments/test_retests.py",
    "tests/annotation/assignments/test_splits.py",
    "tests/annotation/conversations/",
    "tests/annotation/exchange/formats/",
    "tests/annotation/exchange/test_bombs.py",
    "tests/annotation/exchange/test_columns.py",
    "tests/annotation/exchange/test_conversations.py",
    "tests/annotation/exchange/test_export_",
    "tests/annotation/exchange/test_rewrites.py",
    "tests/annotation/inbox/test_comments.py",
    "tests/annotation/judgments/test_answers_refused.py",
    "tests/annotation/judgments/test_doubts.py",
    "tests/annotation/judgments/test_partial_rankings.py",
    "tests/annotation/judgments/test_question_checks.py",
    "tests/annotation/judgments/test_rewrites.py",
    "tests/annotation/judgments/test_withholding.py",
    "tests/annotation/people/",
    "tests/annotation/projects/",
    "tests/annotation/quality/test_disputed_gold.py",
    "tests/annotation/quality/test_gold.py",
    "tests/annotation/quality/test_review",
    "tests/annotation/statistics/",
    "tests/annotation/suggestions/",
    "tests/annotation/traces/",
    "tests/annotation/webhooks/test_webhooks.py",
    "tests/training/comparing/test_leaderboard_counts.py",
    "tests/training/conversations/",
    "tests/training/engine/",
    "tests/training/evaluation/",
    "tests/training/feedback/",
    "tests/training/judges/",
    "tests/training/launchers/",
    "tests/training/live/test_live_learning.py",
    "tests/training/registry/",
    "tests/training/rounds/test_base_choice.py",
    "tests/training/rounds/test_dry_run.py",
    "tests/training/rounds/test_guarding.py",
    "tests/training/rounds/test_hanging_templates.py",
    "tests/training/rounds/test_memory_gate.py",
    "tests/training/rounds/test_people_and_model.py",
    "tests/training/rounds/test_reward_base.py",
    "tests/training/rounds/test_round_help.py",
    "tests/training/rounds/test_rounds.py",
    "tests/training/snapshots/",
    "tests/training/suggestions/",
)
"""Rules, files, figures, jobs of clusters over plain rows; what commits or takes long runs on PostgreSQL."""

ON_POSTGRESQL_ALONE = (
    "tests/api/",
    "tests/architecture/test_addresses.py::test_each_role_gets_what_the_table_says[",
    "tests/training/live/test_live_guard.py",
    "tests/training/rounds/test_promotion.py",
    "tests/training/rounds/test_rounds_",
)
"""The API, whose services run on both; and what is long on either. On SQLite run test_rounds.py,
test_live_learning.py, tests/browser/test_journey.py, and every page in German as all who may open it; on
PostgreSQL rounds go around in tests/training/rounds/test_rounds_*."""

ON_BOTH = (
    # A trigger, unique rows, locks.
    "tests/annotation/people/test_audit.py",
    "tests/annotation/people/test_tokens.py",
    "tests/annotation/projects/test_rubrics.py",
    "tests/training/evaluation/test_drift.py",
    "tests/training/feedback/test_recording.py",
    "tests/training/launchers/test_leases.py",
)
"""Although they ask for pages, or the folder is one of SQLite's."""


BOTH = ("sqlite", "postgresql")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        choices=(*BOTH, "fast"),
        help="Run what this database is asked where both are, or what asks for no page; without it, all.",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--share") != "postgresql":
        return None
    name = collection_path.relative_to(ROOT).as_posix() if ROOT in collection_path.parents else ""
    return True if f"{name}/".startswith(NOT_READ_ON_POSTGRESQL) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--share")
    if share is None:
        return
    if misplaced := [
        item.nodeid
        for item in items
        if item.nodeid.startswith(NOT_READ_ON_POSTGRESQL) and belongs_to("postgresql", item)
    ]:
        raise pytest.UsageError(f"NOT_READ_ON_POSTGRESQL leaves out {misplaced[0]}, which runs there.")
    nowhere = [item.nodeid for item in items if not any(belongs_to(each, item) for each in BOTH)]
    if nowhere:
        raise pytest.UsageError(f"No database runs {nowhere[0]}.")
    left_out = [item for item in items if not belongs_to(share, item)]
    items[:] = [item for item in items if belongs_to(share, item)]
    config.hook.pytest_deselected(items=left_out)


def belongs_to(share: str, item: pytest.Item) -> bool:
    """Return whether this share contains a test; every test is in at least one share."""
    if share == "fast":
        return not asks_for_pages(item)
    if not reaches_database(item):
        return share == "sqlite"
    if item.get_closest_marker("postgres"):
        return share == "postgresql"
    if item.nodeid.startswith(ON_POSTGRESQL_ALONE):
        return share == "postgresql"
    if item.nodeid.startswith(ON_BOTH) and not item.get_closest_marker("slow"):
        return True
    if item.nodeid.startswith(ON_SQLITE_ALONE):
        return share == "sqlite"
    if item.nodeid.startswith("tests/browser/") or item.get_closest_marker("slow"):
        return share == "postgresql"
    if share == "sqlite" or commits(item):
        return True
    return not asks_for_pages(item) and not item.nodeid.startswith(SERVICES_ON_SQLITE_ALONE)


def asks_for_pages(item: pytest.Item) -> bool:
    """Return whether a test takes a client of the site."""
    return not {"client", "client_of", "everybody"}.isdisjoint(getattr(item, "fixturenames", ()))


def commits(item: pytest.Item) -> bool:
    """Return whether a test commits, as tests of locks and of several processes do."""
    marker = item.get_closest_marker("django_db")
    return bool(marker and marker.kwargs.get("transaction")) or "transactional_db" in getattr(
        item, "fixturenames", ()
    )


def reaches_database(item: pytest.Item) -> bool:
    """Return whether a test uses the database that it is run on, or needs PostgreSQL."""
    fixtures = {"db", "transactional_db", "live_server"}
    marked = item.get_closest_marker("django_db") or item.get_closest_marker("postgres")
    return bool(marked) or not fixtures.isdisjoint(getattr(item, "fixturenames", ()))
