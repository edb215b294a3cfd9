"""Both passes leave: in an export with every decision, and the one or the other in a snapshot."""

import json

import pytest

from annotation.exchange.formats.registry import READERS
from annotation.exchange.records import records
from annotation.models import HelpReveal, Judgment, Project, User
from annotation.selectors.access import judgments_current
from tests import factories
from tests.annotation.suggestions.help_scene import (
    compare,
    finish,
    prefers,
    ranking,
    span,
    suggest,
    switch_on,
)
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def final(project: Project, alice: User, carol: User) -> Judgment:
    """Alice's final pass: a planted span rejected, a right one and the preference accepted."""
    switch_on(project, carol)
    prompt = factories.make_prompt(project, "How long?", split="train")
    comparison = factories.make_comparison(
        project, ["Two minutes. Never boil it.", "Ten hours."], prompt=prompt
    )
    planted, right, better = suggest(
        comparison,
        span(comparison, "Two minutes.", original={"quote": "Ten hours."}),
        span(comparison, "Never boil it.", confidence=0.9),
        prefers(comparison, (2, 1)),
    )
    factories.make_judgment(comparison, alice, (1, 2), strength=3, comment="Hm.", active_seconds=30)
    return finish(
        HelpReveal.objects.get(),
        alice,
        ranking(comparison, (1, 2), active_seconds=9),
        {planted.pk: "rejected", right.pk: "accepted", better.pk: "accepted"},
    )


def test_an_export_has_the_final_pass_with_the_first_and_the_decisions(project: Project, final: Judgment):
    [row] = records(judgments_current(project))
    ids = [
        str(pk)
        for pk in final.comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    ]
    assert (row["judgment"], row["ranks"]) == (str(final.pk), {ids[0]: 2, ids[1]: 1})
    assert [flag["quote"] for flag in row["spans"]] == ["Never boil it."]
    help_record = row["help"]
    assert (help_record["arm"], help_record["final"]) == ("helped", str(final.pk))
    first = help_record["first"]
    assert (first["judgment"], first["ranks"]) == (str(final.supersedes_id), {ids[0]: 1, ids[1]: 2})
    assert (first["strength"], first["comment"], first["active_seconds"], first["spans"]) == (
        3,
        "Hm.",
        30,
        [],
    )
    assert [
        (decision["kind"], decision["quote"], decision["planted"], decision["decision"])
        for decision in help_record["decisions"]
    ] == [
        ("span", "Two minutes.", True, "rejected"),
        ("span", "Never boil it.", False, "accepted"),
        ("preference", "", False, "accepted"),
    ]
    assert help_record["decisions"][1]["confidence"] == 0.9
    assert help_record["decisions"][2]["ranks"] == {ids[0]: 2, ids[1]: 1}
    # It is JSON, and read back the help stays with the judgment.
    [item] = READERS["jsonl"].read(json.loads(json.dumps(row)))
    assert item.judgments[0].more["help"]["first"]["judgment"] == str(final.supersedes_id)


def test_without_help_there_is_none_in_the_export(project: Project, alice: User):
    factories.make_judgment(compare(project), alice)
    assert ["help" in row for row in records(judgments_current(project))] == [False]


def test_a_snapshot_takes_the_final_pass_or_the_first(
    project: Project, alice: User, bob: User, final: Judgment
):
    project.overlap = 1
    other = factories.make_comparison(
        project, prompt=factories.make_prompt(project, "And coffee?", split="train")
    )
    plain = factories.make_judgment(other, bob)
    finals = freeze_snapshot(project=project, rounds=[1])
    firsts = freeze_snapshot(project=project, rounds=[1], first_passes=True)
    assert set(finals.judgments.all()) == {final, plain}
    assert set(firsts.judgments.all()) == {final.supersedes, plain}
    assert (finals.counts["spans"], firsts.counts["spans"]) == (1, 0)
    assert (finals.counts["first_passes"], firsts.counts["first_passes"]) == (0, 1)
    assert finals.digest != firsts.digest


def test_a_first_pass_without_a_final_one_is_in_both(project: Project, alice: User, carol: User):
    switch_on(project, carol)
    comparison = compare(project)
    suggest(comparison, span(comparison, "Ten hours."))
    first = factories.make_judgment(comparison, alice)
    assert list(judgments_current(project)) == list(judgments_current(project, first_passes=True)) == [first]
