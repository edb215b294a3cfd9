"""Prompts come in from JSONL: all of a file or nothing, with every fault named."""

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from annotation.errors import ImportErrors
from annotation.exchange.prompts import LISTED_ERRORS, ImportReport, import_prompts
from annotation.models import Project, Prompt
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def bring_in(project: Project, *rows: Any) -> ImportReport:
    """Import rows: texts as they are, everything else as JSON."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return import_prompts(project=project, lines=(line + "\n" for line in lines), name="prompts.jsonl")


def faults(project: Project, *rows: Any) -> list[str]:
    with refused("nothing_imported", ImportErrors) as refusal:
        bring_in(project, *rows)
    assert Prompt.objects.count() == 0
    errors: list[str] = refusal.value.errors
    return errors


# ── What comes in ─────────────────────────────────────────────────────────────────────


def test_a_text_becomes_one_user_message(project: Project):
    assert bring_in(project, {"prompt": " What is tea? "}) == ImportReport(added=1, already_there=0)
    prompt = Prompt.objects.get()
    assert prompt.messages == [{"role": "user", "content": " What is tea? "}]
    assert (prompt.context, prompt.references, prompt.tags) == ([], [], [])
    assert len(prompt.content_hash) == 64
    assert prompt.split in ("train", "held-out")


def test_a_chat_comes_in_as_it_is_with_all_optional_fields(project: Project):
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tea?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why?"},
    ]
    bring_in(project, {"prompt": chat, "reference": ["Because.", "Why not?"], "tags": ["short", "tea"]})
    prompt = Prompt.objects.get()
    assert prompt.messages == chat
    assert prompt.references == ["Because.", "Why not?"]
    assert prompt.tags == ["short", "tea"]
    assert prompt.last_question == "Why?"


@pytest.mark.parametrize(
    ("context", "stored"),
    [
        (None, []),
        ([], []),
        ("Tea is hot.", [("", ["Tea is hot."])]),
        (["Tea is hot.", "So is coffee."], [("", ["Tea is hot."]), ("", ["So is coffee."])]),
        ([{"title": "Tea", "text": "It is hot. It is wet."}], [("Tea", ["It is hot. It is wet."])]),
        ([{"title": "Tea", "sentences": ["Hot.", "Wet."]}, "x"], [("Tea", ["Hot.", "Wet."]), ("", ["x"])]),
        ([{"sentences": ["Hot."]}], [("", ["Hot."])]),
    ],
)
def test_context_has_one_form_once_it_is_stored(project: Project, context: Any, stored: Any):
    bring_in(project, {"prompt": "Tea?", "context": context})
    assert Prompt.objects.get().context == [{"title": title, "sentences": texts} for title, texts in stored]


def test_a_single_reference_may_be_a_text(project: Project):
    bring_in(project, {"prompt": "Tea?", "reference": "Yes."})
    assert Prompt.objects.get().references == ["Yes."]


def test_byte_order_mark_crlf_blank_lines_and_a_missing_last_newline_do_no_harm(project: Project):
    lines = [
        '\ufeff{"prompt": "a"}\r\n',
        "\r\n",
        "   \n",
        '{"prompt": "b\\r\\n  c\\té"}\r\n',
        '{"prompt": "d"}',
    ]
    report = import_prompts(project=project, lines=lines, name="x")
    assert report.added == 3
    contents = [prompt.messages[0]["content"] for prompt in Prompt.objects.order_by("id")]
    assert contents == ["a", "b\r\n  c\té", "d"]


def test_importing_twice_adds_nothing_also_within_one_file(project: Project):
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "a", "tags": ["again"]}]
    assert bring_in(project, *rows) == ImportReport(added=2, already_there=1)
    assert bring_in(project, *rows) == ImportReport(added=0, already_there=3)
    assert Prompt.objects.get(messages__0__content="a").tags == ["again"]


def test_the_same_question_with_other_context_is_another_prompt(project: Project):
    assert bring_in(project, {"prompt": "a"}, {"prompt": "a", "context": "Tea is hot."}).added == 2


def test_another_project_gets_its_own(project: Project):
    other = factories.make_project(slug="coffee")
    assert bring_in(project, {"prompt": "a"}).added == 1
    assert bring_in(other, {"prompt": "a"}).added == 1


def test_an_empty_file_adds_nothing(project: Project):
    assert bring_in(project) == ImportReport(added=0, already_there=0)


def test_a_long_file_is_read_as_it_comes_in_few_queries(project: Project, django_assert_max_num_queries):
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(3250):
            read += 1
            if number == 2500:  # a batch of 2,000 is in the database by now
                assert Prompt.objects.count() == 2000
            yield f'{{"prompt": "question {number % 3200}"}}\n'

    # Lock, savepoints; for each of two batches two looks and its ids; the look above; a write per hundred.
    with django_assert_max_num_queries(13 + 32):
        report = import_prompts(project=project, lines=lines(), name="x")
    assert report == ImportReport(added=3200, already_there=50)
    assert read == 3250


# ── What is refused ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("{not json", ""),
        ('"just a text"', ""),
        ("[1]", ""),
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": True}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["hi"]}, "prompt[0]"),
        ({"prompt": [{"role": "user"}]}, "prompt[0].content"),
        ({"prompt": [{"content": "x"}]}, "prompt[0].role"),
        ({"prompt": [{"role": "human", "content": "x"}]}, "prompt[0].role"),
        ({"prompt": [{"role": ["user"], "content": "x"}]}, "prompt[0].role"),
        ({"prompt": [{"role": "user", "content": 1}]}, "prompt[0].content"),
        (
            {"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "prompt[1].role",
        ),
        (
            {"prompt": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]},
            "prompt[1].role",
        ),
        ({"prompt": [{"role": "user", "content": "x", "name": "A"}]}, "prompt[0].name"),
        ({"promt": "x"}, "promt"),
        ({"prompt": "x", "references": "y"}, "references"),
        ({"prompt": "x", "weight": 1}, "weight"),
        ({"prompt": "x", "context": 3}, "context"),
        ({"prompt": "x", "context": [3]}, "context[0]"),
        ({"prompt": "x", "context": [{"title": "t"}]}, "context[0]"),
        ({"prompt": "x", "context": [{"text": "a", "sentences": ["a"]}]}, "context[0]"),
        ({"prompt": "x", "context": ["ok", {"sentences": ["a", 4]}]}, "context[1].sentences[1]"),
        ({"prompt": "x", "context": [{"sentences": []}]}, "context[0].sentences"),
        ({"prompt": "x", "context": [{"txt": "a"}]}, "context[0].txt"),
        ({"prompt": "x", "reference": 5}, "reference"),
        ({"prompt": "x", "reference": ["a", None]}, "reference[1]"),
        ({"prompt": "x", "tags": "easy"}, "tags"),
        ({"prompt": "x", "tags": [1]}, "tags[0]"),
        ('{"prompt": "a\\u0000b"}', "prompt"),
        ('{"prompt": "a\\ud83d"}', "prompt"),
        ('{"prompt": "a", "prompt": "b"}', "prompt"),
        ('{"prompt": "a", "tags": NaN}', ""),
        ("[" * 100_000, ""),
        ('{"prompt": "caf\udce9"}', ""),
    ],
)
def test_a_faulty_line_is_told_by_row_and_field(project: Project, row: Any, field: str):
    (fault,) = faults(project, row)
    assert fault.partition(": ")[0] == (f"row 1, field {field}" if field else "row 1")


def test_all_faults_are_told_at_once_by_the_numbers_of_their_lines(project: Project):
    messages = faults(project, {"prompt": "good"}, {"prompt": 1}, "", {"prompt": "good too"}, {"promt": "x"})
    assert [fault.split(",")[0] for fault in messages] == ["row 2", "row 5"]


def test_nothing_comes_in_when_the_last_of_many_lines_is_faulty(project: Project):
    rows = [{"prompt": f"question {number}"} for number in range(1001)]
    assert faults(project, *rows, {"prompt": None}) == [
        "row 1002, field prompt: A text or a list of messages is expected, not null."
    ]


def test_the_list_of_faults_is_bounded_and_says_so(project: Project):
    with refused("nothing_imported", ImportErrors) as refusal:
        bring_in(project, *[{}] * (LISTED_ERRORS + 5))
    assert len(refusal.value.errors) == LISTED_ERRORS
    assert refusal.value.more
    assert refusal.value.message.startswith(
        f"prompts.jsonl: nothing was imported, more than {LISTED_ERRORS} errors."
    )


# ── The command ───────────────────────────────────────────────────────────────────────


def test_the_command_imports_a_file(project: Project, tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "\xc3\xa9t\xc3\xa9?"}\r\n{"prompt": "b"}\r\n')
    output = StringIO()
    call_command("import_prompts", str(path), "--project", project.slug, stdout=output)
    assert "2 prompts added to Tea, 0 were there already." in output.getvalue()
    assert Prompt.objects.order_by("id")[0].messages[0]["content"] == "été?"


def test_the_command_names_the_byte_that_is_not_utf8(project: Project, tmp_path: Path):
    path = tmp_path / "latin1.jsonl"
    path.write_bytes('{"prompt": "a"}\n{"prompt": "café"}\n'.encode("latin-1"))
    with pytest.raises(CommandError, match="row 2: Byte 0xe9 at column 16 is not UTF-8"):
        call_command("import_prompts", str(path), "--project", project.slug)
    assert Prompt.objects.count() == 0


def test_the_command_tells_which_projects_there_are(project: Project, tmp_path: Path):
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(CommandError, match=r"no project 'te'\. Projects: tea"):
        call_command("import_prompts", str(tmp_path / "x.jsonl"), "--project", "te")
    factories.make_project(slug="coffee")
    with pytest.raises(CommandError, match="coffee, tea"):
        call_command("import_prompts", str(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_the_command_tells_when_a_file_cannot_be_read(project: Project, tmp_path: Path, name: str):
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_prompts", str(tmp_path / name))
