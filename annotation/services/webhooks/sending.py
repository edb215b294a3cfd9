"""Sending of one message to one address: its outcome, within bounds of time and size."""

import asyncio
import functools
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from annotation.services.webhooks.addresses import AddressRefusedError, AsyncGuardedTransport, Policy

RECEIVERS = Policy(setting="RONDO_WEBHOOK_HOSTS", what="webhook", allows_query=True, only_https=True)
"""Rule for the addresses that may receive messages."""

SECONDS = 15.0
"""Longest duration of an attempt, however slow its receiver."""
KEPT_CHARACTERS = 1_000
"""Characters of an answer that are kept for people to read."""

_READ_BYTES = 4 * KEPT_CHARACTERS
_LONGEST_WAIT = 24 * 3600
_TELLS_A_TIME = (429, 503)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of an attempt."""

    status: int | None = None
    error: str = ""
    """Reason for the failure, for people; empty where it succeeded."""
    answer: str = ""
    milliseconds: int = 0
    retry_after: int | None = None
    """Seconds that the receiver asks to wait; None where it does not ask."""


def post(url: str, *, headers: Mapping[str, str], body: bytes) -> Outcome:
    """Send a message once. Never raises: what went wrong is in the outcome.

    Only a status of 200 to 299 is success. No redirect is followed, and no cookie is kept. The address is
    looked at again here, where it is connected to.
    """
    began = time.monotonic()
    try:
        status, answer, retry_after = asyncio.run(_post(url, headers, body))
    except TimeoutError:
        outcome = Outcome(error=f"There was no answer within {SECONDS:g} seconds.")
    except AddressRefusedError as refusal:
        outcome = Outcome(error=str(refusal))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        outcome = Outcome(error=f"It could not be sent: {str(error) or type(error).__name__}.")
    else:
        outcome = Outcome(status=status, answer=answer, retry_after=retry_after, error=_fault_of(status))
    return Outcome(
        status=outcome.status,
        error=outcome.error,
        answer=outcome.answer,
        retry_after=outcome.retry_after,
        milliseconds=int((time.monotonic() - began) * 1000),
    )


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, int | None]:
    RECEIVERS.check_url(url)
    inner = httpx.AsyncHTTPTransport(verify=_trusted(), trust_env=False)
    transport = AsyncGuardedTransport(RECEIVERS, inner=inner)
    async with asyncio.timeout(SECONDS) as deadline:
        async with (
            httpx.AsyncClient(transport=transport, trust_env=False, timeout=SECONDS) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            # The status is known: from here on only the text of the answer is missing.
            deadline.reschedule(None)
            return answer.status_code, await _beginning(answer), _retry_after(answer)


async def _beginning(answer: httpx.Response) -> str:
    """The first characters of an answer, as they came over the line: nothing is unpacked."""
    content = bytearray()
    try:
        async with asyncio.timeout(SECONDS / 3):
            async for part in answer.aiter_raw():
                content += part
                if len(content) >= _READ_BYTES:
                    break
    except (TimeoutError, httpx.HTTPError):
        # What came is shown, and what did not come changes nothing.
        pass
    # PostgreSQL takes no NUL.
    return bytes(content[:_READ_BYTES]).decode("utf-8", "replace").replace("\x00", "\ufffd")[:KEPT_CHARACTERS]


def _retry_after(answer: httpx.Response) -> int | None:
    value = answer.headers.get("Retry-After", "")
    if answer.status_code not in _TELLS_A_TIME or not (value.isascii() and value.isdecimal()):
        return None
    return min(int(value[:9]), _LONGEST_WAIT)


def _fault_of(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"It answered {status}, and redirects are not followed: enter the address that it leads to."
    return f"It answered {status}, which is no success."


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificates; read once, for that takes longer than most requests."""
    return httpx.create_ssl_context(trust_env=False)
