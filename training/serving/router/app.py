"""The HTTP side of the router: each request goes to the server of its model's base."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from training.serving.http import Keys, RequestError, exception_handlers, read_body, wait_for_disconnect
from training.serving.metrics import CONTENT_TYPE
from training.serving.router.supervisor import ASLEEP, BaseProcess, Bases, Supervisor

# ── Metrics of several bases as one page for Prometheus ──


def merged_page(pages: Mapping[str, str], processes: Sequence[BaseProcess]) -> bytes:
    """Return the metrics of every base with the base as a label, and those of the router.

    pages: by base, as its server writes them.
    """
    registry = CollectorRegistry()
    registry.register(_Merged(pages, processes))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, pages: Mapping[str, str], processes: Sequence[BaseProcess]) -> None:
        self._pages, self._processes = pages, processes

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for base, text in self._pages.items():
            for family in text_string_to_metric_families(text):
                metric = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    metric.samples.append(sample._replace(labels={**sample.labels, "base": base}))
        yield from families.values()
        yield from self._of_router()

    def _of_router(self) -> Iterator[Metric]:
        awake = GaugeMetricFamily("rondo_base_awake", "Whether the base has a server.", labels=["base"])
        memory = GaugeMetricFamily("rondo_base_memory_bytes", "Memory of its server.", labels=["base"])
        flight = GaugeMetricFamily("rondo_base_in_flight", "Requests that it has.", labels=["base"])
        for process in self._processes:
            awake.add_metric([process.name], float(process.is_running))
            memory.add_metric([process.name], float(process.memory_bytes))
            flight.add_metric([process.name], float(process.in_flight))
        yield from (awake, memory, flight)


# ── App ──


_SENT = ("authorization", "content-type", "x-request-timeout", "x-rondo-client")
_RETURNED = ("content-type", "cache-control", "retry-after", "x-accel-buffering", "www-authenticate")
_ASK_SECONDS = 2.0
_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/score", "/v1/kl", "/v1/embeddings")


@dataclass(frozen=True, kw_only=True)
class Router:
    """Components that the routes use."""

    keys: Keys
    bases: Bases
    supervisor: Supervisor
    client: httpx.AsyncClient
    max_body_bytes: int

    # ── Routes ────────────────────────────────────────────────────────────────────────

    async def health(self, request: Request) -> Response:
        """GET /health: needs no key, but tells models and bases only to those who have it."""
        status = self.status()
        if self.keys.number_of(request) is not None:
            entries = await asyncio.to_thread(self.bases.entries)
            status["models"] = [entry["id"] for entry in entries]
            status["bases"] = await asyncio.gather(*map(self._of_base, self.supervisor.processes))
            status["waiting"] = sum(base["waiting"] for base in status["bases"])
            status["computing"] = any(base["computing"] for base in status["bases"])
        return JSONResponse(status)

    def status(self) -> dict[str, Any]:
        """Return the state of the default base; one that is asleep is ready, since a request wakes it."""
        status = dict(self.supervisor.process(self.bases.default).status)
        if status["state"] == ASLEEP:
            status["state"] = "ready"
        return {name: status.get(name) for name in ("state", "message", "progress")}

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        self.keys.require(request)
        return JSONResponse({"object": "list", "data": await asyncio.to_thread(self.bases.entries)})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        self.keys.require(request)
        return JSONResponse(await asyncio.to_thread(self.bases.entry, request.path_params["name"]))

    async def figures(self, request: Request) -> Response:
        """GET /metrics: those of every base that is awake, with the base as a label."""
        self.keys.require(request)
        awake = [process for process in self.supervisor.processes if process.status["state"] == "ready"]
        pages = await asyncio.gather(*(self._ask(process, "/metrics") for process in awake))
        texts = {
            process.name: page.text for process, page in zip(awake, pages, strict=True) if page is not None
        }
        page = merged_page(texts, self.supervisor.processes)
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    async def forward(self, request: Request) -> Response:
        """POST /v1/…: pass the request on to the server of its model's base, and its answer back."""
        self.keys.require(request)
        content = await read_body(request, self.max_body_bytes)
        base = await asyncio.to_thread(self._base_for, content)
        stack = contextlib.AsyncExitStack()
        try:
            answer = await _unless_gone(request, self._open(stack, request, base, content))
        except BaseException:
            await stack.aclose()
            raise
        headers = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
        return StreamingResponse(_pieces(stack, answer), status_code=answer.status_code, headers=headers)

    # ── Steps ─────────────────────────────────────────────────────────────────────────

    async def _open(
        self, stack: contextlib.AsyncExitStack, request: Request, base: str, content: bytes
    ) -> httpx.Response:
        """Return the answer of the base's server, of which only the head is there."""
        url = await stack.enter_async_context(self.supervisor.using(base))
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        try:
            sent = self.client.build_request(
                "POST", f"{url}{request.url.path}", content=content, headers=headers
            )
            answer = await self.client.send(sent, stream=True)
        except httpx.TransportError as error:
            message = f"The server of {base} went away ({type(error).__name__}). Ask again."
            raise RequestError(503, message, code="base_gone", retry_after=2) from error
        stack.push_async_callback(answer.aclose)
        return answer

    def _base_for(self, content: bytes) -> str:
        """Return the base of the model in a body. Whatever else is in it, the base's server checks."""
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            # The server says what is wrong with it.
            return self.bases.default
        values: Mapping[str, Any] = body if isinstance(body, dict) else {}
        model, reference = values.get("model"), values.get("reference")
        if not isinstance(model, str):
            return self.bases.default
        base = self.bases.base_of(model)
        if isinstance(reference, str) and self.bases.base_of(reference) != base:
            message = (
                f"'{model}' stands on base '{base}' and '{reference}' on another: log-probabilities of "
                "different tokens do not compare. Name a reference on the same base."
            )
            raise RequestError(409, message, code="base_mismatch", param="reference")
        return base

    async def _of_base(self, process: BaseProcess) -> dict[str, Any]:
        """Return the state and the queue of a base."""
        status = process.status
        health: dict[str, Any] = {}
        if status["state"] == "ready" and (answer := await self._ask(process, "/health")) is not None:
            health = answer.json()
        return {
            "name": process.name,
            **{name: status.get(name) for name in ("state", "message", "progress")},
            "gpu": process.gpu if process.is_running else None,
            "memory_bytes": await asyncio.to_thread(lambda: process.memory_bytes),
            "in_flight": process.in_flight,
            "waiting": int(health.get("waiting", 0)),
            "computing": bool(health.get("computing", False)),
            "used_at": process.used_at,
        }

    async def _ask(self, process: BaseProcess, path: str) -> httpx.Response | None:
        headers = {"Authorization": f"Bearer {self.keys.values[0]}"}
        try:
            answer = await self.client.get(
                f"{process.status['url']}{path}", headers=headers, timeout=_ASK_SECONDS
            )
        except (httpx.HTTPError, KeyError):
            return None
        return answer if answer.is_success else None


async def _unless_gone(request: Request, work: Any) -> httpx.Response:
    """Return the result of `work`, which is cancelled as soon as the client closes its connection."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        answer: httpx.Response = working.result()
        return answer
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _pieces(stack: contextlib.AsyncExitStack, answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the answer as it comes; closing this early closes the connection, which calls the work off."""
    async with stack:
        with contextlib.suppress(httpx.TransportError):
            # An answer that is cut off is one without its end: the client sees that.
            async for piece in answer.aiter_raw():
                yield piece


def build_application(router: Router) -> Starlette:
    """Return the application: it wakes the default base as it starts, and stops all as it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(_application: Starlette) -> AsyncIterator[None]:
        await router.supervisor.start()
        yield
        await router.supervisor.stop()
        await router.client.aclose()

    return Starlette(
        routes=[
            Route("/health", router.health, methods=["GET"]),
            Route("/v1/models", router.models, methods=["GET"]),
            Route("/v1/models/{name}", router.model, methods=["GET"]),
            *(Route(path, router.forward, methods=["POST"]) for path in _ROUTES),
            Route("/metrics", router.figures, methods=["GET"]),
        ],
        exception_handlers=exception_handlers(),
        lifespan=lifespan,
    )
