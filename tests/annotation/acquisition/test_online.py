"""Updates of the choice as annotations come: stored features, reused results, and messages to the worker."""

import uuid

import pytest

from annotation.acquisition.bayesian import arrays_of, clear_cache
from annotation.choices import AcquisitionStrategy, TaskName
from annotation.models import AcquisitionFigures, Comparison, CompletionFeatures, Project, User
from annotation.services.assignments import online
from annotation.services.assignments.next import assign_next
from annotation.services.assignments.online import sweep_acquisition, update_acquisition
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db
UPDATES = TaskName.UPDATE_ACQUISITION


@pytest.fixture(autouse=True)
def nothing_cached():
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def learned(project: Project) -> Project:
    """A project that follows a head, with twelve pairs of a short and a long response."""
    project.acquisition = AcquisitionStrategy.HEAD_UNCERTAINTY
    project.control_share = 0.0
    project.save()
    for number in range(12):
        prompt = factories.make_prompt(project, f"What about {number}?")
        factories.make_comparison(project, ["Short.", "word " * (3 + number)], prompt=prompt)
    return project


def judge(project: Project, annotator: User, *, longer_wins: bool = True) -> Comparison:
    assignment = assign_next(project=project, annotator=annotator)
    texts = dict(assignment.comparison.completions.values_list("pk", "text"))
    order = sorted(texts, key=lambda pk: len(texts[pk]), reverse=longer_wins)
    submit_judgment(
        assignment=assignment,
        annotator=annotator,
        answer=judgment_record(verdict="ranked", ranks={pk: place + 1 for place, pk in enumerate(order)}),
        idempotency_key=uuid.uuid4(),
    )
    return assignment.comparison


def test_an_update_stores_features_and_puts_open_comparisons_in_order(learned: Project, alice: User):
    update_acquisition(learned.pk)
    assert CompletionFeatures.objects.count() == 24
    scores = list(
        Comparison.objects.order_by("-acquisition_score").values_list("acquisition_score", flat=True)
    )
    assert scores == [float(12 - place) for place in range(12)]
    best = Comparison.objects.order_by("-acquisition_score").first()
    assert judge(learned, alice) == best


def test_what_is_learned_changes_what_is_asked(learned: Project, alice: User):
    update_acquisition(learned.pk)
    before = _queue()
    for _ in range(4):
        judge(learned, alice)
    update_acquisition(learned.pk)
    figures = AcquisitionFigures.objects.get(project=learned)
    assert (figures.judgments, figures.comparisons, figures.figures["chosen"]) == (4, 12, 8)
    # Four are judged; of the others the order is another one than before anything was known.
    assert set(_queue()) == set(before[4:])
    assert _queue() != before[4:]


def _queue() -> list[int]:
    open_ = Comparison.objects.filter(open_slots__gt=0).order_by("-acquisition_score")
    return list(open_.values_list("pk", flat=True))


def test_a_second_update_reads_nothing_twice_and_gives_the_same_order(learned: Project, alice: User):
    update_acquisition(learned.pk)
    judge(learned, alice)
    update_acquisition(learned.pk)
    before = dict(Comparison.objects.values_list("pk", "acquisition_score"))
    update_acquisition(learned.pk)
    assert dict(Comparison.objects.values_list("pk", "acquisition_score")) == before
    clear_cache()
    update_acquisition(learned.pk)
    assert dict(Comparison.objects.values_list("pk", "acquisition_score")) == before


def test_a_change_of_mind_replaces_what_was_learned(learned: Project, alice: User):
    comparison = judge(learned, alice)
    update_acquisition(learned.pk)
    assert len(arrays_of(learned, 1).choices().table) == 1
    assignment = comparison.assignments.get(annotator=alice)
    submit_judgment(
        assignment=assignment,
        annotator=alice,
        answer=judgment_record(verdict="equal"),
        idempotency_key=uuid.uuid4(),
    )
    update_acquisition(learned.pk)
    assert len(arrays_of(learned, 1).choices().table) == 0


def test_comparisons_that_come_later_are_chosen_from_too(learned: Project):
    update_acquisition(learned.pk)
    factories.make_comparison(learned, ["One.", "Two two."], prompt=factories.make_prompt(learned, "New?"))
    update_acquisition(learned.pk)
    assert AcquisitionFigures.objects.get(project=learned).comparisons == 13
    assert Comparison.objects.filter(acquisition_score__gt=0).count() == 13


def test_a_worker_is_told_after_every_few_annotations(
    learned: Project, alice: User, sent, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(2 * online.EVERY):
            judge(learned, alice)
    assert [args for task, args in sent if task == UPDATES] == [[learned.pk]] * 2


def test_in_a_project_by_age_nothing_is_chosen_and_the_curve_alone_is_kept(
    learned: Project, alice: User, sent, monkeypatch, django_capture_on_commit_callbacks
):
    # The learning curve is drawn after each fiftieth annotation of all: one of these five might be it.
    monkeypatch.setattr(online, "EVERY_CURVE", 10**9)
    Project.objects.update(acquisition=AcquisitionStrategy.AGE)
    learned.refresh_from_db()
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(online.EVERY):
            judge(learned, alice)
    sweep_acquisition()
    assert not [task for task, _ in sent if task == UPDATES]
    update_acquisition(learned.pk)
    figures = AcquisitionFigures.objects.get(project=learned)
    assert (figures.judgments, figures.figures["chosen"]) == (online.EVERY, 0)
    assert not Comparison.objects.filter(acquisition_score__gt=0).exists()


def test_the_sweep_tells_of_what_no_update_has_seen(learned: Project, alice: User, sent):
    sweep_acquisition()
    assert [args for task, args in sent if task == UPDATES] == [[learned.pk]]
    update_acquisition(learned.pk)
    sent.clear()
    sweep_acquisition()
    assert not sent
    judge(learned, alice)
    sent.clear()
    sweep_acquisition()
    assert [args for task, args in sent if task == UPDATES] == [[learned.pk]]
