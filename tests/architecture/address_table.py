"""The table of addresses: every address, and what each role gets from it."""

from collections.abc import Iterator

from django.urls import URLPattern, URLResolver, get_resolver

ROLES = ("anonymous", "oscar", "alice", "bob", "carol", "admin")

# What anonymous, Oscar (an outsider), Alice (who labels, and whose assignment it is), Bob (who
# labels too), Carol (a manager) and the superuser get. 302 for anonymous leads to the sign-in page.
EVERYONE = (302, 200, 200, 200, 200, 200)
MEMBERS = (302, 404, 200, 200, 200, 200)
ALICE_ALONE = (302, 404, 200, 404, 404, 404)
MANAGERS = (302, 404, 403, 403, 200, 200)
NOBODY = (401,) * 6
# Carol did not judge what is reviewed; there is no plain reviewer in the cast.
REVIEWERS = MANAGERS

# name: (method, what each gets)
TABLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "login": ("GET", (200, 302, 302, 302, 302, 302)),
    "logout": ("POST", (302, 302, 302, 302, 302, 302)),
    # The same pages under the names by which allauth calls them.
    "account_login": ("GET", (200, 302, 302, 302, 302, 302)),
    "account_logout": ("POST", (302, 302, 302, 302, 302, 302)),
    # Nobody here was invited: a page that says that accounts are made by invitation.
    "account_signup": ("GET", (200, *(302,) * 5)),
    "account_inactive": ("GET", (200,) * 6),
    "account": ("GET", EVERYONE),
    # An empty form takes the address away, which needs a recent sign-in.
    "mail-choice": ("POST", (302,) * 6),
    "account_reset_password": ("GET", (200,) * 6),
    "account_reset_password_done": ("GET", (200,) * 6),
    # A link that opens nothing says so.
    "account_reset_password_from_key": ("GET", (200,) * 6),
    "account_reset_password_from_key_done": ("GET", (200,) * 6),
    "inbox": ("GET", EVERYONE),
    "inbox-count": ("GET", EVERYONE),
    "inbox-read": ("POST", (302,) * 6),
    # Alice's own.
    "notification": ("POST", (302, 404, 302, 404, 404, 404)),
    # There is no such session; one's own are ended in tests/webapp/test_sessions.py.
    "session-end": ("POST", (302,) * 6),
    "sessions-end-others": ("POST", (302,) * 6),
    # First who signed in otherwise than by password a moment ago confirms that it is them.
    "account-export": ("GET", (302,) * 6),
    "account-delete": ("GET", (302,) * 6),
    "account_reauthenticate": ("GET", EVERYONE),
    "account_change_password": ("GET", EVERYONE),
    # Who has a password changes it.
    "account_set_password": ("GET", (302,) * 6),
    "mfa_index": ("GET", EVERYONE),
    # Between the password and the second factor.
    "mfa_authenticate": ("GET", (302,) * 6),
    # Nobody here has a second factor.
    "mfa_reauthenticate": ("GET", (302,) * 6),
    "mfa_activate_totp": ("GET", (302,) * 6),
    "mfa_deactivate_totp": ("GET", (302, 404, 404, 404, 404, 404)),
    "mfa_view_recovery_codes": ("GET", (302, 404, 404, 404, 404, 404)),
    "mfa_generate_recovery_codes": ("GET", (302,) * 6),
    "mfa_download_recovery_codes": ("GET", (302, 404, 404, 404, 404, 404)),
    "mfa_list_webauthn": ("GET", EVERYONE),
    "mfa_add_webauthn": ("GET", (302,) * 6),
    "mfa_reauthenticate_webauthn": ("GET", (302,) * 6),
    "mfa_remove_webauthn": ("GET", (302,) * 6),
    "mfa_edit_webauthn": ("GET", (302,) * 6),
    "mfa_login_webauthn": ("GET", (302,) * 6),
    "socialaccount_login_cancelled": ("GET", (200,) * 6),
    "socialaccount_login_error": ("GET", (302, 401, 401, 401, 401, 401)),
    "socialaccount_signup": ("GET", (302,) * 6),
    "socialaccount_connections": ("GET", EVERYONE),
    # No other site is set up here; tests/webapp/test_other_sites.py sets one up.
    "github_login": ("GET", (404,) * 6),
    "github_callback": ("GET", (404,) * 6),
    "google_login": ("GET", (404,) * 6),
    "google_callback": ("GET", (404,) * 6),
    "openid_connect_login": ("GET", (404,) * 6),
    "openid_connect_callback": ("GET", (404,) * 6),
    "language": ("POST", (302, 302, 302, 302, 302, 302)),
    # A load balancer and whoever restarts processes ask these; they say nothing of why.
    "health-live": ("GET", (200,) * 6),
    "health-ready": ("GET", (200,) * 6),
    # Django's test client is a program on another machine: it calls us by another name.
    "metrics": ("GET", (302, 403, 403, 403, 403, 200)),
    "status": ("GET", (302, 403, 403, 403, 403, 200)),
    "start": ("GET", (302, 403, 403, 403, 403, 200)),
    "start-demo": ("POST", (302, 403, 403, 403, 403, 302)),
    "start-starter": ("POST", (302, 403, 403, 403, 403, 302)),
    "projects": ("GET", EVERYONE),
    "project-new": ("GET", (302, 403, 403, 403, 403, 200)),
    "project-file-new": ("GET", (302, 403, 403, 403, 403, 200)),
    "keys": ("GET", EVERYONE),
    "tokens": ("GET", EVERYONE),
    # Only one's own tokens are there.
    "token-revoke": ("POST", (302, 404, 302, 404, 404, 404)),
    "project": ("GET", MEMBERS),
    "guidelines": ("GET", MEMBERS),
    # An empty request does not say which version was read.
    "guidelines-read": ("POST", (302, 404, 400, 400, 400, 400)),
    "category-colours": ("GET", MEMBERS),
    "label": ("GET", MEMBERS),
    # Nothing follows when the request does not say upon what.
    "label-step": ("GET", ALICE_ALONE),
    "label-ahead": ("GET", (302, 404, 204, 204, 204, 204)),
    # With nothing in the form: shown again, with what is missing.
    "submit": ("POST", (302, 404, 422, 404, 404, 404)),
    # It sends nothing that was pasted.
    "paste": ("POST", (302, 404, 422, 404, 404, 404)),
    "skip": ("POST", (302, 404, 422, 404, 404, 404)),
    "flag": ("POST", (302, 404, 422, 404, 404, 404)),
    "ask": ("GET", ALICE_ALONE),
    "comments": ("GET", REVIEWERS),
    # Alice wrote it; not even a manager edits what others wrote.
    "comment-edit": ("GET", ALICE_ALONE),
    # An empty request is no draft.
    "draft": ("POST", (302, 404, 400, 404, 404, 404)),
    # The lease of what is submitted cannot be renewed.
    "renew": ("POST", (302, 404, 409, 404, 404, 404)),
    "continuation": ("GET", ALICE_ALONE),
    "revise": ("GET", ALICE_ALONE),
    "return-object": ("POST", (302, 404, 422, 404, 404, 404)),
    # No suggestions wait: back to work.
    "final-pass": ("GET", (302, 404, 302, 404, 404, 404)),
    "final-pass-submit": ("POST", (302, 404, 302, 404, 404, 404)),
    "reviews": ("GET", REVIEWERS),
    "review": ("GET", REVIEWERS),
    # With nothing in the form: shown again, with what is missing.
    "gold-answer": ("GET", MANAGERS),
    "gold-file": ("POST", (302, 404, 403, 403, 422, 422)),
    "review-decide": ("POST", (302, 404, 403, 403, 422, 422)),
    "review-return": ("POST", (302, 404, 403, 403, 422, 422)),
    "review-take": ("POST", (302, 404, 403, 403, 422, 422)),
    # It is not decided: there is nothing to undo.
    "review-undo": ("POST", (302, 404, 403, 403, 409, 409)),
    "statistics": ("GET", MANAGERS),
    "statistics-items": ("GET", MANAGERS),
    # Reviewers may open it, too, where they may open its review: tests/annotation/comparison/.
    "statistics-item": ("GET", MANAGERS),
    "comparison-step": ("GET", REVIEWERS),
    "my-work": ("GET", MEMBERS),
    "annotators": ("GET", MANAGERS),
    "annotator": ("GET", MANAGERS),
    "pay": ("GET", MANAGERS),
    "pay-file": ("GET", MANAGERS),
    # Whatever the form holds, the page of pay comes after it.
    "pay-rate": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-settings": ("GET", MANAGERS),
    "bin": ("GET", (302, 200, 200, 200, 200, 200)),
    # Its manager brings it back, and it is no longer there.
    "bin-restore": ("POST", (302, 404, 404, 404, 302, 404)),
    "project-delete": ("GET", MANAGERS),
    "project-archive": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-file": ("GET", MANAGERS),
    "project-file-download": ("GET", MANAGERS),
    "project-preview": ("GET", MANAGERS),
    "project-questions": ("GET", MANAGERS),
    "criterion-add": ("GET", MANAGERS),
    "criterion": ("GET", MANAGERS),
    "criterion-change": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-question-add": ("GET", MANAGERS),
    "project-question": ("GET", MANAGERS),
    "project-question-change": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-question-again": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-question-preview": ("POST", (302, 404, 403, 403, 200, 200)),
    "project-question-preview-new": ("POST", (302, 404, 403, 403, 200, 200)),
    "project-categories": ("GET", MANAGERS),
    "category-add": ("GET", MANAGERS),
    "category": ("GET", MANAGERS),
    "category-change": ("POST", (302, 404, 403, 403, 302, 302)),
    "category-again": ("POST", (302, 404, 403, 403, 302, 302)),
    "guidelines-edit": ("GET", MANAGERS),
    "allocation": ("GET", MANAGERS),
    # No rule is sent, so those who may see why it was not added.
    "allocation-rules": ("POST", (302, 404, 403, 403, 422, 422)),
    "allocation-member": ("POST", (302, 404, 403, 403, 302, 302)),
    "members": ("GET", MANAGERS),
    "member": ("POST", (302, 404, 403, 403, 302, 302)),
    "invitations": ("GET", MANAGERS),
    "invitation-revoke": ("POST", (302, 404, 403, 403, 302, 302)),
    "panels": ("GET", MANAGERS),
    "panel-hosts": ("POST", (302, 404, 403, 403, 302, 302)),
    "panel-participants": ("GET", MANAGERS),
    "panel-file": ("GET", MANAGERS),
    "panel-revoke": ("POST", (302, 404, 403, 403, 302, 302)),
    # Nobody here is a participant: tests/annotation/people/test_panels.py.
    "panel-done": ("GET", (302, 404, 404, 404, 404, 404)),
    "panel": ("GET", (200,) * 6),
    # Whoever has the link.
    "invitation": ("GET", (200,) * 6),
    "project-audit": ("GET", MANAGERS),
    "audit": ("GET", (302, 403, 403, 403, 403, 200)),
    "withheld": ("GET", MANAGERS),
    # The form names neither release nor discard: back to the list, with a message.
    "withheld-decide": ("POST", (302, 404, 403, 403, 302, 302)),
    **dict.fromkeys(
        ("data-prompts", "data-comparisons", "data-annotations", "data-responses"), ("GET", MANAGERS)
    ),
    **dict.fromkeys(("prompt", "prompt-new"), ("GET", MANAGERS)),
    # Nothing is chosen: back to the table, with a message.
    "data-act": ("POST", (302, 404, 403, 403, 302, 302)),
    "saved-views": ("GET", MANAGERS),
    "sources": ("GET", MANAGERS),
    # No action is chosen: back to the page.
    "source-act": ("POST", (302, 404, 403, 403, 302, 302)),
    # The form of its owner does not share it: to the next it is not there.
    "saved-view": ("POST", (302, 404, 403, 403, 302, 404)),
    # No member is named: back to the list, with a message.
    "saved-view-assign": ("GET", (302, 404, 403, 403, 302, 302)),
    "view-queue-end": ("POST", (302, 404, 403, 403, 302, 302)),
    "change-undo": ("POST", (302, 404, 403, 403, 302, 302)),
    "transfers": ("GET", MANAGERS),
    "transfer": ("GET", MANAGERS),
    "export-choose": ("GET", MANAGERS),
    "export": ("GET", MANAGERS),
    "webhooks": ("GET", MANAGERS),
    "webhook": ("GET", MANAGERS),
    "webhook-rotate": ("POST", (302, 404, 403, 403, 200, 200)),
    # It is switched off: back to its page, with a message.
    "webhook-test": ("POST", (302, 404, 403, 403, 302, 302)),
    # Gone for whoever comes second.
    "webhook-delete": ("POST", (302, 404, 403, 403, 302, 404)),
    "webhook-delivery": ("GET", MANAGERS),
    "gold": ("GET", MANAGERS),
    "calibrations": ("GET", MEMBERS),
    "calibration-new": ("GET", MANAGERS),
    "calibration": ("GET", MEMBERS),
    # Its annotations are not revealed yet.
    "calibration-item": ("GET", (302, 404, 404, 404, 404, 404)),
    "calibration-reveal": ("POST", (302, 404, 403, 403, 302, 302)),
    "calibration-close": ("POST", (302, 404, 403, 403, 302, 302)),
    "calibration-retest": ("POST", (302, 404, 403, 403, 302, 302)),
    # Then it is gone.
    "calibration-delete": ("POST", (302, 404, 403, 403, 302, 404)),
    "gold-make": ("POST", (302, 404, 403, 403, 422, 422)),
    "search": ("GET", EVERYONE),
    "design": ("GET", EVERYONE),
    **dict.fromkeys(("guide", "guide-page"), ("GET", EVERYONE)),
    "dashboard": ("GET", MANAGERS),
    "dashboard-quality": ("GET", MANAGERS),
    "rounds": ("GET", MANAGERS),
    "runs": ("GET", MANAGERS),
    "runs-compare": ("GET", MANAGERS),
    "run-log": ("GET", MANAGERS),
    # The form is empty: nothing changes.
    "run-describe": ("POST", (302, 404, 403, 403, 302, 302)),
    "round": ("GET", MANAGERS),
    "round-progress": ("GET", MANAGERS),
    "round-recipe": ("GET", MANAGERS),
    "round-draft": ("GET", MANAGERS),
    # Each asks first; what it does, and for whom, is tested in tests/training.
    # Opening and starting are asked on the page of the recipe.
    "round-open": ("GET", (302, 404, 403, 403, 302, 302)),
    "round-rollback": ("GET", MANAGERS),
    "round-cancel": ("GET", MANAGERS),
    "round-pause": ("GET", MANAGERS),
    "round-reopen": ("GET", MANAGERS),
    "round-again": ("GET", MANAGERS),
    "round-resume": ("GET", MANAGERS),
    "round-start": ("GET", (302, 404, 403, 403, 302, 302)),
    "round-retry": ("GET", MANAGERS),
    "round-reject": ("GET", MANAGERS),
    "round-promote": ("GET", MANAGERS),
    "round-discard": ("GET", MANAGERS),
    "run": ("GET", MANAGERS),
    "run-live": ("GET", MANAGERS),
    "run-curves": ("GET", MANAGERS),
    "run-download": ("GET", MANAGERS),
    "run-tensorboard": ("GET", MANAGERS),
    "course": ("GET", EVERYONE),
    "lesson": ("GET", EVERYONE),
    "lesson-live": ("GET", EVERYONE),
    "lesson-run": ("POST", (302,) * 6),
    "lesson-stop": ("POST", (302,) * 6),
    "course-class": ("GET", MANAGERS),
    "base-models": ("GET", MANAGERS),
    "base-model": ("GET", MANAGERS),
    "base-model-additions": ("GET", MANAGERS),
    # They fill a disk or send a key to a server: administrators alone.
    "base-model-add": ("GET", (302, 403, 403, 403, 403, 200)),
    "base-model-cancel": ("POST", (302, 403, 403, 403, 403, 302)),
    "base-model-inspect": ("POST", (302, 404, 403, 403, 403, 302)),
    "base-model-remove": ("GET", (302, 404, 403, 403, 403, 200)),
    "providers": ("GET", (302, 403, 403, 403, 403, 200)),
    "provider": ("GET", (302, 403, 403, 403, 403, 200)),
    "provider-test": ("POST", (302, 403, 403, 403, 403, 302)),
    # No model is named.
    "provider-add-model": ("POST", (302, 403, 403, 403, 403, 422)),
    "provider-remove": ("POST", (302, 403, 403, 403, 403, 302)),
    # No base model is named: back to the list, with why.
    "project-base-model": ("POST", (302, 404, 403, 403, 302, 302)),
    "checkpoints": ("GET", MANAGERS),
    "checkpoint": ("GET", MANAGERS),
    # Nothing has been evaluated.
    "evaluation": ("GET", (302, 404, 403, 403, 404, 404)),
    "evaluation-file": ("GET", (302, 404, 403, 403, 404, 404)),
    # The starter model belongs to no project: every manager sees it, administrators alone change it.
    "checkpoint-describe": ("POST", (302, 404, 403, 403, 403, 302)),
    "checkpoint-verify": ("POST", (302, 404, 403, 403, 302, 302)),
    "checkpoint-card": ("GET", MANAGERS),
    "checkpoint-export": ("POST", (302, 404, 403, 403, 403, 302)),
    "checkpoint-exports": ("GET", MANAGERS),
    # There is no such export.
    "checkpoint-export-download": ("GET", (302, 404, 403, 403, 404, 404)),
    "checkpoint-delete": ("GET", (302, 404, 403, 403, 403, 200)),
    "drift": ("GET", MANAGERS),
    "drift-measure": ("POST", (302, 404, 403, 403, 302, 302)),
    "drift-progress": ("GET", MANAGERS),
    # There is no such reward model.
    "drift-items": ("GET", (302, 404, 403, 403, 404, 404)),
    "snapshot": ("GET", MANAGERS),
    "completion": ("GET", MANAGERS),
    "leaderboard": ("GET", MANAGERS),
    "leaderboard-groups": ("GET", MANAGERS),
    "leaderboard-items": ("GET", MANAGERS),
    "arenas": ("GET", MANAGERS),
    # The form again, with what is missing.
    "arena-create": ("POST", (302, 404, 403, 403, 422, 422)),
    "arena-close": ("POST", (302, 404, 403, 403, 302, 302)),
    # An arena without guests; what guests may is tested in tests/training/comparing/test_arena_guests.py.
    "arena": ("GET", MEMBERS),
    "arena-begin": ("POST", (302, 404, 302, 302, 302, 302)),
    "arena-ballot": ("GET", ALICE_ALONE),
    "arena-talk": ("GET", ALICE_ALONE),
    # No message is no message, and nothing is to be generated or voted on.
    "arena-talk-say": ("POST", (302, 404, 422, 404, 404, 404)),
    "arena-talk-write": ("POST", (302, 404, 302, 404, 404, 404)),
    "arena-talk-vote": ("POST", ALICE_ALONE),
    "arena-talk-end": ("POST", (302, 404, 422, 404, 404, 404)),
    # Alice talks; managers read what she said.
    "conversations": ("GET", MEMBERS),
    # The project's conversations are closed: the list again, with why.
    "conversation-begin": ("POST", (302, 404, 422, 422, 422, 422)),
    "conversation": ("GET", (302, 404, 200, 404, 200, 200)),
    # No message is no message.
    "conversation-say": ("POST", (302, 404, 422, 404, 404, 404)),
    # Nothing is to be generated: back to the page.
    "conversation-write": ("POST", (302, 404, 302, 404, 404, 404)),
    # Her own is refused before its first turn.
    "conversation-end": ("POST", (302, 404, 422, 404, 302, 302)),
    "conversation-settings": ("GET", MANAGERS),
    "conversation-task-add": ("GET", MANAGERS),
    "conversation-task": ("GET", MANAGERS),
    "conversation-task-archive": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare": ("GET", MANAGERS),
    "live": ("GET", MANAGERS),
    "live-line": ("GET", MANAGERS),
    "suggestions": ("GET", MANAGERS),
    "judges": ("GET", MANAGERS),
    "judge": ("GET", MANAGERS),
    # The form names neither pause nor resume, and that is a pause: back to the judge's page.
    "judge-set": ("POST", (302, 404, 403, 403, 302, 302)),
    **dict.fromkeys(("rubrics", "rubric", "rubric-new", "rubric-edit"), ("GET", MANAGERS)),
    # No action is chosen: back to the rubric's page.
    "rubric-act": ("POST", (302, 404, 403, 403, 302, 302)),
    **dict.fromkeys(("rubric-drafts", "rubric-draft"), ("GET", MANAGERS)),
    **dict.fromkeys(("near-duplicates", "embed-progress", "prompt-similar"), ("GET", MANAGERS)),
    # No model is chosen, and there is no job: back to the page.
    **dict.fromkeys(("embed-prompts", "embed-cancel"), ("POST", (302, 404, 403, 403, 302, 302))),
    # Whoever may choose an address and a key may send that key there.
    "served-model": ("GET", (302, 404, 404, 404, 404, 200)),
    **dict.fromkeys(
        ("feedback", "feedback-request", "feedback-figures", "feedback-incidents", "feedback-settings"),
        ("GET", MANAGERS),
    ),
    # Excluded again, as it was.
    "feedback-incident": ("POST", (302, 404, 403, 403, 302, 302)),
    # Nothing is tried.
    "feedback-patterns": ("POST", (302, 404, 403, 403, 200, 200)),
    # Nothing is chosen or named: back to the settings, with a message.
    **dict.fromkeys(
        ("feedback-rule", "feedback-token", "feedback-key", "feedback-erase"),
        ("POST", (302, 404, 403, 403, 302, 302)),
    ),
    # A token opens these, and no cookie does.
    "v1-models": ("GET", NOBODY),
    "v1-model": ("GET", NOBODY),
    "v1-chat-completions": ("POST", NOBODY),
    "v1-completions": ("POST", NOBODY),
    "v1-unknown": ("GET", (404,) * 6),
    # The form again, with what is missing.
    "compare-answer": ("POST", (302, 404, 403, 403, 200, 200)),
    "compare-shown": ("GET", MANAGERS),
    # Everything is written, the form is empty and nothing typed: back to the page, with a message.
    "compare-write": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-vote": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-reveal": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-continue": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-prompts": ("GET", MANAGERS),
    # Without settings nothing is generated, and the page belongs to no set: back to the page, with a message.
    "compare-again": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-next": ("POST", (302, 404, 403, 403, 302, 302)),
    "prompt-sets": ("GET", MANAGERS),
    # The form again, with what is missing.
    "prompt-set-create": ("POST", (302, 404, 403, 403, 422, 422)),
    "prompt-set": ("GET", MANAGERS),
    # The form is empty: nothing changes.
    "prompt-set-change": ("POST", (302, 404, 403, 403, 302, 302)),
    # Gone for whoever comes second.
    "prompt-set-delete": ("POST", (302, 404, 403, 403, 302, 404)),
    # The operations of the API have a table of their own, in tests/api/test_who_may.py.
    "api-docs": ("GET", EVERYONE),
    "api-schema": ("GET", (401, 200, 200, 200, 200, 200)),
    "api-unknown": ("GET", (401, 404, 404, 404, 404, 404)),
}


def our_patterns() -> Iterator[URLPattern]:
    """Yield every address but those of the admin."""

    def walk(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
        for pattern in patterns:
            if isinstance(pattern, URLPattern):
                yield pattern
            elif pattern.namespace != "admin":
                yield from walk(pattern.url_patterns)

    return walk(get_resolver().url_patterns)
