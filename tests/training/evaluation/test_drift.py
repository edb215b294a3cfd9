"""Drift: how far reward models agree with people on what they did not learn from."""

import uuid
from collections.abc import Callable

import httpx
import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Split
from annotation.models import CompletionScore, Judgment, Project, User
from annotation.services.judgments.submission import submit_judgment
from annotation.statistics.plots import Dot, Line, scatter
from tests import factories
from tests.api.scene import Asker
from tests.records import judgment_record
from tests.training.engine.fake_server import FakeServer
from tests.training.registry.registry_rows import make_snapshot, make_starter, make_trained
from training.choices import CheckpointKind, RoundState, StepKind
from training.engine import Engine
from training.models import Checkpoint, DriftFigure, DriftMeasurement, Round, RoundStep
from training.selectors.drift import items_of, matrix_of
from training.services.drift import agreement_interval, do_measurement, judged_pairs, request_measurement

SignIn = Callable[[User], Client]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """Scores an answer by its length."""
    fake = FakeServer()
    monkeypatch.setattr(
        "training.services.drift.engine_for", lambda _: Engine(transport=httpx.MockTransport(fake))
    )
    return fake


def judged(
    project: Project, annotator: User, better: str, worse: str, *, round_number: int = 1, split: str = "train"
) -> Judgment:
    """A judgment that `better` is better, of a prompt of its own."""
    prompt = factories.make_prompt(project, f"{better} or {worse}, {Judgment.objects.count()}?", split=split)
    comparison = factories.make_comparison(project, (better, worse), prompt=prompt, round_number=round_number)
    return factories.make_judgment(comparison, annotator)


def reward_model(
    name: str, project: Project, number: int, learned: list[Judgment], base: Checkpoint
) -> Checkpoint:
    """The reward model that round `number` trained from these judgments."""
    made = make_trained(
        name, project, kind=CheckpointKind.REWARD, snapshot=make_snapshot(project, learned, rounds=[number])
    )
    round_ = Round.objects.create(project=project, number=number, policy=base, state=RoundState.PROMOTED)
    RoundStep.objects.create(round=round_, kind=StepKind.TRAIN_REWARD_MODEL, position=2, run=made.run)
    return made


def measure(project: Project, user: User) -> DriftMeasurement:
    measurement = request_measurement(project=project, requested_by=user)
    do_measurement(measurement.pk)
    measurement.refresh_from_db()
    return measurement


@pytest.fixture
def first(project: Project, alice: User, server: FakeServer) -> Checkpoint:
    """The reward model of round 1, which likes what is long. It learned from two of the round's judgments.

    Of round 1 it did not learn from a held-out judgment, which agrees with it. In round 2 people like what
    is long once, and what is short twice.
    """
    base = make_starter()
    learned = [judged(project, alice, "long answer", "short"), judged(project, alice, "no", "yes it is")]
    learned.append(judged(project, alice, "quite a long one", "brief", split=Split.HELD_OUT))
    judged(project, alice, "another long one", "tiny", round_number=2)
    judged(project, alice, "tiny", "another long one", round_number=2)
    judged(project, alice, "mini", "and yet another one", round_number=2, split=Split.HELD_OUT)
    return reward_model("reward-1", project, 1, learned, base)


@pytest.mark.django_db
def test_each_cell_counts_what_its_model_did_not_learn_from(first: Checkpoint, project: Project, carol: User):
    done = measure(project, carol)
    assert (done.state, done.message, done.current, done.total) == ("finished", "2 figures", 2, 2)
    first_figure, second_figure = DriftFigure.objects.order_by("round_number")
    assert (
        first_figure.pairs,
        first_figure.held_out_pairs,
        first_figure.agreeing,
        first_figure.trained_on,
    ) == (1, 1, 1.0, 2)
    assert (
        second_figure.pairs,
        second_figure.held_out_pairs,
        second_figure.agreeing,
        second_figure.trained_on,
    ) == (3, 1, 1.0, 0)
    # Wilson, 1 of 3: (1/3 + z²/6 ± z √(2/27 + z²/36)) / (1 + z²/3), z = 1.959964: 0.0615 to 0.7923.
    assert [second_figure.low, second_figure.high] == pytest.approx([0.0615, 0.7923], abs=1e-4)


@pytest.mark.django_db
def test_scores_that_are_there_are_not_asked_for_again(
    first: Checkpoint, project: Project, carol: User, server: FakeServer
):
    measure(project, carol)
    assert len(server.asked) == 6  # one question for each prompt
    server.asked.clear()
    measure(project, carol)
    assert server.asked == []
    assert CompletionScore.objects.filter(scorer="reward-1").count() == 12


