"""Errors of a hub, each with its remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_ENDPOINT = "https://huggingface.co"


class HubError(Exception):
    """A hub's refusal, or a reply that cannot be used."""


class HubUnreachableError(HubError):
    """The hub does not answer. The same may be tried again."""


def endpoint() -> str:
    """Return the hub's address: HF_ENDPOINT, or that of huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


@contextmanager
def translate_hub_errors(repository: str, revision: str) -> Iterator[None]:
    """Raise errors of `huggingface_hub` and its HTTP client as `HubError`."""
    # Imported late: it takes a second, and most processes never ask a hub.
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{repository} is gated. Accept its terms on {endpoint()}/{repository} with the account of "
            "RONDO_HUB_TOKEN, then try again."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repository} has no revision {revision!r}. Name a branch, tag or commit.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{endpoint()} has no model {repository}, or does not show it. Check the spelling; for a private "
            "model set RONDO_HUB_TOKEN to a token that may read it."
        ) from error
    except errors.HFValidationError as error:
        raise HubError(f"{repository!r} is no model id. Write OWNER/NAME, as on {endpoint()}.") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise _unreachable(error) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 429 or status >= 500:
            raise HubUnreachableError(
                f"The hub at {endpoint()} answered {status}. Try again later."
            ) from error
        raise HubError(f"The hub at {endpoint()} refused {repository} with status {status}.") from error
    except OSError:
        # The disk: whoever called knows the folder.
        raise
    except Exception as error:
        # Only requests are made in here, and the errors of the client's transport have no public name.
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> HubUnreachableError:
    return HubUnreachableError(
        f"The hub at {endpoint()} cannot be reached ({_reason(error)}). Connect this machine to it, set "
        "HF_ENDPOINT to a mirror, or copy the model's folder here and add it as a folder."
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
