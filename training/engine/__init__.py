"""Clients of model servers over HTTP: Rondo's server, and any with OpenAI's interface."""

from training.engine.addresses import AddressError, check_url
from training.engine.client import Engine
from training.engine.errors import EngineError, EngineUnavailableError, EngineUnknownModelError
from training.engine.results import Answer, Delta, Health, Scores, SegmentScore, TokenKl
from training.engine.servers import Engines, Upstream, engine_for, key_of, upstream_of

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
