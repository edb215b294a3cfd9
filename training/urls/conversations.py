"""Live conversations with checkpoints."""

from django.urls import URLPattern, path

from training.views import conversations

_BELOW = "projects/<slug:slug>/conversations/"
_ONE = f"{_BELOW}<uuid:pk>/"
_ARENA = "arena/<str:slug>/talk/<uuid:pk>/"
_SETTINGS = "projects/<slug:slug>/settings/conversations/"

patterns: list[URLPattern] = [
    path(_BELOW, conversations.conversations, name="conversations"),
    path(f"{_BELOW}begin/", conversations.conversation_begin, name="conversation-begin"),
    path(_ONE, conversations.conversation, name="conversation"),
    path(f"{_ONE}say/", conversations.conversation_say, name="conversation-say"),
    path(f"{_ONE}write/", conversations.conversation_write, name="conversation-write"),
    path(f"{_ONE}end/", conversations.conversation_end, name="conversation-end"),
    path(_ARENA, conversations.arena_talk, name="arena-talk"),
    path(f"{_ARENA}say/", conversations.arena_talk_say, name="arena-talk-say"),
    path(f"{_ARENA}write/", conversations.arena_talk_write, name="arena-talk-write"),
    path(f"{_ARENA}vote/", conversations.arena_talk_vote, name="arena-talk-vote"),
    path(f"{_ARENA}end/", conversations.arena_talk_end, name="arena-talk-end"),
    path(_SETTINGS, conversations.conversation_settings, name="conversation-settings"),
    path(f"{_SETTINGS}tasks/add/", conversations.conversation_task_add, name="conversation-task-add"),
    path(f"{_SETTINGS}tasks/<int:pk>/", conversations.conversation_task, name="conversation-task"),
    path(
        f"{_SETTINGS}tasks/<int:pk>/archive/",
        conversations.conversation_task_archive,
        name="conversation-task-archive",
    ),
]
