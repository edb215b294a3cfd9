"""Word indexes of SQLite: always in step with the texts, also after Django has rebuilt a table."""

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.http import QueryDict

from annotation.models import Project, Prompt
from annotation.selectors.tables import search
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.table import View
from tests import factories

pytestmark = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL has indexes of its own")


def rows(project: Project, table: str, query: str) -> list[int]:
    return [pk for pk, _ in View(TABLES[table], project, QueryDict(query)).lines]


def triggers() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE %s", ["%_words_%"]
        )
        return {name for (name,) in cursor.fetchall()}


def test_a_text_that_was_changed_or_deleted_is_found_by_its_new_words_alone(project: Project):
    remaining, deleted = (factories.make_prompt(project, text) for text in ("Green tea?", "Green apples?"))
    assert rows(project, "prompts", "text=green") == [deleted.pk, remaining.pk]
    Prompt.objects.filter(pk=remaining.pk).update(messages=[{"role": "user", "content": "Weißer Tee?"}])
    deleted.delete()
    assert rows(project, "prompts", "text=green") == []
    assert rows(project, "prompts", "text=weißer") == [remaining.pk]


def test_accents_count_and_words_are_letters_digits_and_underscores(project: Project):
    plain, accented = (factories.make_prompt(project, text) for text in ("resume_2 it", "résumé it"))
    assert rows(project, "prompts", "text=resume") == [plain.pk]
    assert rows(project, "prompts", "text=résumé") == [accented.pk]
    assert rows(project, "prompts", "text=resume_2") == [plain.pk]
    # Words of FTS5's own language are words like others.
    assert rows(project, "prompts", "text=NOT OR NEAR") == []


def test_a_language_without_spaces_is_found_anywhere_in_a_text(project: Project):
    prompt = factories.make_prompt(project, "緑茶の淹れ方を教えてください")
    factories.make_prompt(project, "Something else")
    assert rows(project, "prompts", "text=淹れ方") == [prompt.pk]


def test_without_fts5_every_text_is_looked_through(project: Project, monkeypatch: pytest.MonkeyPatch):
    prompt = factories.make_prompt(project, "Green tea?")
    monkeypatch.setattr(search, "index_of", lambda *_: None)
    assert rows(project, "prompts", "text=green tea") == [prompt.pk]


def test_words_of_responses_do_not_find_prompts(project: Project):
    prompt = factories.make_prompt(project, "Green tea?")
    factories.make_comparison(project, ("Unlike words.", "Green answers."), prompt=prompt)
    assert rows(project, "prompts", "text=answers") == []


@pytest.mark.django_db(transaction=True)
def test_after_django_built_a_table_anew_migrate_mends_its_index():
    project = factories.make_project()
    before = triggers()
    assert len(before) == 9
    old = factories.make_prompt(project, "Green tea?")
    field = Prompt._meta.get_field("messages")
    with connection.schema_editor() as editor:
        # A changed column: the table is copied, and its triggers go with the old one.
        changed = models.JSONField(default=list)
        changed.set_attributes_from_name(field.name)
        changed.model = Prompt
        editor.alter_field(Prompt, field, changed)
    with connection.schema_editor() as editor:
        editor.alter_field(Prompt, changed, field)
    assert len(triggers()) == 6
    new = factories.make_prompt(project, "Green apples?")
    assert rows(project, "prompts", "text=green") == [old.pk]
    call_command("migrate", verbosity=0)
    assert triggers() == before
    assert rows(project, "prompts", "text=green") == [new.pk, old.pk]
    new.delete()
    assert rows(project, "prompts", "text=green") == [old.pk]


def test_a_database_that_is_complete_is_left_alone(project: Project, django_assert_max_num_queries):
    factories.make_prompt(project, "Green tea?")
    # One for each table, index and trigger, and what SQLite was built with.
    with django_assert_max_num_queries(16) as queries:
        search.ensure_word_indexes()
    assert not [query["sql"] for query in queries if not query["sql"].startswith("SELECT")]