@pytest.mark.django_db
def test_a_model_that_cannot_score_is_named_and_the_others_are_measured(
    first: Checkpoint, project: Project, carol: User, server: FakeServer, rondo_home
):
    make_trained("reward-0", project, kind=CheckpointKind.REWARD)
    Checkpoint.objects.filter(name="reward-0").update(files_deleted_at="2026-01-01T00:00Z")
    done = measure(project, carol)
    assert done.message == "4 figures; not everything has a score (reward-0: its files were deleted)"
    assert DriftFigure.objects.filter(checkpoint=first, pairs__gt=0).count() == 2
    gone = DriftFigure.objects.get(checkpoint__name="reward-0", round_number=2)
    assert (gone.pairs, gone.unscored, gone.share) == (0, 3, None)


@pytest.mark.django_db
def test_a_model_server_that_is_away_loses_nothing(
    first: Checkpoint, project: Project, carol: User, server: FakeServer
):
    server.trouble = lambda request: httpx.Response(503, json={"message": "still loading"})
    assert "reward-1: still loading" in measure(project, carol).message
    assert DriftFigure.objects.get(round_number=2).unscored == 3
    server.trouble = lambda request: None
    measure(project, carol)
    assert DriftFigure.objects.get(round_number=2).pairs == 3


@pytest.mark.django_db
def test_equal_scores_agree_by_half(first: Checkpoint, project: Project, carol: User, server: FakeServer):
    server.score = lambda text: 1.0
    measure(project, carol)
    assert DriftFigure.objects.get(round_number=2).agreeing == 1.5


@pytest.mark.django_db
def test_what_machines_and_superseded_judgments_say_does_not_count(
    project: Project, alice: User, bob: User, server: FakeServer
):
    first = judged(project, alice, "a", "b")
    judged(project, bob, "c", "d")
    User.objects.filter(pk=bob.pk).update(is_machine=True, is_active=False)
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(
            verdict="ranked", ranks={row.completion_id: 3 - row.rank for row in first.ranks.all()}
        ),
        idempotency_key=uuid.uuid4(),
    )
    (pair,) = judged_pairs(project, 1)
    # Bob is a program, and Alice changed her mind: what was second is the winner now.
    assert pair.winner == first.ranks.get(rank=2).completion_id


@pytest.mark.django_db
def test_a_ranking_with_ties_gives_the_pairs_that_it_decides(project: Project, alice: User):
    comparison = factories.make_comparison(project, ("a", "b", "c"))
    factories.make_judgment(comparison, alice, (2, 1, 1))
    a, b, c = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    assert {(pair.winner, pair.loser) for pair in judged_pairs(project, 1)} == {(b, a), (c, a)}


@pytest.mark.django_db
def test_a_partial_ranking_gives_pairs_with_the_rest_and_none_among_it(
    project: Project, alice: User, carol: User, server: FakeServer
):
    comparison = factories.make_comparison(project, ("the longest one", "b", "ccc", "dd"))
    judgment = factories.make_judgment(comparison, alice, (2, 1, 0, 0))
    a, b, c, d = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    pairs = {(pair.winner, pair.loser) for pair in judged_pairs(project, 1)}
    assert pairs == {(b, a), (b, c), (b, d), (a, c), (a, d)}
    model = reward_model("reward-1", project, 1, [], make_starter())
    measure(project, carol)
    # It likes what is long: the longest above the rest is as people say, and b below all is not.
    (item,) = items_of(model, [judgment])
    assert (item.agreeing, item.pairs) == (2, 5)
    assert [(completion.pk, rank) for completion, rank, _ in item.answers][:2] == [(b, 1), (a, 2)]
    assert {(completion.pk, rank) for completion, rank, _ in item.answers[2:]} == {(c, None), (d, None)}


@pytest.mark.django_db
def test_two_measurements_never_go_on_at_once(
    first: Checkpoint, project: Project, carol: User, client_of: SignIn
):
    client = client_of(carol)
    for _ in range(2):
        page = client.post(reverse("drift-measure", args=["tea"]), follow=True).content.decode()
    assert "A measurement is running already" in page
    assert DriftMeasurement.objects.count() == 1
    assert 'hx-trigger="every 2s"' in page
    do_measurement(DriftMeasurement.objects.get().pk)
    answer = client.get(reverse("drift-progress", args=["tea"]), headers={"HX-Request": "true"})
    assert answer["HX-Refresh"] == "true"


@pytest.mark.django_db
def test_without_anything_to_measure_it_says_so(project: Project, carol: User):
    failed = measure(project, carol)
    assert (failed.state, failed.error.split(":")[0]) == ("failed", "There is nothing to measure yet")


@pytest.mark.django_db
def test_each_number_leads_to_its_judgments(
    first: Checkpoint, project: Project, carol: User, client_of: SignIn
):
    measure(project, carol)
    client = client_of(carol)
    page = client.get(reverse("drift", args=["tea"])).content.decode()
    url = reverse("drift-items", args=["tea", "reward-1", 2])
    assert f'href="{url}">33.3 %' in page
    items = client.get(url).content.decode()
    assert items.count("0 of 1 pair as people do") == 2
    assert items.count("1 of 1 pair as people do") == 1
    assert "It orders 33.3 % of 3 pairs as they do." in items
    items_of_first = client.get(reverse("drift-items", args=["tea", "reward-1", 1])).content.decode()
    assert items_of_first.count("<article") == 1  # the two that it learned from are not among them
    assert client.get(reverse("drift-items", args=["tea", "nobody", 1])).status_code == 404


