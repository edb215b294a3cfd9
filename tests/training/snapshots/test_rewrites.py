"""A submitted rewrite reaches the trainer: a pair, an example for SFT, a span with its category."""

import json

import httpx
import pytest

from annotation.choices import Verdict
from annotation.errors import Unavailable
from annotation.models import Assignment, Completion, Judgment, Project, User
from annotation.record.judgment import CorrectionPart, Edit, Origin
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.drafts import continue_response, is_offered
from tests import factories
from tests.annotation.judgments.answers import prefer_first, span, submit
from tests.refusals import refused
from tests.tiny import tiny_tokenizer
from tests.training.engine.fake_server import FakeServer
from training.contract.snapshot import SnapshotRow, read_snapshot
from training.engine import Engine
from training.models import Checkpoint
from training.rlhf.data import build_examples
from training.rlhf.tokens.example import UsedLabels
from training.services import sampling
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db

ORIGINAL = "the sun rises in the west 👩‍🏫 each day"
PREFIX = "the sun rises in the east"
REST = " at s\u0301ix"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """The model server, which continues with the same text each time."""
    server = FakeServer()
    server.text = lambda body: REST
    monkeypatch.setattr(
        sampling,
        "engine_for",
        lambda checkpoint, **_: Engine(url="http://own", key="", transport=httpx.MockTransport(server)),
    )
    return server


@pytest.fixture
def assignment(project: Project, alice: User) -> Assignment:
    project.ask_correction = True
    project.save()
    prompt = factories.make_prompt(project, "Where does the sun rise?", split="train")
    factories.make_comparison(project, [ORIGINAL, "no"], prompt=prompt)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    return assignment


@pytest.fixture
def starter(assignment: Assignment) -> Checkpoint:
    """The checkpoint that wrote both responses."""
    source = Completion.objects.get(text=ORIGINAL).source
    return Checkpoint.objects.create(name="starter", kind="starter", base_model="base", source=source)


def rewritten(assignment: Assignment) -> Judgment:
    """«west» rewritten and marked, the rest by the model."""
    comparison = assignment.comparison
    first = Completion.objects.get(text=ORIGINAL)
    written = continue_response(
        assignment=assignment, annotator=assignment.annotator, completion_id=first.pk, prefix=PREFIX
    )
    marked = span(comparison, "west")
    place = (marked.category, marked.start, marked.end)
    edits = (
        Edit(start=marked.start, end=marked.end, quote="west", replacement="east", origin=Origin(span=place)),
        Edit(
            start=marked.end,
            end=len(ORIGINAL),
            quote=ORIGINAL[marked.end :],
            replacement=REST,
            origin=Origin(continuation=written.pk),
        ),
    )
    correction = CorrectionPart(completion=str(first.pk), text=PREFIX + REST, edits=edits)
    return submit(assignment, prefer_first(comparison, spans=(marked,), corrections=(correction,)))


def frozen(project: Project) -> SnapshotRow:
    [row] = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    return row


def test_the_checkpoint_that_wrote_it_continues_sampled_as_it_was(
    model: FakeServer, starter: Checkpoint, assignment: Assignment
):
    assert is_offered(assignment)
    judgment = rewritten(assignment)
    [body] = model.asked
    assert body["model"] == "starter"
    assert body["messages"] == [
        {"role": "user", "content": "Where does the sun rise?"},
        {"role": "assistant", "content": PREFIX},
    ]
    assert (body["continue_final_message"], body["temperature"]) == (True, 1.0)
    written = judgment.corrections.get().edits.last().continuation
    assert (written.seed, written.sampling["temperature"]) == (body["seed"], 1.0)


def test_a_response_of_another_source_keeps_all_from_being_continued(
    model: FakeServer, starter: Checkpoint, assignment: Assignment
):
    starter.delete()
    assert not is_offered(assignment)


def test_a_server_that_refuses_is_no_model_and_names_none(
    model: FakeServer, starter: Checkpoint, assignment: Assignment
):
    model.trouble = lambda request: (
        httpx.Response(400, json={"error": {"message": "starter cannot"}})
        if request.method == "POST"
        else None
    )
    with refused("model_not_answering", Unavailable) as refusal:
        rewritten(assignment)
    assert "starter" not in refusal.value.message


def test_a_rewrite_gives_a_pair_an_example_and_a_span(
    model: FakeServer, starter: Checkpoint, assignment: Assignment, project: Project
):
    rewritten(assignment)
    row = frozen(project)
    [correction], [marked] = row.corrections, row.spans
    assert row.verdict == Verdict.RANKED.value
    assert (marked.category, marked.quote) == ("untruthful", "west")
    assert correction.text == PREFIX + REST
    # Bytes as for a correction that nobody continued.
    assert set(json.loads(row.to_json())["corrections"][0]["edits"][0]) == {
        "start",
        "end",
        "quote",
        "replacement",
    }
    tokenizer = tiny_tokenizer()

    def examples(**kinds: object) -> list[list[str]]:
        built = build_examples(
            [row],
            tokenizer,
            max_tokens=256,
            context=False,
            labels=UsedLabels(**kinds),  # type: ignore[arg-type]
        )
        return [
            [
                "".join(tokenizer.decode(list(answer.ids)[low:high]) for low, high in answer.learned_runs)
                for answer in example.answers
            ]
            for example in built.train
        ]

    end = tokenizer.eos_token
    # Direct preference: the rewritten text over its original.
    assert examples(corrections=True)[1] == [PREFIX + REST + end, ORIGINAL + end]
    # Supervised fine-tuning: the rewritten text alone.
    assert examples(ranks="none", written=frozenset({"corrections"})) == [[PREFIX + REST + end]]
    # With `correction_tokens` "changed", what both begin with teaches nothing.
    better, worse = examples(corrections=True, changes_alone=True)[1]
    assert PREFIX.endswith(better.removesuffix(end).removesuffix(REST))
    assert (better.startswith("the"), worse.startswith("the")) == (False, False)
    assert len(worse) < len(ORIGINAL)
