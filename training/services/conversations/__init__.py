"""Live conversations with blind checkpoints: settings, talking, generating."""

from training.services.conversations.generating import generate_turn, stream_turn
from training.services.conversations.settings import save_conversation_settings
from training.services.conversations.talking import begin, begin_in_arena, say, take_up_turn
from training.services.conversations.voting import vote_on_turn

__all__ = [
    "begin",
    "begin_in_arena",
    "generate_turn",
    "save_conversation_settings",
    "say",
    "stream_turn",
    "take_up_turn",
    "vote_on_turn",
]
