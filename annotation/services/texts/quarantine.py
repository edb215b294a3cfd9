"""Quarantine: comparisons that are kept from annotators until a manager decides."""

from collections.abc import Callable, Sequence

from django.db import transaction
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import WithholdingState
from annotation.errors import Refusal
from annotation.models import Assignment, Comparison, Completion, CompletionSource, Prompt, User, Withholding
from annotation.models.work import HOLDS_A_SLOT
from annotation.selectors import access
from annotation.text.self_identification import SelfNaming, find_self_naming


def finding_in(*, prompt: Prompt, completions: Sequence[Completion]) -> Withholding | None:
    """The first completion that names its model, as a row that lacks its comparison; None if none does."""
    names = _source_names(completions)
    texts = [(completion.text, names[completion.source_id]) for completion in completions]
    match = first_naming(texts, prompt_text=lambda: asked_in(prompt))
    if match is None:
        return None
    index, naming = match
    return Withholding(completion=completions[index], start=naming.start, end=naming.end, quote=naming.quote)


def first_naming(
    texts: Sequence[tuple[str, str]], *, prompt_text: Callable[[], str]
) -> tuple[int, SelfNaming] | None:
    """The index of the first text that names its model, and where. `texts` are (text, source's name).

    `prompt_text` gives the prompt, and is called only when there is something to hold against it.
    """
    for index, (text, source_name) in enumerate(texts):
        if find_self_naming(text, prompt="", source_name=source_name) is None:
            continue
        naming = find_self_naming(text, prompt=prompt_text(), source_name=source_name)
        if naming is not None:
            return index, naming
    return None


def asked_in(prompt: Prompt) -> str:
    """All that an answer may speak of: what was said, and the passages."""
    contents = [message["content"] for message in prompt.messages]
    passages = [line for passage in prompt.context for line in (passage["title"], *passage["sentences"])]
    return "\n".join([*contents, *passages])


def decide_withholding(*, withholding: Withholding, decided_by: User, release: bool) -> Withholding:
    """Release a comparison to annotators, or keep it from them for good.

    Decided once: who comes second is refused, and told what was decided. Refuses who does not
    manage the project.
    """
    comparison = withholding.comparison
    access.refuse_unless_manager(decided_by, comparison.project, "manager_releases_completions")
    state = WithholdingState.RELEASED if release else WithholdingState.DISCARDED
    with transaction.atomic():
        decided = Withholding.objects.filter(pk=withholding.pk, state=WithholdingState.PENDING).update(
            state=state, decided_by=decided_by, decided_at=timezone.now()
        )
        if decided and release:
            open_free_places([comparison.pk])
    withholding.refresh_from_db(fields=["state", "decided_by", "decided_at"])
    if not decided:
        raise Refusal(
            "quarantine_decided",
            _("%(name)s decided this before you: %(decision)s."),
            name=withholding.decided_by,
            decision=withholding.get_state_display(),
        )
    return withholding


def open_free_places(comparisons: Sequence[int]) -> None:
    """Open all places of comparisons that nobody holds, as after a quarantine."""
    held = (
        Assignment.objects.filter(
            comparison=OuterRef("pk"),
            slot__isnull=False,
            state__in=HOLDS_A_SLOT,
        )
        .order_by()
        .values("comparison")
        .annotate(number=Count("pk"))
        .values("number")
    )
    Comparison.objects.filter(pk__in=comparisons).update(
        open_slots=Greatest(F("overlap") - Coalesce(Subquery(held), 0), 0)
    )


def _source_names(completions: Sequence[Completion]) -> dict[int, str]:
    field = Completion._meta.get_field("source")
    known = {
        completion.source_id: completion.source.name
        for completion in completions
        if field.is_cached(completion)
    }
    if unknown := {completion.source_id for completion in completions} - known.keys():
        known |= dict(CompletionSource.objects.filter(pk__in=unknown).values_list("pk", "name"))
    return known