@pytest.mark.django_db
def test_programs_read_the_judgments_behind_each_number(first: Checkpoint, project: Project, carol: User):
    measure(project, carol)
    as_carol = Asker(carol)
    judgments = as_carol.get("/projects/tea/drift/reward-1/rounds/2/").json()["results"]
    assert sorted((row["agreeing"], row["pairs"]) for row in judgments) == [(0, 1), (0, 1), (1, 1)]
    for judgment in judgments:
        better, worse = judgment["answers"]
        assert (better["rank"], worse["rank"]) == (1, 2)
        assert (better["score"] > worse["score"]) == bool(judgment["agreeing"])
    assert len(as_carol.get("/projects/tea/drift/reward-1/rounds/1/").json()["results"]) == 1
    assert as_carol.get("/projects/tea/drift/nobody/rounds/1/").status_code == 404
    assert as_carol.get(f"/projects/tea/drift/reward-1/rounds/{10**20}/").json()["results"] == []


@pytest.mark.django_db
def test_the_page_says_when_somebody_has_judged_since(
    first: Checkpoint, project: Project, alice: User, carol: User, client_of: SignIn
):
    client, url = client_of(carol), reverse("drift", args=["tea"])
    measure(project, carol)
    assert "There are newer annotations" not in client.get(url).content.decode()
    judged(project, alice, "new", "old", round_number=2)
    assert "There are newer annotations" in client.get(url).content.decode()


@pytest.mark.django_db
def test_agreement_over_the_rounds_and_reward_against_divergence_are_drawn(
    first: Checkpoint, project: Project, carol: User, client_of: SignIn
):
    policy = make_trained("policy-1", project, parent=Checkpoint.objects.get(name="base"))
    rows = [
        f'{{"step": {n}, "kl": {n / 10}, "reward": {n}, "held_out_accuracy": 0.{9 - n}}}\n'
        for n in range(1, 5)
    ]
    (policy.run.path / "metrics.jsonl").write_text("".join(rows))
    measure(project, carol)
    page = client_of(carol).get(reverse("drift", args=["tea"])).content.decode()
    assert page.count('<svg class="scatter"') == 3
    # Divergence 0.1 to 0.4 and reward 1 to 4 fill their box, and agreement from 0.8 down to 0.5 of 0 to 1.
    assert 'points="0.0,160.0 106.67,106.67 213.33,53.33 320.0,0.0"' in page
    assert 'points="0.0,32.0 106.67,48.0 213.33,64.0 320.0,80.0"' in page
    assert "50.0 %" in page
    # The model of round 1: all of one pair in its own round, a third in the next.
    matrix = matrix_of(project)
    assert [[cell.share for cell in row.cells] for row in matrix.rows] == [[1.0, pytest.approx(1 / 3)]]


@pytest.mark.django_db
def test_the_page_asks_the_database_as_often_for_many_models_as_for_one(
    first: Checkpoint, project: Project, carol: User, client_of: SignIn, django_assert_max_num_queries
):
    measure(project, carol)
    for number in range(2, 8):
        made = make_trained(f"reward-{number}", project, kind=CheckpointKind.REWARD)
        DriftFigure.objects.create(
            checkpoint=made,
            round_number=1,
            pairs=2,
            held_out_pairs=0,
            agreeing=1,
            prompts=1,
            unscored=0,
            trained_on=0,
        )
    client = client_of(carol)
    with django_assert_max_num_queries(9):
        client.get(reverse("drift", args=["tea"]))
    with django_assert_max_num_queries(12):
        client.get(reverse("drift-items", args=["tea", "reward-1", 2]))


def test_pairs_of_one_prompt_hang_together():
    # Ten prompts of ten pairs each, all right or all wrong: as uncertain as ten pairs, not as a hundred.
    together = {n: [10.0 * (n % 2), 10.0] for n in range(10)}
    low, high = agreement_interval(together)
    assert high - low > 0.5
    assert agreement_interval({}) == (None, None)


def test_where_all_agree_the_interval_is_not_a_point():
    # Wilson, 4 of 4: 1 / (1 + z²/4) = 0.5101, not 1.
    assert list(agreement_interval({n: [2.0, 2.0] for n in range(4)})) == pytest.approx(
        [0.5101, 1.0], abs=1e-4
    )


def test_a_plot_reaches_over_its_intervals():
    drawn = scatter([Line(kind=0, dots=(Dot(x=1, y=0.5, low=0.0, high=1.0), Dot(x=3, y=0.25)))])
    assert [(dot.x, dot.y, dot.low, dot.high) for dot in drawn.lines[0].dots] == [
        (0.0, 80.0, 160.0, 0.0),
        (320.0, 120.0, None, None),
    ]
