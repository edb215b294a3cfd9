"""The bytes of every export of one fixed project. A digest changes with a format, and with nothing else."""

import hashlib
import io
import uuid
from datetime import UTC, datetime

import pytest

from annotation.choices import AssignmentState, Verdict
from annotation.exchange.file_exports import TYPES, Export, write_parquet
from annotation.exchange.formats.registry import WRITERS
from annotation.models import (
    Assignment,
    Candidate,
    Category,
    Comparison,
    Completion,
    CompletionSource,
    Correction,
    CorrectionEdit,
    Criterion,
    Critique,
    Demonstration,
    Judgment,
    MissingInfo,
    Project,
    Prompt,
    RankedCompletion,
    Rating,
    SpanFlag,
    User,
)
from annotation.text.identity import content_hash, text_hash

pytestmark = pytest.mark.django_db

FIRST = 900_000_001
"""Ids begin here, the same on every database."""
AT = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
CONTEXT = [{"title": "Tea", "sentences": ["It steeps for three minutes."]}]
TEXTS = (
    ("Ten hours. It is =cold 🍵.", "Three minutes."),
    ("Green.", "Black tea,\nof course.", "Green tea"),
    ("Yes", "No"),
)
VERDICTS: tuple[tuple[Verdict, tuple[int, ...]], ...] = (
    (Verdict.RANKED, (2, 1)),
    (Verdict.RANKED, (1, 2, 1)),
    (Verdict.BOTH_BAD, (1, 1)),
)

DIGESTS = {
    "argilla": "e547e2491eee9398",
    "bio": "0ab2876e722f13ed",
    "chatbot-arena": "b6acd0d99947bc50",
    "csv": "d6fd22d8ffe70119",
    "hh-rlhf": "6342954b986c4e9f",
    "jsonl": "10e91f2cbf7fd5af",
    "label-studio": "d85beca5926b71d5",
    "llama-factory": "647ff819872ddda9",
    "openai-messages": "798575fc6158cb8d",
    "openai-preference": "258e46df4c21ab56",
    "openrlhf": "30f88a748e5292a8",
    "spans": "cc1a3b69166601da",
    "trl-preference": "decf79e64aa73580",
    "trl-prm": "940c2d5094ccb74b",
    "trl-sft": "6faa7dc0e7ba4cd1",
    "trl-unpaired": "11c1685ae01281a3",
    "verl": "8aac8abcbbcf711e",
}


