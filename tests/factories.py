"""Plain functions that build rows for tests. They go through the services where people would."""

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from annotation.choices import (
    CategoryScope,
    FinishReason,
    Granularity,
    Purpose,
    Role,
    SourceKind,
    Split,
    TraceStepKind,
    Verdict,
)
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    CompletionSource,
    Guideline,
    Judgment,
    Membership,
    Panel,
    Project,
    Prompt,
    User,
)
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.panels import create_panel
from annotation.services.quality import create_gold_item
from annotation.services.texts import create_comparison, write_steps
from annotation.text.identity import content_hash, in_held_out_share, text_hash
from annotation.text.traces import UnwrittenStep, written
from tests.records import judgment_record
from training.models import ApplicationRequest, Checkpoint

PASSWORD = "correct horse battery staple"


def make_user(username: str, *, superuser: bool = False, **fields: Any) -> User:
    """A person who signs in with `PASSWORD`."""
    create = User.objects.create_superuser if superuser else User.objects.create_user
    return create(username=username, password=PASSWORD, email=f"{username}@example.org", **fields)


def make_project(
    *,
    slug: str = "tea",
    annotators: Sequence[User] = (),
    managers: Sequence[User] = (),
    guideline: str = "Prefer the answer that is right and to the point.",
    **fields: Any,
) -> Project:
    """A project with a guideline, the three categories of fine-grained RLHF, and members."""
    # Most tests count what comes; those about retests ask for them.
    settings = {"name": slug.title(), "slug": slug, "retest_share": 0.0, **fields}
    project = Project.objects.create(**settings)
    Guideline.objects.create(project=project, version=1, text=guideline)
    make_category(project, "irrelevant", shortcut="i", granularity=Granularity.SUB_SENTENCE, position=1)
    make_category(project, "untruthful", shortcut="u", position=2, colour="#be123c")
    make_category(
        project,
        "missing",
        shortcut="m",
        scope=CategoryScope.MISSING,
        granularity=Granularity.WHOLE,
        position=3,
        colour="#0369a1",
    )
    for role, users in ((Role.ANNOTATOR, annotators), (Role.MANAGER, managers)):
        for user in users:
            Membership.objects.create(project=project, user=user, role=role)
    return project


def make_category(project: Project, key: str, **fields: Any) -> Category:
    """An error category; by default about spans."""
    return Category.objects.create(project=project, key=key, **{"label": key.title(), **fields})


def make_prompt(
    project: Project,
    text: str = "How long should green tea steep?",
    *,
    context: Sequence[tuple[str, Sequence[str]]] = (),
    **fields: Any,
) -> Prompt:
    """A prompt of one user turn; `context` as (title, sentences)."""
    messages = [{"role": "user", "content": text}]
    passages = [{"title": title, "sentences": list(sentences)} for title, sentences in context]
    digest = content_hash(messages, passages)
    return Prompt.objects.create(
        **{
            "project": project,
            "messages": messages,
            "context": passages,
            "content_hash": digest,
            "split": Split.HELD_OUT if in_held_out_share(digest) else Split.TRAIN,
            **fields,
        }
    )


def make_source(name: str = "starter", *, kind: SourceKind = SourceKind.CHECKPOINT) -> CompletionSource:
    """The source of that name, made once."""
    return CompletionSource.objects.get_or_create(name=name, defaults={"kind": kind})[0]


def make_completions(
    prompt: Prompt,
    texts: Sequence[str],
    *,
    source: CompletionSource | None = None,
    truncated: Collection[int] = (),
) -> list[Completion]:
    """One completion for each text, with seeds from 0 on; those in `truncated` reached the token limit."""
    written_by = source or make_source()
    first = prompt.completions.filter(source=written_by).count()
    return [
        Completion.objects.create(
            prompt=prompt,
            source=written_by,
            text=text,
            text_hash=text_hash(text),
            sampling={"temperature": 1.0},
            seed=first + number,
            finish_reason=FinishReason.LENGTH if number in truncated else FinishReason.STOP,
            token_count=len(text.split()),
        )
        for number, text in enumerate(texts)
    ]


def make_trace(
    prompt: Prompt,
    steps: Sequence[UnwrittenStep],
    *,
    source: CompletionSource | None = None,
    seed: int | None = None,
) -> Completion:
    """A completion that is a trace of these steps."""
    text, placed = written(steps)
    trace = Completion.objects.create(
        prompt=prompt,
        source=source or make_source("agent"),
        text=text,
        text_hash=text_hash(text),
        seed=seed,
        step_count=len(placed),
    )
    write_steps([(trace.pk, placed)])
    return trace


