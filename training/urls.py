"""Pages of rounds, runs and checkpoints."""

from django.urls import URLPattern, path

from training.services.rounds.actions import ACTIONS
from training.views import (
    arenas,
    base_models,
    checkpoints,
    conversations,
    course,
    dashboard,
    embeddings,
    feedback,
    judges,
    leaderboard,
    live,
    openai,
    prompt_sets,
    providers,
    rounds,
    runs,
    side_by_side,
)

# ── Side by side, arenas, the leaderboard ──

_PROJECT = "projects/<slug:slug>/"

_COMPARING: list[URLPattern] = [
    path("compare/", side_by_side.compare, name="compare"),
    path("compare/answer/", side_by_side.compare_answer, name="compare-answer"),
    path("compare/prompts/", side_by_side.compare_prompts, name="compare-prompts"),
    path("compare/<str:slug>/", side_by_side.compare_shown, name="compare-shown"),
    path("compare/<str:slug>/write/", side_by_side.compare_write, name="compare-write"),
    path("compare/<str:slug>/vote/", side_by_side.compare_vote, name="compare-vote"),
    path("compare/<str:slug>/reveal/", side_by_side.compare_reveal, name="compare-reveal"),
    path("compare/<str:slug>/again/", side_by_side.compare_again, name="compare-again"),
    path("compare/<str:slug>/next/", side_by_side.compare_next, name="compare-next"),
    path("compare/<str:slug>/continue/", side_by_side.compare_continue, name="compare-continue"),
    path(f"{_PROJECT}prompt-sets/", prompt_sets.prompt_sets, name="prompt-sets"),
    path(f"{_PROJECT}prompt-sets/create/", prompt_sets.create, name="prompt-set-create"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/", prompt_sets.prompt_set, name="prompt-set"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/change/", prompt_sets.change, name="prompt-set-change"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/delete/", prompt_sets.delete, name="prompt-set-delete"),
    path(f"{_PROJECT}leaderboard/", leaderboard.leaderboard, name="leaderboard"),
    path(f"{_PROJECT}leaderboard/groups/", leaderboard.leaderboard_groups, name="leaderboard-groups"),
    path(f"{_PROJECT}leaderboard/items/", leaderboard.leaderboard_items, name="leaderboard-items"),
    path(f"{_PROJECT}arenas/", arenas.arenas, name="arenas"),
    path(f"{_PROJECT}arenas/create/", arenas.arena_create, name="arena-create"),
    path(f"{_PROJECT}arenas/<int:pk>/close/", arenas.arena_close, name="arena-close"),
    path("arena/<str:slug>/", arenas.arena, name="arena"),
    path("arena/<str:slug>/begin/", arenas.arena_begin, name="arena-begin"),
    path("arena/<str:slug>/<uuid:ballot_id>/", arenas.arena_ballot, name="arena-ballot"),
]

# ── Conversations ──

_BELOW = "projects/<slug:slug>/conversations/"
_CONVERSATION = f"{_BELOW}<uuid:pk>/"
_ARENA_TALK = "arena/<str:slug>/talk/<uuid:pk>/"
_CONVERSATION_SETTINGS = "projects/<slug:slug>/settings/conversations/"

_CONVERSATIONS: list[URLPattern] = [
    path(_BELOW, conversations.conversations, name="conversations"),
    path(f"{_BELOW}begin/", conversations.conversation_begin, name="conversation-begin"),
    path(_CONVERSATION, conversations.conversation, name="conversation"),
    path(f"{_CONVERSATION}say/", conversations.conversation_say, name="conversation-say"),
    path(f"{_CONVERSATION}write/", conversations.conversation_write, name="conversation-write"),
    path(f"{_CONVERSATION}end/", conversations.conversation_end, name="conversation-end"),
    path(_ARENA_TALK, conversations.arena_talk, name="arena-talk"),
    path(f"{_ARENA_TALK}say/", conversations.arena_talk_say, name="arena-talk-say"),
    path(f"{_ARENA_TALK}write/", conversations.arena_talk_write, name="arena-talk-write"),
    path(f"{_ARENA_TALK}vote/", conversations.arena_talk_vote, name="arena-talk-vote"),
    path(f"{_ARENA_TALK}end/", conversations.arena_talk_end, name="arena-talk-end"),
    path(_CONVERSATION_SETTINGS, conversations.conversation_settings, name="conversation-settings"),
    path(
        f"{_CONVERSATION_SETTINGS}tasks/add/",
        conversations.conversation_task_add,
        name="conversation-task-add",
    ),
    path(
        f"{_CONVERSATION_SETTINGS}tasks/<int:pk>/", conversations.conversation_task, name="conversation-task"
    ),
    path(
        f"{_CONVERSATION_SETTINGS}tasks/<int:pk>/archive/",
        conversations.conversation_task_archive,
        name="conversation-task-archive",
    ),
]

# ── Feedback of applications ──

_FEEDBACK = "projects/<slug:slug>/feedback/"
_FEEDBACK_SETTINGS = f"{_FEEDBACK}settings/"

_FEEDBACK_PAGES: list[URLPattern] = [
    path(_FEEDBACK, feedback.feedback, name="feedback"),
    path(f"{_FEEDBACK}requests/<int:pk>/", feedback.feedback_request, name="feedback-request"),
    path(f"{_FEEDBACK}figures/", feedback.figures, name="feedback-figures"),
    path(f"{_FEEDBACK}incidents/", feedback.incidents, name="feedback-incidents"),
    path(f"{_FEEDBACK}incidents/<int:pk>/", feedback.incident, name="feedback-incident"),
    path(_FEEDBACK_SETTINGS, feedback.settings, name="feedback-settings"),
    path(f"{_FEEDBACK_SETTINGS}patterns/", feedback.pattern_test, name="feedback-patterns"),
    path(f"{_FEEDBACK_SETTINGS}rules/", feedback.rule, name="feedback-rule"),
    path(f"{_FEEDBACK_SETTINGS}tokens/", feedback.token, name="feedback-token"),
    path(f"{_FEEDBACK_SETTINGS}keys/", feedback.key, name="feedback-key"),
    path(f"{_FEEDBACK_SETTINGS}erase/", feedback.erase, name="feedback-erase"),
]

# ── Checkpoints and base models ──

_CHECKPOINT = "checkpoints/<str:name>/"
_BASE = "base-models/<str:name>/"
_ADDITIONS = "base-model-additions/"
_DRIFT = "projects/<slug:slug>/drift/"

_REGISTRY: list[URLPattern] = [
    path("base-models/", base_models.base_models, name="base-models"),
    path(_BASE, base_models.base_model, name="base-model"),
    path(f"{_BASE}inspect/", base_models.inspect, name="base-model-inspect"),
    path(f"{_BASE}remove/", base_models.remove, name="base-model-remove"),
    path(_ADDITIONS, base_models.additions, name="base-model-additions"),
    path(f"{_ADDITIONS}new/", base_models.add, name="base-model-add"),
    path(f"{_ADDITIONS}<int:pk>/cancel/", base_models.cancel, name="base-model-cancel"),
    path("projects/<slug:slug>/base-model/", base_models.choose, name="project-base-model"),
    path("providers/", providers.providers, name="providers"),
    path("providers/<int:pk>/", providers.provider, name="provider"),
    path("providers/<int:pk>/test/", providers.provider_test, name="provider-test"),
    path("providers/<int:pk>/models/", providers.provider_add_model, name="provider-add-model"),
    path("providers/<int:pk>/remove/", providers.provider_remove, name="provider-remove"),
    path("checkpoints/", checkpoints.checkpoints, name="checkpoints"),
    path(_CHECKPOINT, checkpoints.checkpoint, name="checkpoint"),
    path(f"{_CHECKPOINT}describe/", checkpoints.describe, name="checkpoint-describe"),
    path(f"{_CHECKPOINT}verify/", checkpoints.verify, name="checkpoint-verify"),
    path(f"{_CHECKPOINT}card/", checkpoints.card, name="checkpoint-card"),
    path(f"{_CHECKPOINT}export/", checkpoints.export, name="checkpoint-export"),
    path(f"{_CHECKPOINT}exports/", checkpoints.exports, name="checkpoint-exports"),
    path(f"{_CHECKPOINT}exports/<int:pk>/", checkpoints.export_download, name="checkpoint-export-download"),
    path(f"{_CHECKPOINT}delete/", checkpoints.delete, name="checkpoint-delete"),
    path(_DRIFT, checkpoints.drift, name="drift"),
    path(f"{_DRIFT}measure/", checkpoints.measure, name="drift-measure"),
    path(f"{_DRIFT}progress/", checkpoints.progress, name="drift-progress"),
    path(f"{_DRIFT}<str:name>/<int:number>/", checkpoints.items, name="drift-items"),
]

# ── Lessons ──

_LESSON = "learn/<slug:slug>/"

_COURSE: list[URLPattern] = [
    path("learn/", course.course, name="course"),
    path(_LESSON, course.lesson, name="lesson"),
    path(f"{_LESSON}run/", course.start, name="lesson-run"),
    path(f"{_LESSON}stop/", course.stop, name="lesson-stop"),
    path(f"{_LESSON}live/", course.live, name="lesson-live"),
    path("projects/<slug:slug>/class/", course.class_view, name="course-class"),
]

# ── Rounds, runs, AI annotators, and all of them ──

_ROUND = "projects/<slug:slug>/rounds/<int:number>/"

urlpatterns: list[URLPattern] = [
    path("projects/<slug:slug>/dashboard/", dashboard.dashboard, name="dashboard"),
    path("projects/<slug:slug>/dashboard/quality/", dashboard.quality, name="dashboard-quality"),
    path("projects/<slug:slug>/rounds/", rounds.rounds, name="rounds"),
    path("projects/<slug:slug>/rounds/new/", rounds.draft, name="round-draft"),
    path(_ROUND, rounds.round_page, name="round"),
    path(f"{_ROUND}progress/", rounds.progress, name="round-progress"),
    path(f"{_ROUND}recipe/", rounds.recipe, name="round-recipe"),
    *(path(f"{_ROUND}{name}/", rounds.act, {"action": name}, name=f"round-{name}") for name in ACTIONS),
    path("projects/<slug:slug>/runs/", runs.runs, name="runs"),
    path("projects/<slug:slug>/runs/compare/", runs.compare, name="runs-compare"),
    path("runs/<int:pk>/", runs.run, name="run"),
    path("runs/<int:pk>/live/", runs.live, name="run-live"),
    path("runs/<int:pk>/log/", runs.log, name="run-log"),
    path("runs/<int:pk>/describe/", runs.describe, name="run-describe"),
    path("runs/<int:pk>/curves/", runs.curves, name="run-curves"),
    path("runs/<int:pk>/download/", runs.download, name="run-download"),
    path("runs/<int:pk>/tensorboard/", runs.tensorboard, name="run-tensorboard"),
    path("checkpoints/<str:name>/evaluation/", checkpoints.evaluation, name="evaluation"),
    path("checkpoints/<str:name>/evaluation/file/", checkpoints.evaluation_file, name="evaluation-file"),
    path("snapshots/<str:digest>/", runs.snapshot, name="snapshot"),
    path("completions/<int:pk>/", runs.completion, name="completion"),
    path("projects/<slug:slug>/judges/", judges.judges, name="judges"),
    path("projects/<slug:slug>/judges/<int:pk>/", judges.judge, name="judge"),
    path("projects/<slug:slug>/judges/<int:pk>/set/", judges.judge_set, name="judge-set"),
    path("projects/<slug:slug>/prompts/near-duplicates/", embeddings.near_duplicates, name="near-duplicates"),
    path("projects/<slug:slug>/prompts/embed/", embeddings.embed, name="embed-prompts"),
    path("projects/<slug:slug>/prompts/embed/cancel/", embeddings.cancel, name="embed-cancel"),
    path("projects/<slug:slug>/prompts/embed/progress/", embeddings.progress, name="embed-progress"),
    path("projects/<slug:slug>/prompts/<int:pk>/similar/", embeddings.similar, name="prompt-similar"),
    path("projects/<slug:slug>/rubric-drafts/", judges.drafts, name="rubric-drafts"),
    path("projects/<slug:slug>/rubric-drafts/<int:pk>/", judges.draft, name="rubric-draft"),
    path("projects/<slug:slug>/suggestions/", judges.suggestions, name="suggestions"),
    path("projects/<slug:slug>/live/", live.live, name="live"),
    path("projects/<slug:slug>/live/line/", live.line, name="live-line"),
    path("served-models/new/", judges.served_model, name="served-model"),
    path("v1/models", openai.models, name="v1-models"),
    path("v1/models/<str:name>", openai.model, name="v1-model"),
    path("v1/chat/completions", openai.chat_completions, name="v1-chat-completions"),
    path("v1/completions", openai.completions, name="v1-completions"),
    path("v1/<path:rest>", openai.unknown, name="v1-unknown"),
    *_COMPARING,
    *_CONVERSATIONS,
    *_FEEDBACK_PAGES,
    *_REGISTRY,
    *_COURSE,
]
