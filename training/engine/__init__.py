"""Clients of model servers over HTTP: Rondo's server, and any with OpenAI's interface."""

from training.engine.client import (
    Answer,
    Delta,
    Engine,
    EngineError,
    EngineUnavailableError,
    EngineUnknownModelError,
    Health,
    Scores,
    SegmentScore,
    TokenKl,
)
from training.engine.servers import (
    AddressError,
    Engines,
    Upstream,
    check_url,
    engine_for,
    key_of,
    upstream_of,
)

__all__ = [
    "AddressError",
    "Answer",
    "Delta",
    "Engine",
    "EngineError",
    "EngineUnavailableError",
    "EngineUnknownModelError",
    "Engines",
    "Health",
    "Scores",
    "SegmentScore",
    "TokenKl",
    "Upstream",
    "check_url",
    "engine_for",
    "key_of",
    "upstream_of",
]