def search_steps(
    answer: str = "Two minutes.", *, tool: str = "search", result: str = "80 °C 🍵"
) -> list[UnwrittenStep]:
    """An agent that thinks, asks a tool once, and answers: a message, a call, its result, a message."""
    return [
        UnwrittenStep(kind=TraceStepKind.MESSAGE, content="I look it up."),
        UnwrittenStep(kind=TraceStepKind.TOOL_CALL, tool=tool, call="c1", arguments={"query": "tea"}),
        UnwrittenStep(kind=TraceStepKind.TOOL_RESULT, role="tool", tool=tool, call="c1", content=result),
        UnwrittenStep(kind=TraceStepKind.MESSAGE, content=answer),
    ]


def make_application_request(
    project: Project, checkpoint: Checkpoint, *texts: str, key: str = "chatcmpl-1", **fields: Any
) -> ApplicationRequest:
    """A stored request of an application, answered with these texts."""
    messages = [{"role": "user", "content": fields.pop("question", "Why is tea hot?")}]
    return ApplicationRequest.objects.create(
        project=project,
        key=key,
        checkpoint=checkpoint,
        token_name="shop",
        messages=messages,
        content_hash=content_hash(messages),
        choices=[
            {"text": text, "seed": place, "finish_reason": "stop", "token_count": None}
            for place, text in enumerate(texts or ("Because of the water.",))
        ],
        **fields,
    )


def make_comparison(
    project: Project,
    texts: Sequence[str] = ("Two minutes.", "Ten hours."),
    *,
    question: str | None = None,
    prompt: Prompt | None = None,
    round_number: int = 1,
    priority: int = 0,
) -> Comparison:
    """A comparison of new completions with these texts, of a new prompt when none is given."""
    chosen_prompt = prompt or make_prompt(project, question or f"How long should tea steep? {uuid.uuid4()}")
    return create_comparison(
        prompt=chosen_prompt,
        completions=make_completions(chosen_prompt, texts),
        round_number=round_number,
        priority=priority,
    )


def make_gold_item(
    project: Project,
    ranks: Sequence[int] = (1, 2),
    *,
    verdict: Verdict = Verdict.RANKED,
    texts: Sequence[str] | None = None,
    purpose: Purpose = Purpose.GOLD,
    explanation: str = "Two minutes are enough.",
) -> Comparison:
    """A known item of a new prompt; `ranks` in the order of its candidates, 0 for none, () for no ranks."""
    prompt = make_prompt(project, f"What is known of tea? {uuid.uuid4()}")
    completions = make_completions(prompt, texts or [f"answer {n}" for n in range(max(len(ranks), 2))])
    knows = User.objects.filter(memberships__project=project, memberships__role=Role.MANAGER).first()
    return create_gold_item(
        prompt=prompt,
        completions=completions,
        verdict=verdict,
        ranks={
            completion.pk: rank for completion, rank in zip(completions, ranks, strict=bool(ranks)) if rank
        },
        explanation=explanation,
        created_by=knows or make_user(f"knows-{uuid.uuid4()}", superuser=True),
        purpose=purpose,
    )


def make_judgment(
    comparison: Comparison, annotator: User, ranks: Sequence[int] = (1, 2), **answer: Any
) -> Judgment:
    """`annotator` is leased `comparison` and submits `ranks`, in the order of its candidates, 0 for none.

    `answer` holds further fields of `JudgmentRecord`; with `verdict=Verdict.CANNOT_JUDGE`
    give `ranks=()`. Other open comparisons stay as they are.
    """
    assignment = lease_to(comparison, annotator)
    ids = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    ranked = {pk: rank for pk, rank in zip(ids, ranks, strict=bool(ranks)) if rank}
    judgment_answer = judgment_record(**{"verdict": Verdict.RANKED, "ranks": ranked, **answer})
    return submit_judgment(
        assignment=assignment, annotator=annotator, answer=judgment_answer, idempotency_key=uuid.uuid4()
    )


def lease_to(comparison: Comparison, annotator: User) -> Assignment:
    """Lease this very comparison: the others of its project are out of reach for the moment."""
    others = Comparison.objects.filter(project=comparison.project).exclude(pk=comparison.pk)
    open_before: dict[int, list[int]] = {}
    for pk, open_slots in others.filter(open_slots__gt=0).values_list("pk", "open_slots"):
        open_before.setdefault(open_slots, []).append(pk)
    if open_before:
        others.update(open_slots=0)
    try:
        assignment = assign_next(project=comparison.project, annotator=annotator)
    finally:
        for open_slots, pks in open_before.items():
            others.filter(pk__in=pks).update(open_slots=open_slots)
    assert assignment is not None, f"{annotator} cannot be leased {comparison}"
    assert assignment.comparison_id == comparison.pk, f"{annotator} holds another comparison already"
    return assignment


def make_panel(project: Project, created_by: User, **fields: Any) -> tuple[Panel, str]:
    """A panel of two annotations for a participant, and the secret of its link."""
    usual = {
        "name": "Tea study",
        "consent": "I agree that my **annotations** are stored.",
        "items": 2,
        "code": "DONE",
        "days": 7,
        "most_participants": 10,
    }
    return create_panel(project=project, created_by=created_by, **{**usual, **fields})
