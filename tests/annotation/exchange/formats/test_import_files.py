"""A file comes in whole or, where that is asked for, without its bad rows; twice adds nothing."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from annotation.choices import ImportState, Verdict
from annotation.errors import ImportErrors
from annotation.exchange import file_imports, item_imports
from annotation.exchange.file_imports import import_file
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    FileImport,
    Judgment,
    Project,
    Prompt,
    RankedCompletion,
    User,
)
from annotation.selectors.access import judgments_current
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Tea {number}?", "chosen": "Yes.", "rejected": "No.", **more}


def written(folder: Path, *rows: Any, name: str = "pairs.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_pairs_become_comparisons_that_nobody_is_asked_again(project: Project, alice: User, tmp_path: Path):
    record = import_file(project=project, path=written(tmp_path, pair(1), pair(2)))
    assert (record.state, record.rows_done, record.rows_total) == (ImportState.FINISHED, 2, 2)
    assert record.counts == {
        "prompts": 2,
        "prompts_already_there": 0,
        "comparisons": 2,
        "waiting": 0,
        "judgments": 2,
        "already_there": 0,
        "rankings_with_broken_ties": 0,
        "metadata_differs": 0,
        "left_out": 0,
    }
    for judgment in Judgment.objects.all():
        ranks = {r.completion.text: r.rank for r in judgment.ranks.select_related("completion")}
        assert (judgment.verdict, ranks) == (Verdict.RANKED, {"Yes.": 1, "No.": 2})
        assert not judgment.annotator.is_active
        assert not judgment.annotator.has_usable_password()
    assert assign_next(project=project, annotator=alice) is None


def test_answers_without_a_judgment_wait_for_people(project: Project, alice: User, tmp_path: Path):
    row = {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No."}
    record = import_file(project=project, path=written(tmp_path, row))
    assert record.counts["waiting"] == 1
    assert assign_next(project=project, annotator=alice).comparison.prompt.last_question == "Tea?"


def test_the_same_file_twice_and_the_same_rows_in_another_order_add_nothing(project: Project, tmp_path: Path):
    rows = [pair(number) for number in range(5)]
    import_file(project=project, path=written(tmp_path, *rows))
    again = import_file(project=project, path=written(tmp_path, *rows))
    turned = import_file(project=project, path=written(tmp_path, *reversed(rows), name="turned.jsonl"))
    assert (again.counts["judgments"], again.counts["already_there"]) == (0, 5)
    assert (turned.counts["judgments"], turned.counts["already_there"]) == (0, 5)
    assert (Judgment.objects.count(), Prompt.objects.count(), Completion.objects.count()) == (5, 5, 10)


def test_two_people_who_say_the_same_are_two_and_who_says_otherwise_is_a_third(
    project: Project, tmp_path: Path
):
    turned = {"prompt": "Tea 1?", "chosen": "No.", "rejected": "Yes."}
    path = written(tmp_path, pair(1), pair(1), turned)
    record = import_file(project=project, path=path)
    assert record.counts["judgments"] == 3
    assert Judgment.objects.values("annotator").distinct().count() == 3
    assert Comparison.objects.get().overlap == 3
    assert sorted(Assignment.objects.values_list("slot", flat=True)) == [0, 1, 2]
    assert import_file(project=project, path=path).counts["already_there"] == 3


def test_a_named_person_never_overwrites_what_they_said(project: Project, tmp_path: Path):
    rows = [
        pair(1, annotator="ann"),
        {"prompt": "Tea 1?", "chosen": "No.", "rejected": "Yes.", "annotator": "ann"},
    ]
    record = import_file(project=project, path=written(tmp_path, *rows))
    assert (record.counts["judgments"], record.counts["left_out"]) == (1, 1)
    assert record.errors == [
        "row 2: ann judged the same answers differently before. Judgments are never overwritten."
    ]


def test_one_bad_row_refuses_the_file_and_leaves_nothing(project: Project, tmp_path: Path):
    path = written(tmp_path, pair(1), pair(2, chosen=""), pair(3, rejected=7))
    with refused("nothing_imported", ImportErrors) as refusal:
        import_file(project=project, path=path)
    assert refusal.value.errors == [
        "row 2, field chosen: The text is empty. Write a text, or take the field away.",
        "row 3, field rejected: A text is expected, not 7.",
    ]
    assert not Prompt.objects.exists()
    assert not User.objects.filter(username__startswith="imported").exists()
    assert FileImport.objects.get().state == ImportState.FAILED


def test_bad_rows_are_left_out_and_listed_where_that_is_asked_for(project: Project, tmp_path: Path):
    path = written(tmp_path, pair(1), pair(2, chosen=""), pair(3))
    record = import_file(project=project, path=path, skip_bad=True)
    assert record.counts["judgments"] == 2
    assert record.errors_total == 1
    assert record.errors == ["row 2, field chosen: The text is empty. Write a text, or take the field away."]


def test_an_import_that_was_cut_off_goes_on_where_it_stopped(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_imports, "BATCH", 2)
    rows = [pair(1), pair(1), pair(2), pair(3), pair(1), pair(4)]
    path = written(tmp_path, *rows)
    write = item_imports.ItemImport.write
    batches: list[list[int]] = []

    def cut_after_two(self, items):
        if len(batches) == 2:
            raise ConnectionError("cut off")
        batches.append([number for number, _ in items])
        return write(self, items)

    monkeypatch.setattr(item_imports.ItemImport, "write", cut_after_two)
    with pytest.raises(ConnectionError):
        import_file(project=project, path=path)
    assert (FileImport.objects.get().rows_done, Judgment.objects.count()) == (4, 4)
    batches.clear()
    record = import_file(project=project, path=path)
    assert batches == [[5, 6]]
    assert record.counts["judgments"] == Judgment.objects.count() == 6
    assert record.counts["already_there"] == 0


def test_a_judgment_under_somebodys_pseudonym_is_not_taken_for_theirs(
    project: Project, alice: User, tmp_path: Path
):
    """Import nothing from a file as Alice's own judgment; the one she did submit is there already."""
    comparison = factories.make_comparison(project, ["Yes.", "No."], question="Tea?")
    factories.make_judgment(comparison, alice)
    exported = StringIO()
    call_command("export_judgments", "--format", "jsonl", stdout=exported, stderr=StringIO())
    line = json.loads(exported.getvalue())
    same = import_file(project=project, path=written(tmp_path, line))
    assert (same.counts["judgments"], same.counts["already_there"]) == (0, 1)
    line["messages"] = [{"role": "user", "content": "Coffee?"}]
    import_file(project=project, path=written(tmp_path, line, name="forged.jsonl"))
    forged = Judgment.objects.latest("pk")
    assert forged.annotator != alice
    assert forged.annotator.pseudonym != alice.pseudonym


