"""Held-out prompts: enough of them in a small project, and a side is for good."""

import json

import pytest

from annotation.choices import Split
from annotation.exchange.prompts import import_prompts
from annotation.models import Project
from annotation.services.texts import find_or_add_prompt

pytestmark = pytest.mark.django_db


def bring(project: Project, numbers: range) -> None:
    lines = [json.dumps({"prompt": f"question {number}"}) for number in numbers]
    import_prompts(project=project, lines=lines, name="prompts.jsonl")


def sides(project: Project) -> dict[str, str]:
    return dict(project.prompts.values_list("content_hash", "split"))


def held_out(project: Project) -> int:
    return project.prompts.filter(split=Split.HELD_OUT).count()


def test_a_project_of_sixty_prompts_holds_out_eighteen(project: Project):
    bring(project, range(60))
    # 10 % of 60 would be six.
    assert held_out(project) == 18


def test_imports_in_batches_never_move_a_prompt(project: Project):
    bring(project, range(30))
    before = sides(project)
    bring(project, range(20, 60))
    after = sides(project)
    assert {digest: after[digest] for digest in before} == before
    assert held_out(project) >= 18


def test_one_import_is_split_the_same_in_any_order(project: Project):
    bring(project, range(40))
    first = sides(project)
    project.prompts.all().delete()
    bring(project, range(39, -1, -1))
    assert sides(project) == first


def test_prompts_added_one_at_a_time_fill_the_quota(project: Project):
    for number in range(10):
        chat = [{"role": "user", "content": f"question {number}"}]
        find_or_add_prompt(project=project, messages=chat)
    assert held_out(project) >= 3


def test_a_prompt_that_is_there_is_not_added_again(project: Project):
    chat = [{"role": "user", "content": "hi"}]
    first = find_or_add_prompt(project=project, messages=chat)
    assert find_or_add_prompt(project=project, messages=chat) == first
