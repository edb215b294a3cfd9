"""Names of completions on the page of one assignment."""

from django.utils.crypto import salted_hmac

from annotation.models import Assignment


def candidate_token(assignment: Assignment, completion_id: int) -> str:
    """The name of a completion on one assignment's page: it tells nothing and holds nowhere else."""
    mac = salted_hmac("annotation.candidate", f"{assignment.pk}:{completion_id}", algorithm="sha256")
    return mac.hexdigest()[:20]


def tokens_of(assignment: Assignment) -> dict[str, int]:
    """Token → completion id, for the completions of an assignment in their display order."""
    return {candidate_token(assignment, pk): pk for pk in assignment.display_order}
