"""Project files: written, compared, applied whole or not at all, and read within bounds."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from annotation.errors import NotAllowed
from annotation.exchange.project_file import MOST_BYTES, _Writer, dumped, in_yaml, read, write
from annotation.models import (
    AuditEntry,
    Category,
    ConversationTask,
    Judgment,
    Project,
    ProjectQuestion,
    User,
)
from annotation.record.project_file import SettingsEntry
from annotation.services.conversations import save_task
from annotation.services.projects.project_file import json_schema
from annotation.services.projects.projects import change_settings, publish_guideline
from annotation.services.projects.questions import archive_question, set_category, set_criterion
from annotation.services.projects.rubrics import (
    RubricCriterionInput,
    ask_rubric,
    publish_rubric,
    save_rubric,
)
from tests import factories
from tests.annotation.judgments.answers import completions_of, span, submit
from tests.annotation.questions.asking import KINDS, ask, choices, shown_by
from tests.api.scene import Asker
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db

SCHEMA = settings.BASE_DIR / "static" / "schemas" / "project-file-1.json"


@pytest.fixture
def study(project: Project, carol: User) -> Project:
    """A project that uses everything that a file holds."""
    project.description = "Two lines,\nwith a colon: and “quotes”.  "
    project.allocation = [{"tag": "law", "skill": "lawyer", "share": 40}, {"tag": "tax", "skill": "tax"}]
    project.hourly_wage = "12.50"
    project.save()
    publish_guideline(project=project, text="# Rules\n\n  - yes: no\n\ttabs\n\n", author=carol)
    for key in KINDS:
        ask(project, carol, key)
    ask(project, carol, "topic", choices=choices("law", "tax", "other", law="L"))
    ask(project, carol, "why", shown_when=shown_by("topic", "law", "tax"), is_required=True, help_text="1e-5")
    set_category(
        project=project,
        key="praise",
        values={"label": "Praise 🍵", "polarity": "merit", "shortcut": "h", "severity_steps": 3},
        changed_by=carol,
    )
    set_criterion(project=project, key="kind", values={"label": "Kind", "scale": "seven"}, changed_by=carol)
    for name, asked in (("Tea", True), ("Cup", False)):
        version = save_rubric(
            project=project,
            name=name,
            criteria=[RubricCriterionInput(name="Kind", text="Is it?", weight=0.25)],
            saved_by=carol,
        )
        if asked:
            ask_rubric(rubric=publish_rubric(version=version, published_by=carol), is_asked=True, by=carol)
    save_task(project=project, actor=carol, name="Chat", system="Be brief.", least_turns=2)
    project.refresh_from_db()
    return project


def applied(project: Project, by: User, **sections: Any) -> list[str]:
    """Apply sections, and return the changes as signs and paths."""
    changes = read(in_yaml({"rondo": 1, **sections})).apply(project=project, by=by)
    return [f"{change.kind} {change.path}" for change in changes]


def held(project: Project) -> Any:
    return yaml.load(write(project), Loader=yaml.SafeLoader)


# ── Round trips ───────────────────────────────────────────────────────────────────────


def test_a_file_applied_to_a_new_project_gives_the_same_bytes(study: Project, admin: User):
    text = write(study)
    made = read(text).create(slug="again", by=admin)
    assert write(made) == text
    assert ProjectQuestion.objects.get(project=made, key="why").shown_when.key == "topic"
    assert {row["key"] for row in held(made)["categories"]} >= {"praise"}


def test_a_file_applied_to_the_project_that_it_came_from_changes_nothing(study: Project, carol: User):
    entries = AuditEntry.objects.count()
    revision = study.revision
    assert read(write(study)).apply(project=study, by=carol) == []
    assert AuditEntry.objects.count() == entries
    study.refresh_from_db()
    assert study.revision == revision


def test_the_file_is_of_the_shipped_schema_and_knows_every_setting(study: Project):
    from annotation.api.projects import _SETTINGS

    schema = json.loads(SCHEMA.read_text())
    assert schema == json_schema(), "Run `manage.py apply --schema > static/schemas/project-file-1.json`."
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(held(study), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**held(study), "categories": [{"key": "x"}]}, schema)
    in_file = set(SettingsEntry.__dataclass_fields__)
    assert in_file | {"name", "description", "allocation"} == set(_SETTINGS)


# ── Changes ───────────────────────────────────────────────────────────────────────────


def test_changes_name_what_is_added_changed_and_removed_with_both_values(study: Project, carol: User):
    values = held(study)
    values["settings"] = {"overlap": 3}
    values["questions"] = [row for row in values["questions"] if row["key"] != "day"]
    values["questions"][0]["text"] = "Subject"
    values["criteria"].append({"key": "clear", "label": "Clear"})
    changes = {row.path: row for row in read(in_yaml(values)).compare(study)}
    assert {path: row.kind for path, row in changes.items()} == {
        "settings.overlap": "changed",
        "questions[topic].text": "changed",
        "questions[day]": "removed",
        "criteria[clear]": "added",
    }
    assert (changes["questions[topic].text"].before, changes["questions[topic].text"].after) == (
        "Topic",
        "Subject",
    )
    assert Project.objects.get(pk=study.pk).overlap == 1


def test_sections_and_settings_that_a_file_leaves_out_stay(study: Project, carol: User):
    before = held(study)
    assert applied(study, carol, settings={"gold_feedback": True}) == ["changed settings.gold_feedback"]
    after = held(study)
    assert after["settings"].pop("gold_feedback")
    assert not before["settings"].pop("gold_feedback")
    assert after == before


def test_an_entry_that_a_file_leaves_out_is_archived_where_annotations_use_it_and_else_deleted(
    study: Project, carol: User, alice: User
):
    set_category(project=study, key="unused", values={"label": "Unused", "shortcut": "d"}, changed_by=carol)
    comparison = factories.make_comparison(study, ["Green tea.", "No."])
    ranks = {completion.pk: rank for rank, completion in enumerate(completions_of(comparison), 1)}
    study.questions.filter(is_required=True).update(is_required=False)
    study.refresh_from_db()
    mark = span(comparison, "Green", category="praise", severity=1)
    answer = judgment_record("ranked", ranks, spans=(mark,))
    submit(factories.lease_to(comparison, alice), answer)
    kept = [row for row in held(study)["categories"] if row["key"] not in ("praise", "unused")]
    # Its keys on the keyboard are free for another at once.
    kept.append({"key": "fresh", "label": "Fresh", "shortcut": "h"})
    applied(study, carol, categories=kept)
    assert not Category.objects.filter(project=study, key="unused").exists()
    assert Category.objects.get(project=study, key="praise").is_archived
    assert Judgment.objects.get().span_flags.get().category.key == "praise"
    # Named again, it is asked again.
    applied(study, carol, categories=[*kept, {"key": "praise", "label": "Praise"}])
    assert not Category.objects.get(project=study, key="praise").is_archived


def test_conditions_keys_and_order_change_places_in_one_file(study: Project, carol: User):
    values = {row["key"]: row for row in held(study)["questions"]}
    del values["topic"]["choices"][0]["shortcut"]
    values["faults"]["choices"][0]["shortcut"] = "L"
    values["why"]["shown_when"] = {"question": "faults", "values": ["tone"]}
    values["first"] = {
        "key": "first",
        "kind": "choice",
        "text": "First?",
        "choices": values["topic"]["choices"],
    }
    values["topic"]["shown_when"] = {"question": "first", "values": ["tax"]}
    wanted = [values[key] for key in ("first", "faults", "why", "topic", "age")]
    applied(study, carol, questions=wanted)
    assert held(study)["questions"] == [
        {**row, **({"is_required": True} if row["key"] == "why" else {})} for row in wanted
    ]
    versions = ProjectQuestion.objects.get(project=study, key="topic").versions
    assert versions.count() == 1, "Another condition or key of the keyboard is no other meaning."


def test_a_changed_wording_is_a_new_version_and_the_services_write_the_audit_log(study: Project, carol: User):
    questions = held(study)["questions"]
    questions[0]["text"] = "Field of law"
    applied(study, carol, questions=questions)
    assert ProjectQuestion.objects.get(project=study, key="topic").versions.count() == 2
    newest = AuditEntry.objects.filter(project=study).order_by("-pk")
    assert newest[0].action == "project.apply_file"
    assert newest[0].details["changes"] == ["changed questions[topic].text"]
    assert newest[1].action == "projectquestion.set"
    assert newest[1].actor == carol


def test_an_archived_question_and_task_come_back_when_a_file_names_them(study: Project, carol: User):
    before = held(study)
    applied(study, carol, questions=[], conversation_tasks=[])
    ask(study, carol, "extra", kind="text", text="Extra")
    archive_question(
        question=ProjectQuestion.objects.get(project=study, key="extra"), archived=True, changed_by=carol
    )
    assert "questions" not in held(study)
    assert "conversation_tasks" not in held(study)
    applied(
        study,
        carol,
        questions=[*before["questions"], {"key": "extra", "kind": "text", "text": "Extra"}],
        conversation_tasks=before["conversation_tasks"],
    )
    after = held(study)
    assert after["questions"][:-1] == before["questions"]
    assert after["conversation_tasks"] == before["conversation_tasks"]
    assert ConversationTask.objects.filter(project=study).count() == 1


def test_a_rubric_that_a_file_leaves_out_stays_and_is_asked_no_more(study: Project, carol: User):
    rubrics = held(study)["rubrics"]
    assert [row["name"] for row in rubrics] == ["Cup", "Tea"]
    tea = next(row for row in rubrics if row["name"] == "Tea")
    tea["criteria"][0]["text"] = "Really?"
    applied(study, carol, rubrics=[tea])
    assert study.rubrics.get(name="Tea").published.number == 2
    assert applied(study, carol, rubrics=[rubrics[0]]) == ["removed rubrics[Tea].is_asked"]
    assert study.rubrics.count() == 2
    assert not study.rubrics.filter(is_asked=True).exists()


# ── Refusals ──────────────────────────────────────────────────────────────────────────


def test_nothing_is_applied_when_a_later_section_is_refused(study: Project, carol: User):
    before, entries = write(study), AuditEntry.objects.count()
    questions = held(study)["questions"]
    questions[1]["choices"][0]["shortcut"] = "L"
    text = in_yaml({"rondo": 1, "name": "Other", "guidelines": "New", "questions": questions})
    with refused("key_in_use_on_screen", field="questions[1].choices") as refusal:
        read(text).apply(project=study, by=carol)
    line = next(n for n, row in enumerate(text.splitlines(), 1) if row.strip() == "- key: faults")
    assert f"({line + 3})" in refusal.value.message or f"line {line + 3}" in refusal.value.message
    study.refresh_from_db()
    assert write(study) == before
    assert AuditEntry.objects.count() == entries


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        ({}, "project_file_version", "rondo"),
        ({"rondo": 2}, "project_file_version", "rondo"),
        ({"rondo": True}, "project_file_version", "rondo"),
        ({"rondo": 1, "question": []}, "project_file_invalid", "question"),
        ({"rondo": 1, "settings": {"overlap": "3"}}, "project_file_invalid", "settings.overlap"),
        ({"rondo": 1, "settings": {"overlaps": 3}}, "project_file_invalid", "settings"),
        ({"rondo": 1, "settings": []}, "project_file_invalid", "settings"),
        ({"rondo": 1, "categories": None}, "project_file_invalid", "categories"),
        (
            {
                "rondo": 1,
                "questions": [{"key": "a", "kind": "text", "text": "A"}, {"key": "b", "kind": "tick"}],
            },
            "project_file_invalid",
            "questions[1].kind",
        ),
        (
            {"rondo": 1, "criteria": [{"key": "a", "label": "A"}, {"key": "a", "label": "B"}]},
            "project_file_invalid",
            "criteria[1].key",
        ),
    ],
)
def test_what_is_not_of_the_form_is_refused_with_its_path(values: Any, code: str, field: str):
    with refused(code, field=field):
        read(in_yaml(values))


@pytest.mark.parametrize(
    ("sections", "code", "field"),
    [
        ("settings: {acquisition: luck}", "invalid_fields", "settings.acquisition"),
        ("guidelines: ' '", "guideline_empty", "guidelines"),
        ("categories: [{key: praise, label: P, scope: missing}]", "fixed_at_creation", "categories[0].scope"),
        ("categories: [{key: new, label: N, shortcut: s}]", "key_of_screen", "categories[0].shortcut"),
        (
            "questions: [{key: age, kind: number, text: Age, least: 3, most: 1}]",
            "invalid_question",
            "questions[0].most",
        ),
        (
            "questions: [{key: why, kind: text, text: Why, unit: m}]",
            "project_file_not_as_stored",
            "questions[why].unit",
        ),
        (
            "rubrics: [{name: Tea, is_published: false, criteria: [{name: Kind}]}]",
            "rubric_stays_published",
            "rubrics[0].is_published",
        ),
    ],
)
def test_what_a_service_refuses_is_refused_with_the_path_and_nothing_stays(
    study: Project, carol: User, sections: str, code: str, field: str
):
    before = write(study)
    with refused(code, field=field):
        read(f"rondo: 1\nname: Other\n{sections}").apply(project=study, by=carol)
    study.refresh_from_db()
    assert write(study) == before


def test_a_file_is_applied_by_managers_and_only_to_the_state_that_was_compared(
    study: Project, carol: User, alice: User
):
    from annotation.services.projects.project_file import digest_of

    file = read(in_yaml({"rondo": 1, "settings": {"overlap": 4}}))
    with refused("manager_applies_project_files", NotAllowed):
        file.apply(project=study, by=alice)
    seen = digest_of(study)
    applied(study, carol, settings={"overlap": 2})
    with refused("project_changed_meanwhile", field="state"):
        file.apply(project=study, by=carol, state=seen)
    assert Project.objects.get(pk=study.pk).overlap == 2


# ── Reading ───────────────────────────────────────────────────────────────────────────

_BOMB = "a: &a [x, x]\nb: [*a, *a]\n"


@pytest.mark.parametrize(
    "text",
    [
        _BOMB,
        "rondo: 1\nname: &x a",
        "rondo: !!python/object/apply:os.system [ls]",
        "rondo: !!int 1",
        "rondo: 1\nrondo: 1",
        "rondo: 1\n---\nrondo: 1",
        "rondo: 1\nname: " + "[" * 40 + "]" * 40,
        "? [a, b]\n: 1",
        "- rondo",
        "",
        "rondo: 1\n\tname: a",
        'rondo: 1\nname: "a\\0b"',
        "rondo: 1\nname: [" + "1," * 60_000 + "]",
        b"rondo: 1\nname: \xff",
    ],
)
def test_no_more_of_yaml_is_read_than_values(text: str | bytes):
    with refused("project_file_not_readable"):
        read(text)


def test_a_file_is_bounded_in_size():
    with refused("project_file_too_large"):
        read("rondo: 1\nname: " + "x" * MOST_BYTES)


def test_words_that_older_yaml_takes_for_flags_and_days_stay_texts(project: Project, carol: User):
    read("rondo: 1\nname: no\ndescription: 2026-01-31").apply(project=project, by=carol)
    assert (project.name, project.description) == ("no", "2026-01-31")


@given(
    st.dictionaries(
        st.sampled_from(["guidelines", "description"]),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1)
        | st.text(st.sampled_from(" \n\t\r-#:|>'\"a\x85\u2028"), min_size=1),
    )
)
def test_every_text_is_read_as_it_was_written(values: dict[str, str]):
    assert dict(read(dumped({"rondo": 1, **values})).content) == values


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**17), 10**17))
def test_every_number_is_read_as_it_was_written(number: float):
    from annotation.exchange.project_file import _values

    text = yaml.dump({"rondo": number}, Dumper=_Writer)
    assert _values(text, {})["rondo"] == number


# ── Command ───────────────────────────────────────────────────────────────────────────


def test_the_command_exports_compares_creates_and_applies(study: Project, admin: User, tmp_path: Path):
    out, file = StringIO(), tmp_path / "study.yaml"
    call_command("apply", export=True, project=study.slug, stdout=out)
    file.write_text(out.getvalue(), encoding="utf-8", newline="")
    call_command("apply", str(file), project="copy", dry_run=True, stdout=(out := StringIO()))
    assert "+ questions" in out.getvalue()
    assert not Project.objects.filter(slug="copy").exists()
    call_command("apply", str(file), project="copy", stdout=StringIO())
    copy = Project.objects.get(slug="copy")
    assert write(copy) == write(study)
    file.write_text("rondo: 1\nsettings: {overlap: 2}\n")
    call_command("apply", str(file), project="copy", dry_run=True, stdout=(out := StringIO()))
    assert "~ settings.overlap\n    - 1\n    + 2\n" in out.getvalue()
    assert Project.objects.get(slug="copy").overlap == 1
    call_command("apply", str(file), project="copy", by="admin", stdout=StringIO())
    assert Project.objects.get(slug="copy").overlap == 2
    file.write_text("rondo: 1\nsettings: {overlap: 0}\n")
    with refused("project_file_invalid", CommandError, field="settings.overlap"):
        call_command("apply", str(file), project="copy", stdout=StringIO())


# ── Pages and API ─────────────────────────────────────────────────────────────────────


def test_a_manager_downloads_compares_and_applies_a_file(study: Project, carol: User, client: Client):
    client.force_login(carol)
    page = reverse("project-file", args=[study.slug])
    download = client.get(reverse("project-file-download", args=[study.slug]))
    assert download.content.decode() == write(study)
    assert ".yaml" in download["Content-Disposition"]
    text = "rondo: 1\nsettings:\n  overlap: 3\nguidelines: |\n  # Rules\n"
    upload = SimpleUploadedFile("study.yaml", text.encode())
    compared = client.post(page, {"upload": upload, "compare": "1"})
    assert [row["path"] for row in compared.context["rows"]] == ["settings.overlap", "guidelines"]
    assert text.replace("\n", "\n") in compared.context["form"].initial["text"]
    sent = {"text": text, "state": compared.context["state"], "apply": "1"}
    change_settings(project=study, settings={"overlap": 2}, changed_by=carol)
    stale = client.post(page, sent)
    assert stale.status_code == 422
    assert Project.objects.get(pk=study.pk).overlap == 2
    state = client.post(page, {"text": text, "compare": "1"}).context["state"]
    assert client.post(page, {**sent, "state": state}).status_code == 302
    assert Project.objects.get(pk=study.pk).overlap == 3


def test_the_page_says_before_applying_that_a_file_would_be_refused(
    study: Project, carol: User, client: Client
):
    client.force_login(carol)
    text = "rondo: 1\ncategories:\n- {key: new, label: New, shortcut: s}\n"
    before = write(study)
    shown = client.post(reverse("project-file", args=[study.slug]), {"text": text, "compare": "1"})
    assert "categories[0].shortcut" in shown.context["refusal"]
    assert shown.context["rows"]
    assert b'name="apply"' not in shown.content
    assert write(study) == before
    empty = client.post(reverse("project-file", args=[study.slug]), {"text": "", "compare": "1"})
    assert (empty.status_code, list(empty.context["form"].errors)) == (422, ["upload"])


def test_a_project_is_created_from_a_file_by_page_and_api(study: Project, admin: User, client: Client):
    client.force_login(admin)
    sent = {"slug": "by-page", "text": write(study)}
    assert client.post(reverse("project-file-new"), sent).status_code == 302
    assert write(Project.objects.get(slug="by-page")) == write(study)
    refused_page = client.post(reverse("project-file-new"), sent)
    assert refused_page.status_code == 422
    assert refused_page.context["refusal"]
    api = Asker(admin)
    made = api("POST", "/api/v1/projects/", {"name": "N", "slug": "by-api", "file": write(study)})
    assert made.status_code == 201
    assert write(Project.objects.get(slug="by-api")) == write(study)
    both = {"name": "N", "slug": "both", "file": write(study), "guideline": "Other"}
    answer = api("POST", "/api/v1/projects/", both)
    assert (answer.status_code, answer.json()["code"]) == (422, "file_beside_template")


def test_the_api_reads_compares_and_applies_a_file_once(study: Project, carol: User):
    api = Asker(carol)
    address = f"/api/v1/projects/{study.slug}/file/"
    read_first = api("GET", address)
    assert read_first.json() == {"text": write(study)}
    text = "rondo: 1\nsettings:\n  overlap: 3\n"
    change = {"kind": "changed", "path": "settings.overlap", "before": 1, "after": 3}
    assert api("POST", f"{address}compare/", {"text": text}).json() == [change]
    rehearsed = api("PUT", address, {"text": text, "dry_run": True})
    assert rehearsed.json() == [change]
    assert Project.objects.get(pk=study.pk).overlap == 1
    tag = {"headers": {"If-Match": read_first["ETag"]}}
    assert api("PUT", address, {"text": text}, **tag).json() == [change]
    assert api("PUT", address, {"text": text}).json() == []
    assert api("PUT", address, {"text": text}, **tag).status_code == 412
    wrong = api("PUT", address, {"text": "rondo: 1\nsettings: {overlap: x}"})
    assert wrong.json()["errors"][0]["field"] == "settings.overlap"
