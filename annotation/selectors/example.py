"""An example of work for the preview of the labelling screen. Nothing of it is stored, nobody holds it."""

from collections.abc import Sequence

from django.utils import timezone

from annotation.choices import Purpose, WithholdingState
from annotation.models import Assignment, Comparison, Completion, Project, Prompt, User
from annotation.text.identity import text_hash

MOST_RESPONSES = 4
QUESTION = "How long should green tea steep, and does it matter how hot the water is?"
CONTEXT = [
    {
        "title": "Green tea",
        "sentences": [
            "Green tea is usually steeped for one to three minutes.",
            "Water of 70 to 80 °C keeps it from becoming bitter.",
        ],
    }
]
RESPONSES = (
    "Steep green tea for **one to three minutes** in water of 70 to 80 °C. Hotter water makes it bitter.",
    "About ten minutes. The temperature does not matter, and tea was invented in 1850.",
    "Two minutes are enough for most green teas:\n\n1. Let the boiling water cool for five minutes.\n"
    "2. Pour it over the leaves.\n3. Remove the leaves after two minutes.",
    "It depends on your taste. Tea is a drink. It is a drink that many people like.",
)


def example_of_work(*, project: Project, user: User, responses: int | None = None) -> Assignment:
    """Return an assignment that is no row: a comparison of the project, else an invented one.

    With a number of `responses` it is invented in any case. Its primary key is 0, which no row has.
    """
    comparison = None if responses else _newest(project)
    if comparison is None:
        comparison, completions = _invented(project, responses or 2)
    else:
        completions = [candidate.completion for candidate in comparison.candidates.order_by("index")]
    now = timezone.now()
    assignment = Assignment(
        pk=0,
        comparison=comparison,
        annotator=user,
        display_order=[completion.pk for completion in completions],
        leased_at=now,
        lease_expires_at=now,
    )
    assignment.fresh_completions = list(completions)
    return assignment


def _newest(project: Project) -> Comparison | None:
    held_back = [WithholdingState.PENDING, WithholdingState.DISCARDED]
    newest = (
        Comparison.objects.filter(project=project, purpose=Purpose.WORK)
        .exclude(withholding__state__in=held_back)
        .select_related("prompt")
        .prefetch_related("candidates__completion")
        .order_by("-round_number", "-pk")
        .first()
    )
    if newest is not None:
        newest.project = project
    return newest


def _invented(project: Project, responses: int) -> tuple[Comparison, Sequence[Completion]]:
    prompt = Prompt(project=project, messages=[{"role": "user", "content": QUESTION}], context=CONTEXT)
    comparison = Comparison(project=project, prompt=prompt, round_number=1, purpose=Purpose.WORK)
    completions = [
        Completion(pk=number, prompt=prompt, text=text, text_hash=text_hash(text))
        for number, text in enumerate(RESPONSES[: max(1, min(responses, MOST_RESPONSES))], start=1)
    ]
    return comparison, completions