@pytest.fixture
def fixed_project(monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr("django.utils.timezone.now", lambda: AT)
    project = Project.objects.create(name="Tea", slug="tea")
    annotator = User.objects.create(username="ann", pseudonym=uuid.UUID(int=7))
    source = CompletionSource.objects.create(name="model", kind="import")
    for index, (texts, (verdict, ranks)) in enumerate(zip(TEXTS, VERDICTS, strict=True)):
        judged(project, annotator, source, FIRST + index, texts, verdict, ranks)
    details(project, Judgment.objects.get(pk=FIRST))
    return project


def judged(
    project: Project,
    annotator: User,
    source: CompletionSource,
    pk: int,
    texts: tuple[str, ...],
    verdict: Verdict,
    ranks: tuple[int, ...],
) -> None:
    messages = [{"role": "user", "content": f"-{pk - FIRST}: what of tea?"}]
    context = CONTEXT if pk == FIRST else []
    prompt = Prompt.objects.create(
        pk=pk,
        project=project,
        messages=messages,
        context=context,
        references=["Three minutes."] if context else [],
        tags=["drinks"],
        split="held-out" if pk == FIRST + 1 else "train",
        content_hash=content_hash(messages, context),
    )
    comparison = Comparison.objects.create(
        pk=pk,
        project=project,
        prompt=prompt,
        round_number=1,
        size=len(texts),
        overlap=1,
        open_slots=0,
        completion_set=str(pk),
    )
    members = []
    for number, text in enumerate(texts):
        completion = Completion.objects.create(
            pk=pk * 10 + number,
            prompt=prompt,
            source=source,
            text=text,
            text_hash=text_hash(text),
            sampling={"temperature": 0.7},
            seed=number,
            finish_reason="stop",
        )
        Candidate.objects.create(comparison=comparison, completion=completion, index=number)
        members.append(completion)
    assignment = Assignment.objects.create(
        pk=pk,
        comparison=comparison,
        annotator=annotator,
        slot=0,
        state=AssignmentState.SUBMITTED,
        display_order=[member.pk for member in reversed(members)],
        leased_at=AT,
        lease_expires_at=AT,
        closed_at=AT,
    )
    judgment = Judgment.objects.create(
        pk=pk,
        assignment=assignment,
        comparison=comparison,
        annotator=annotator,
        verdict=verdict,
        strength=3 if pk == FIRST else None,
        comment="=A is wrong" if pk == FIRST else "",
        active_seconds=12,
        idempotency_key=uuid.UUID(int=pk),
    )
    for ranked, rank in zip(members, ranks, strict=True):
        RankedCompletion.objects.create(judgment=judgment, completion=ranked, rank=rank)


def details(project: Project, judgment: Judgment) -> None:
    """Everything that one judgment can hold."""
    wrong = Category.objects.create(
        project=project, key="wrong", label="Wrong", granularity="sentence", severity_steps=3, position=1
    )
    lacks = Category.objects.create(
        project=project, key="lacks", label="Lacks", scope="missing", granularity="whole", position=2
    )
    clear = Criterion.objects.create(project=project, key="clear", label="Clear", scale="five", position=1)
    thumb = Criterion.objects.create(
        project=project, key="desirable", label="Desirable", scale="thumbs", position=2
    )
    first, second = Completion.objects.filter(comparisons=judgment.comparison_id).order_by("pk")
    for start, end in ((0, 10), (4, 9)):
        SpanFlag.objects.create(
            judgment=judgment,
            completion=first,
            category=wrong,
            start=start,
            end=end,
            quote=first.text[start:end],
            severity=2,
            note="far too long",
        )
    MissingInfo.objects.create(
        judgment=judgment,
        completion=second,
        category=lacks,
        text="Which tea.",
        insert_at=0,
        passage=0,
        sentence=0,
        quote="It steeps for three minutes.",
        further_evidence=[{"passage": 0, "sentence": None, "quote": "Tea"}],
    )
    correction = Correction.objects.create(judgment=judgment, completion=first, text="One hour.")
    CorrectionEdit.objects.create(
        correction=correction, index=0, start=0, end=3, quote="Ten", replacement="One"
    )
    Rating.objects.create(judgment=judgment, completion=first, criterion=clear, value=4)
    Rating.objects.create(judgment=judgment, completion=second, criterion=thumb, value=1)
    Critique.objects.create(judgment=judgment, completion=second, text="Short.")
    Demonstration.objects.create(judgment=judgment, text="Three to five minutes.")


def exported(export: Export) -> bytes:
    if export.writer.container != "parquet":
        return "".join(export.text_stream()).encode()
    file = io.BytesIO()
    write_parquet(export.row_stream(), export.writer.columns, file)
    return file.getvalue()


def test_every_format_writes_the_bytes_that_it_always_wrote(fixed_project: Project):
    written = {}
    for name, writer in WRITERS.items():
        export = Export(project=fixed_project, writer=writer)
        content = exported(export)
        if writer.container == "parquet":
            # pyarrow writes its version into the file; the rows are what a format decides.
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(io.BytesIO(content))
            content = repr((table.schema.names, str(table.schema.types), table.to_pylist())).encode()
        account = repr((export.judgments, export.rows, sorted(export.dropped.items())))
        written[name] = hashlib.sha256(content + account.encode()).hexdigest()[:16]
        assert writer.container in TYPES
    assert written == DIGESTS
