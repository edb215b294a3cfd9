"""The OpenAPI document: settings of drf-spectacular and the parts shared by all operations."""

from typing import Any

ENUM_NAMES = {
    "RoleName": "annotation.choices.Role",
    "VerdictName": "annotation.choices.Verdict",
    "PurposeName": "annotation.choices.Purpose",
    "KnownPurposeName": "annotation.choices.KNOWN_PURPOSES",
    "QuestionKindName": "annotation.choices.QuestionKind",
    "RoundStateName": "training.choices.RoundState",
    "StepKindName": "training.choices.StepKind",
    "StepStateName": "training.choices.StepState",
    "RunStateName": "training.choices.RunState",
    "JobStateName": "annotation.choices.JobState",
    "AssignmentStateName": "annotation.choices.AssignmentState",
    "WithholdingStateName": "annotation.choices.WithholdingState",
    "CheckpointKindName": "training.choices.CheckpointKind",
    "TokenScopeName": "annotation.choices.TokenScope",
    "ReviewReasonName": "annotation.choices.ReviewReason",
    "ImportStateName": "annotation.choices.ImportState",
    "SplitName": "annotation.choices.Split",
    "WebhookEventName": "annotation.choices.WebhookEvent",
    "DeliveryStateName": "annotation.choices.DeliveryState",
    "FindingLevelName": "webapp.operations.health.LEVELS",
    "NotificationKindName": "annotation.choices.NotificationKind",
    "WhyDisabledName": "annotation.choices.WhyDisabled",
    "FeedbackKindName": "training.choices.FeedbackKind",
    "SelectionReasonName": "training.choices.SelectionReason",
    "AbuseKindName": "training.choices.AbuseKind",
    "WhyNothingName": "annotation.choices.WhyNothing",
    "ParticipantStateName": "annotation.choices.ParticipantState",
    "RatingScaleName": "annotation.choices.RatingScale",
}
"""Names of enums in the document, in place of generated ones."""

TAGS = [
    {"name": "account", "description": "Oneself and one's tokens."},
    {"name": "projects", "description": "Projects, members, rules, what was done."},
    {"name": "texts", "description": "Prompts, completions, comparisons, judgments."},
    {"name": "labelling", "description": "Getting work and judging it, blind."},
    {"name": "reviews", "description": "Deciding what annotators disagree on, blind until decided."},
    {"name": "quality", "description": "Statistics, withheld texts, known answers."},
    {"name": "rounds", "description": "The loop: rounds, their recipes, what they would do."},
    {"name": "runs", "description": "Training jobs, their metrics, and what they learned from."},
    {"name": "transfers", "description": "Files of judgments, in and out."},
    {"name": "webhooks", "description": "Programs that are told of events, and what reached them."},
    {"name": "feedback", "description": "Requests of applications, and feedback of their end users."},
    {"name": "base models", "description": "What training begins from, how it is added, what it needs."},
    {"name": "checkpoints", "description": "What was trained, how good it is, what judges with it."},
    {"name": "course", "description": "Lessons, one's runs of them, and a class."},
    {"name": "operations", "description": "How this Rondo stands, and who did what anywhere."},
]
"""Tags of operations, in the order of the documentation."""

_RENAMED = {"side_by_side_": "beside_"}
"""Prefix of operation ids → that of 1.0, which `x-formerly` names until 3.0: guide, Versions and support."""

_READS = ("get", "head")
_PROBLEMS = {
    "400": "The request cannot be read.",
    "401": "No token and no session, or one that is not good.",
    "403": "The token lacks the scope, or the person the role.",
    "404": "There is nothing here, or nothing that one may see.",
    "406": "The answer is JSON, and the request accepts none.",
    "409": "Something else happened meanwhile: look again, then decide.",
    "412": "What was to be changed has changed since it was read.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "A value is wrong, or what is asked cannot be done now; `errors` names the fields.",
    "429": "Too many requests. `Retry-After` says in how many seconds to ask again.",
}
_OF_READING = ("400", "401", "403", "404", "406", "422", "429")
_KEY = {
    "in": "header",
    "name": "Idempotency-Key",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "description": (
        "Drawn for this request. Sent again within 24 hours, it is not done again: the first answer comes "
        "again, with `Idempotent-Replayed: true`. The same key with another request is refused (422). What "
        "was refused did nothing and may be sent again."
    ),
}
_KNOWN = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "The ETag of an answer that one has: 304 as long as nothing changed.",
}
_MATCH = {
    "in": "header",
    "name": "If-Match",
    "schema": {"type": "string"},
    "description": "The ETag of what one read: 412 when it has changed since.",
}


_TEXT = {"type": "string"}
_PROBLEM = {
    "type": "object",
    "description": "Problem details of RFC 9457.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {**_TEXT, "description": "`about:blank`: the status says which kind of problem it is."},
        "title": {**_TEXT, "description": "The status in words."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {**_TEXT, "description": "What was wrong here, and what to do."},
        "code": {
            **_TEXT,
            "description": "The reason for programs; it stays when the sentence changes. The guide lists "
            "them under *Codes of refusals*.",
        },
        "errors": {
            "type": "array",
            "description": "The fields that are wrong.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {
                    "field": {**_TEXT, "description": "Its path: names, and numbers from 0, with dots."},
                    "message": {**_TEXT, "description": "What is wrong, and what to do."},
                    "code": {**_TEXT, "description": "The reason for programs, for a field of the body."},
                },
            },
        },
    },
}


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the shared responses and headers to every operation (a postprocessing hook)."""
    schemas = result["components"]["schemas"]
    schemas["Problem"] = _PROBLEM
    for name in ("NullEnum", "BlankEnum"):
        if name in schemas:
            schemas[name].setdefault("description", "None of the choices.")
    for path in result["paths"].values():
        for method, operation in path.items():
            _complete(method, operation)
    return result


def _complete(method: str, operation: dict[str, Any]) -> None:
    for new, old in _RENAMED.items():
        if operation["operationId"].startswith(new):
            operation["x-formerly"] = operation["operationId"].replace(new, old, 1)
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: dict[str, Any] = operation["responses"]
    for status, meaning in _PROBLEMS.items():
        if method not in _READS or status in _OF_READING:
            responses.setdefault(status, {"description": meaning, "content": problem})
    parameters: list[dict[str, Any]] = operation.setdefault("parameters", [])
    if method in _READS:
        responses.setdefault("304", {"description": "Nothing changed since the ETag that was sent."})
        parameters.append(_KNOWN)
    elif method == "post" and not any(parameter["name"] == _KEY["name"] for parameter in parameters):
        parameters.append(_KEY)
    elif method in ("put", "patch"):
        parameters.append(_MATCH)
    for status, response in responses.items():
        if not response.get("description"):
            response["description"] = "Done." if status.startswith("2") else status
