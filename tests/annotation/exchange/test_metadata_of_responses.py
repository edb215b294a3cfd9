"""Columns of a file about one response: kept with it, shown to managers, found in the table, exported."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.exchange.file_exports import Export
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import WRITERS
from annotation.models import Comparison, Completion, Project, User
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.table import View
from tests import factories
from tests.annotation.data.test_conditions import keys as found
from tests.annotation.exchange.test_columns import written

pytestmark = pytest.mark.django_db

ROW: dict[str, Any] = {
    **{
        "prompt": "How long?",
        "response_a": "Two minutes.",
        "response_b": "Ten hours.",
        "winner": "response_a",
    },
    **{"response_a_length": 12, "response_b_length": 10, "judge_response_b": "strict", "domain": "medical"},
}


def metadata_in(project: Project) -> dict[str, Any]:
    return dict(Completion.objects.filter(prompt__project=project).values_list("text", "metadata"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_column_named_after_a_response_is_kept_with_it(project: Project, tmp_path: Path, name: str) -> None:
    import_file(project=project, path=written(tmp_path, [ROW], name))
    first, second = (12, 10) if name == "rows.jsonl" else ("12", "10")
    assert metadata_in(project) == {
        "Two minutes.": {"length": first},
        "Ten hours.": {"length": second, "judge": "strict"},
    }
    assert Comparison.objects.get().metadata == {"domain": "medical"}


def test_what_a_response_has_stays_and_what_it_lacks_is_added(project: Project, tmp_path: Path) -> None:
    import_file(project=project, path=written(tmp_path, [ROW]))
    later = {**ROW, "winner": "response_b", "response_a_length": 99, "response_a_tone": "dry"}
    import_file(project=project, path=written(tmp_path, [later], "later.jsonl"))
    assert metadata_in(project)["Two minutes."] == {"length": 12, "tone": "dry"}


def test_a_list_of_responses_has_metadata_with_each(project: Project, tmp_path: Path) -> None:
    line = {
        "prompt": "How long?",
        "completions": [{"text": "Two minutes.", "metadata": {"length": 12}}, {"text": "Ten hours."}],
    }
    import_file(project=project, path=written(tmp_path, [line], "prompts.jsonl"))
    assert metadata_in(project) == {"Two minutes.": {"length": 12}, "Ten hours.": None}


@pytest.mark.parametrize("format_name", ["jsonl", "csv"])
def test_metadata_of_responses_goes_out_and_comes_in(
    project: Project, carol: User, tmp_path: Path, format_name: str
) -> None:
    import_file(project=project, path=written(tmp_path, [ROW]))
    elsewhere = factories.make_project(slug="elsewhere", managers=[carol])
    path = tmp_path / f"out.{format_name}"
    path.write_text("".join(Export(project=project, writer=WRITERS[format_name]).text_stream()))
    import_file(project=elsewhere, path=path, format_name=format_name)
    assert metadata_in(elsewhere) == metadata_in(project)


def test_files_of_projects_without_it_have_no_column_for_it(project: Project, tmp_path: Path) -> None:
    plain = {name: value for name, value in ROW.items() if name not in metadata_columns()}
    import_file(project=project, path=written(tmp_path, [plain]))
    (line,) = Export(project=project, writer=WRITERS["jsonl"]).text_stream()
    assert all("metadata" not in completion for completion in json.loads(line)["completions"])
    table = "".join(Export(project=project, writer=WRITERS["csv"]).text_stream())
    assert "response_metadata" not in next(csv.reader(io.StringIO(table)))


def metadata_columns() -> set[str]:
    return {"response_a_length", "response_b_length", "judge_response_b"}


def test_managers_see_it_and_annotators_do_not(
    project: Project, alice: User, carol: User, client_of: Any, tmp_path: Path
) -> None:
    row = {**ROW, "response_a_note": "secretly terse"}
    del row["winner"], row["judge_response_b"]
    import_file(project=project, path=written(tmp_path, [row]))
    comparison = Comparison.objects.get()
    manager: Client = client_of(carol)
    page = manager.get(reverse("statistics-item", args=["tea", comparison.pk])).content.decode()
    assert "secretly terse" in page
    annotator: Client = client_of(alice)
    labelling = annotator.get(reverse("label", args=["tea"])).content.decode()
    assert "Two minutes." in labelling
    assert "secretly terse" not in labelling


def test_the_table_of_responses_has_it_as_a_column_and_a_condition(project: Project, tmp_path: Path) -> None:
    import_file(project=project, path=written(tmp_path, [ROW]))
    keys = dict(Completion.objects.values_list("text", "pk"))
    longer = [("metadata.length", "above", "10")]
    assert found(project, "responses", longer) == [keys["Two minutes."]]
    assert found(project, "responses", order="metadata.length") == [keys["Ten hours."], keys["Two minutes."]]
    names = {column.name for column in View(TABLES["responses"], project).all_columns}
    assert {"metadata.length", "metadata.judge", "metadata.domain"} <= names
    assert "metadata.length" not in {
        column.name for column in View(TABLES["comparisons"], project).all_columns
    }