def test_the_order_in_which_answers_were_shown_favours_nobody_where_nobody_knows_it(
    project: Project, tmp_path: Path
):
    import_file(project=project, path=written(tmp_path, *(pair(number) for number in range(200))))
    best = set(RankedCompletion.objects.filter(rank=1).values_list("completion_id", flat=True))
    first = sum(order[0] in best for order in Assignment.objects.values_list("display_order", flat=True))
    # 200 fair draws lie within 100 ± 4·√50 (four standard deviations).
    assert 72 <= first <= 128


def test_what_a_program_judged_stays_a_programs(project: Project, tmp_path: Path):
    row = {
        "instruction": "Tea?",
        "completions": [
            {"model": model, "response": model, "annotations": {"honesty": {"Rating": rating}}}
            for model, rating in (("a", "5"), ("b", "2"))
        ],
    }
    import_file(project=project, path=written(tmp_path, row))
    assert judgments_current(project).count() == 0
    assert judgments_current(project, machines=True).count() == 1


def test_a_category_that_means_something_else_here_refuses_the_file(project: Project, tmp_path: Path):
    row = {"prompt": "1?", "completions": ["a", "b"], "labels": [True, False]}
    factories.make_category(project, "wrong-step", scope="missing")
    with refused("category_differs", key="wrong-step", project="Tea"):
        import_file(project=project, path=written(tmp_path, row))
    assert not Prompt.objects.exists()


def test_the_command_tells_format_columns_and_what_was_left_out(project: Project, tmp_path: Path):
    path = tmp_path / "votes.csv"
    path.write_text(
        "asked,response_a,response_b,label\nTea?,Yes.,No.,A\nTea?,,No.,A\nCoffee?,Yes.,No.,bothbad\n",
        encoding="utf-8",
    )
    output = StringIO()
    arguments = ["import_judgments", str(path), "--project", project.slug, "--map", "prompt=asked"]
    call_command(*arguments, "--dry-run", stdout=output, stderr=StringIO())
    assert "asked: read as the prompt (3 rows)" in output.getvalue()
    assert "label: read as the preference (3 rows): 'a' (2) is response_a; 'bothbad' (1) is both_bad" in (
        output.getvalue()
    )
    assert not Prompt.objects.exists()
    with pytest.raises(CommandError, match="row 2, field response_a: The text is empty"):
        call_command(*arguments, stdout=output, stderr=StringIO())
    call_command(*arguments, "--skip-bad", stdout=output, stderr=StringIO())
    assert "2 judgments added to the project tea" in output.getvalue()
    verdicts = Judgment.objects.order_by("pk").values_list("verdict", flat=True)
    assert list(verdicts) == [Verdict.RANKED, Verdict.BOTH_BAD]


def test_transcripts_come_in_but_for_those_that_are_none(project: Project, data: Path):
    path = data / "hh_rlhf" / "harmless.jsonl.gz"
    record = import_file(project=project, path=path, skip_bad=True)
    assert record.format == "hh-rlhf"
    # Counted in the released file by other means: four answers are empty, one pair parts before its last
    # turn. In ours, one each.
    assert (record.counts["judgments"], record.errors_total) in ((1495, 5), (60, 2))


def test_a_batch_asks_the_database_as_often_however_long_it_is(
    project: Project, tmp_path: Path, django_assert_max_num_queries
):
    few, many = (written(tmp_path, *(pair(n) for n in range(size)), name=f"{size}") for size in (3, 300))
    with django_assert_max_num_queries(200) as first:
        import_file(project=project, path=few)
    # On SQLite a statement writes a hundred rows, so a few more are due to that.
    more = 40 if connection.vendor == "sqlite" else 0
    with django_assert_max_num_queries(len(first) + more):
        import_file(project=project, path=many)
