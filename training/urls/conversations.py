"""Live conversations with checkpoints."""

from django.urls import URLPattern, path

from training.views.conversations import arena, settings, talking

_BELOW = "projects/<slug:slug>/conversations/"
_ONE = f"{_BELOW}<uuid:pk>/"
_ARENA = "arena/<str:slug>/talk/<uuid:pk>/"
_SETTINGS = "projects/<slug:slug>/settings/conversations/"

patterns: list[URLPattern] = [
    path(_BELOW, talking.conversations, name="conversations"),
    path(f"{_BELOW}begin/", talking.conversation_begin, name="conversation-begin"),
    path(_ONE, talking.conversation, name="conversation"),
    path(f"{_ONE}say/", talking.conversation_say, name="conversation-say"),
    path(f"{_ONE}write/", talking.conversation_write, name="conversation-write"),
    path(f"{_ONE}end/", talking.conversation_end, name="conversation-end"),
    path(_ARENA, arena.arena_talk, name="arena-talk"),
    path(f"{_ARENA}say/", arena.arena_talk_say, name="arena-talk-say"),
    path(f"{_ARENA}write/", arena.arena_talk_write, name="arena-talk-write"),
    path(f"{_ARENA}vote/", arena.arena_talk_vote, name="arena-talk-vote"),
    path(f"{_ARENA}end/", arena.arena_talk_end, name="arena-talk-end"),
    path(_SETTINGS, settings.conversation_settings, name="conversation-settings"),
    path(f"{_SETTINGS}tasks/add/", settings.conversation_task_add, name="conversation-task-add"),
    path(f"{_SETTINGS}tasks/<int:pk>/", settings.conversation_task, name="conversation-task"),
    path(
        f"{_SETTINGS}tasks/<int:pk>/archive/",
        settings.conversation_task_archive,
        name="conversation-task-archive",
    ),
]
