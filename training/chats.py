"""What a model is shown of a prompt."""

from annotation.models import Prompt
from training.contract import Message, Passage, with_context


def chat_of(prompt: Prompt) -> list[dict[str, str]]:
    """The chat that a model answers: the messages, with the context passages before the last question.

    Training and scoring put them there in the same way, so the policy is judged on what it saw.
    """
    chat = with_context(
        [Message(role=turn["role"], content=turn["content"]) for turn in prompt.messages],
        [Passage(title=one["title"], sentences=tuple(one["sentences"])) for one in prompt.context],
    )
    return [{"role": turn.role, "content": turn.content} for turn in chat]
