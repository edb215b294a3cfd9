"""Client of a Hugging Face hub: base models are looked up and downloaded. Imports no Django and no torch."""

from training.files.hub.errors import HubError, HubUnreachableError
from training.files.hub.lookup import HubModel, look_up

__all__ = ["HubError", "HubModel", "HubUnreachableError", "look_up"]
