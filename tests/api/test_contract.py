"""The OpenAPI document: valid, complete, every field described. tests/api/fuzzing holds answers to it."""

import json
from typing import Any

from django.utils import translation
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from annotation.api.projects import SettingsSerializer
from annotation.forms.projects import ABOUT, ASSIGNMENT, QUALITY, QUESTIONS
from webapp.api.urls import document


def test_the_document_is_valid_openapi_3_1_and_was_written_without_a_warning():
    GENERATOR_STATS.reset()
    generated = SchemaGenerator(api_version="v1").get_schema(request=None, public=True)
    validate_schema(generated)
    assert generated["openapi"].startswith("3.1")
    assert not GENERATOR_STATS
    assert json.dumps(generated, sort_keys=True) == json.dumps(document(), sort_keys=True)


def test_the_document_is_english_whoever_asks_for_it_first():
    expected = document()
    document.cache_clear()
    with translation.override("de"):
        assert document() == expected


def test_every_operation_says_what_it_does_and_what_it_may_answer():
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert len(operation["description"].split()) >= 3, where
            assert operation["tags"][0] in {tag["name"] for tag in document()["tags"]}, where
            assert {"401", "403", "404", "429"} <= set(operation["responses"]), where
            for parameter in operation["parameters"]:
                assert "schema" in parameter, f"{where}: {parameter['name']}"


def test_a_renamed_operation_names_its_old_id_which_no_other_has():
    operations = [operation for methods in document()["paths"].values() for operation in methods.values()]
    former = {row["operationId"]: row["x-formerly"] for row in operations if "x-formerly" in row}
    assert former["side_by_side_ask"] == "beside_ask"
    assert not set(former.values()) & {row["operationId"] for row in operations}


def test_every_object_and_every_field_of_ours_is_described():
    undescribed = [
        name for name, schema in document()["components"]["schemas"].items() if not _is_told(name, schema)
    ]
    assert undescribed == []


def _is_told(name: str, schema: dict[str, Any]) -> bool:
    # Lists of choices name their values; pages of a list are all alike.
    return bool(schema.get("description")) or "enum" in schema or name.startswith("Paginated")


def test_the_api_changes_every_setting_that_pages_change():
    on_pages = {name for labels in (ABOUT, ASSIGNMENT, QUALITY, QUESTIONS) for name in labels}
    assert on_pages - set(SettingsSerializer.Meta.fields) == set()
