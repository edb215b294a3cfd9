"""What can be done on a page can be done by the API: every address of a page names the operations for it."""

from annotation.api.projects import SettingsSerializer
from annotation.forms.projects import ABOUT, ASSIGNMENT, QUALITY, QUESTIONS
from tests.architecture.test_addresses import TABLE
from webapp.api.views import document

CEREMONY = (
    "signing in, passwords, second factors and accounts of other sites are between a person and a browser"
)
PART = "a part of a page that is listed with it"
MACHINE = "for programs as it is"

PAGES: dict[str, tuple[str, ...] | str] = {
    **dict.fromkeys(
        (
            *("login", "logout", "account_login", "account_logout", "account_inactive"),
            *("account_reauthenticate", "account_change_password", "account_set_password"),
            *("account_reset_password", "account_reset_password_done"),
            *("account_reset_password_from_key", "account_reset_password_from_key_done"),
            *(
                "mfa_index",
                "mfa_authenticate",
                "mfa_reauthenticate",
                "mfa_activate_totp",
                "mfa_deactivate_totp",
            ),
            *("mfa_view_recovery_codes", "mfa_generate_recovery_codes", "mfa_download_recovery_codes"),
            *("mfa_list_webauthn", "mfa_add_webauthn", "mfa_reauthenticate_webauthn", "mfa_remove_webauthn"),
            *("mfa_edit_webauthn", "mfa_login_webauthn"),
            *("socialaccount_login_cancelled", "socialaccount_login_error", "socialaccount_signup"),
            *("socialaccount_connections", "github_login", "github_callback", "google_login"),
            *("google_callback", "openid_connect_login", "openid_connect_callback"),
            # One joins with an account; the account is made on the page.
            "account_signup",
        ),
        CEREMONY,
    ),
    **dict.fromkeys(
        (
            *("health-live", "health-ready", "metrics"),
            *("v1-models", "v1-model", "v1-chat-completions", "v1-completions", "v1-unknown"),
            *("api-docs", "api-schema", "api-unknown"),
        ),
        MACHINE,
    ),
    **dict.fromkeys(
        (
            *(
                "category-colours",
                "label-ahead",
                "inbox-count",
                "round-progress",
                "run-live",
                "drift-progress",
            ),
            # An example on the labelling screen, drawn from what is listed.
            "project-preview",
            *("dashboard", "dashboard-quality"),
            # The components of pages, with nothing of anybody's.
            "design",
        ),
        PART,
    ),
    "account": ("me_read", "sessions_list"),
    "mail-choice": ("me_mail_read", "me_mail_set"),
    "inbox": ("inbox_list",),
    "inbox-read": ("inbox_read",),
    "notification": ("inbox_read",),
    "ask": ("assignments_comments", "assignments_ask"),
    "comments": ("comments_list", "comments_reply", "comments_resolve"),
    "comment-edit": ("comments_edit",),
    "account-export": ("me_data",),
    "account-delete": ("me_delete",),
    "session-end": ("sessions_end",),
    "sessions-end-others": ("sessions_end_others",),
    "language": ("me_change",),
    "keys": ("me_keys_read", "me_keys_set"),
    "tokens": ("tokens_list", "tokens_create"),
    "token-revoke": ("tokens_revoke",),
    "status": ("status_read",),
    "audit": ("audit_list_all",),
    "project-audit": ("audit_list",),
    "projects": ("projects_list",),
    "project-new": ("projects_create", "imports_upload"),
    "project": ("projects_read", "rounds_list", "members_list"),
    "guidelines": ("guidelines_list",),
    "guidelines-edit": ("guidelines_publish",),
    "project-settings": ("projects_settings_read", "projects_settings_change"),
    "project-archive": ("projects_archive",),
    "project-questions": ("projects_settings_read", "projects_settings_change"),
    "criterion-add": ("criteria_set",),
    "criterion": ("criteria_set",),
    "criterion-change": ("criteria_order", "criteria_set", "criteria_delete"),
    "project-categories": ("projects_read",),
    "category-add": ("categories_set",),
    "category": ("categories_set",),
    "category-change": ("categories_order", "categories_set", "categories_delete"),
    "members": ("members_list",),
    "allocation": ("projects_settings_read", "members_list"),
    "allocation-rules": ("projects_settings_change",),
    "allocation-member": ("members_set",),
    "member": ("members_set", "members_remove"),
    "guidelines-read": ("guidelines_acknowledge",),
    "label": ("assignments_next", "assignments_read"),
    "submit": ("assignments_judge",),
    "skip": ("assignments_skip",),
    "flag": ("assignments_flag",),
    "draft": ("assignments_draft",),
    "renew": ("assignments_renew", "assignments_release"),
    "revise": ("assignments_list", "assignments_judge"),
    "reviews": ("reviews_list",),
    "review": ("reviews_read",),
    "review-decide": ("reviews_decide",),
    "statistics": ("statistics_read",),
    "statistics-items": ("statistics_items",),
    "statistics-item": ("comparisons_read", "comparisons_judgments"),
    "my-work": ("assignments_list",),
    **dict.fromkeys(("annotators", "annotator"), ("statistics_read", "members_list")),
    "invitations": ("invitations_list", "invitations_create"),
    "invitation-revoke": ("invitations_revoke",),
    "invitation": ("invitations_accept",),
    "withheld": ("withheld_list",),
    "withheld-decide": ("withheld_decide",),
    "gold": ("gold_list",),
    "gold-make": ("gold_make",),
    "data-prompts": ("prompts_list",),
    "data-comparisons": ("comparisons_list", "statistics_items"),
    "data-annotations": ("judgments_list",),
    "data-responses": ("completions_list",),
    "prompt": ("prompts_read", "completions_list", "comparisons_list"),
    "prompt-new": ("prompts_add",),
    "data-act": ("comparisons_act", "prompts_act"),
    "transfers": ("imports_list", "imports_upload", "formats_list"),
    "transfer": ("imports_read", "imports_preview", "imports_correct", "imports_start", "imports_discard"),
    "export-choose": ("formats_list", "exports_manifest"),
    "export": ("exports_download", "exports_manifest", "exports_dropped"),
    "webhooks": ("webhooks_list", "webhooks_create"),
    "webhook": ("webhooks_read", "webhooks_change", "deliveries_list"),
    "webhook-rotate": ("webhooks_rotate",),
    "webhook-test": ("webhooks_test",),
    "webhook-delete": ("webhooks_delete",),
    "webhook-delivery": ("deliveries_read", "deliveries_resend"),
    "search": ("projects_list", "prompts_list", "checkpoints_list", "runs_list"),
    "rounds": ("rounds_list",),
    "runs": ("runs_list",),
    "runs-compare": ("runs_read", "runs_metrics"),
    "run-describe": ("runs_describe",),
    "run-log": ("runs_log",),
    "round": ("rounds_read",),
    "round-recipe": ("recipes_read", "recipes_change", "rounds_dry_run"),
    "round-draft": ("rounds_draft",),
    **dict.fromkeys(
        (
            *("round-open", "round-rollback", "round-cancel", "round-pause", "round-reopen", "round-again"),
            *("round-resume", "round-start", "round-retry", "round-reject", "round-promote"),
        ),
        ("rounds_act",),
    ),
    "run": ("runs_read", "runs_log", "runs_samples"),
    "run-curves": ("runs_metrics",),
    "run-download": ("runs_archive",),
    "run-tensorboard": ("runs_events",),
    "checkpoints": ("checkpoints_list",),
    "checkpoint": ("checkpoints_read",),
    "checkpoint-describe": ("checkpoints_describe",),
    "checkpoint-verify": ("checkpoints_verify",),
    "checkpoint-card": ("checkpoints_card",),
    "checkpoint-export": ("exports_request",),
    "checkpoint-exports": ("exports_list",),
    "checkpoint-export-download": ("exports_archive",),
    "checkpoint-delete": ("checkpoints_delete",),
    "evaluation": ("checkpoints_read",),
    "evaluation-file": ("checkpoints_evaluation",),
    "drift": ("drift_read",),
    "drift-items": ("drift_items",),
    "drift-measure": ("drift_measure",),
    "snapshot": ("snapshots_list", "snapshots_judgments"),
    "completion": ("completions_list",),
    "leaderboard": ("leaderboard_read",),
    "leaderboard-groups": ("leaderboard_read",),
    "leaderboard-items": ("comparisons_list",),
    "arenas": ("arenas_list",),
    "arena-create": ("arenas_create",),
    "arena-close": ("arenas_close",),
    "arena": ("ballots_next",),
    "arena-begin": ("ballots_next",),
    "arena-ballot": ("ballots_read", "ballots_vote"),
    "compare": ("beside_list",),
    "compare-answer": ("beside_ask",),
    "compare-shown": ("beside_read",),
    "compare-write": ("beside_write",),
    "compare-vote": ("beside_vote",),
    "compare-reveal": ("beside_reveal",),
    "compare-continue": ("beside_continue",),
    "compare-prompts": ("prompts_list",),
    "compare-again": ("beside_regenerate",),
    "compare-next": ("beside_next",),
    "prompt-sets": ("prompt_sets_list",),
    "prompt-set-create": ("prompt_sets_create",),
    "prompt-set": ("prompt_sets_read", "prompts_list"),
    "prompt-set-change": ("prompt_sets_change",),
    "prompt-set-delete": ("prompt_sets_delete",),
    "judges": ("judges_list", "judges_create"),
    "judge": ("judges_list",),
    "judge-set": ("judges_set",),
    "served-model": ("checkpoints_serve",),
}


def test_every_page_names_the_operations_that_do_the_same_or_says_why_there_is_none():
    assert sorted(PAGES) == sorted(TABLE)


def test_every_operation_that_is_named_is_there():
    there = {
        operation["operationId"] for methods in document()["paths"].values() for operation in methods.values()
    }
    named = {name for named in PAGES.values() if not isinstance(named, str) for name in named}
    assert named <= there


def test_the_api_changes_every_setting_that_pages_change():
    on_pages = {name for labels in (ABOUT, ASSIGNMENT, QUALITY, QUESTIONS) for name in labels}
    assert on_pages - set(SettingsSerializer.Meta.fields) == set()
