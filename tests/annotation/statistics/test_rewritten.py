"""Rewritten responses: their number, and how much of them was changed."""

import pytest
from django.test import Client
from django.urls import reverse

from annotation.agreement.records import Selection
from annotation.models import Project, User
from annotation.record.judgment import CorrectionPart
from annotation.statistics.compute import compute_report
from tests import factories

pytestmark = pytest.mark.django_db


def test_the_share_of_responses_and_the_median_part_are_told(
    project: Project, alice: User, carol: User, client: Client
):
    project.ask_correction = True
    project.save()
    # «Ten hours.» to «Two hours.»: 3 removed and 3 written of 10 + 10 characters: 0.3. Of three pairs.
    for number, text in enumerate(["Two hours.", "Ten", None]):
        comparison = factories.make_comparison(project, ["Ten hours.", f"No {number}."])
        first = comparison.completions.get(text="Ten hours.")
        corrections = (CorrectionPart(completion=str(first.pk), text=text),) if text else ()
        factories.make_judgment(comparison, alice, corrections=corrections)
    share, part = compute_report(project, Selection()).rewrites
    assert share.key == "rewritten"
    assert share.estimate.value == pytest.approx(2 / 6)
    # «Ten hours.» to «Ten»: 7 removed of 10 + 3: 0.538…; the median lies between both.
    assert part.estimate.value == pytest.approx((0.3 + 7 / 13) / 2)
    assert part.estimate.items == 2
    client.force_login(carol)
    page = client.get(reverse("statistics", args=["tea"])).content.decode()
    assert "Responses rewritten" in page


def test_a_project_without_corrections_has_no_such_figures(project: Project, alice: User):
    factories.make_judgment(factories.make_comparison(project), alice)
    assert compute_report(project, Selection()).rewrites == ()
