"""The HTTP side: routes, the key, limits on bodies, streams, clients that went away."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from training.serving.catalogue import Catalogue
from training.serving.http import (
    Keys,
    RequestError,
    exception_handlers,
    from_validation,
    read_body,
    wait_for_disconnect,
)
from training.serving.metrics import CONTENT_TYPE, Metrics
from training.serving.requests import (
    ChatRequest,
    CompletionRequest,
    DivergenceRequest,
    EmbeddingRequest,
    RequestBody,
    SamplingRequest,
    ScoreRequest,
)
from training.serving.startup import Startup
from training.serving.worker import ServingJob, Work, WorkerThread

if TYPE_CHECKING:
    from training.rlhf.rollout.samples import Sample
    from training.serving.answers import CompletionResponse
    from training.serving.model import Model

Body = TypeVar("Body", bound=BaseModel)

_TIMEOUT_HEADER = "X-Request-Timeout"
"""Seconds that an answer may take, for clients that cannot put it into the body."""
_CLIENT_HEADER = "X-Rondo-Client"
"""On whose behalf the web application asks: the bound per key counts each of these by itself."""


@dataclass(frozen=True, kw_only=True)
class ServerComponents:
    """Components that the routes use."""

    keys: Keys
    """The web application, whose key is the first, may say on whose behalf it asks."""
    catalogue: Catalogue
    startup: Startup
    worker: WorkerThread
    metrics: Metrics
    seconds_per_request: float
    max_body_bytes: int
    seconds_to_stop: float

    # ── Routes ────────────────────────────────────────────────────────────────────────

    async def health(self, request: Request) -> Response:
        """GET /health: needs no key, but tells the models only to those who have it."""
        status = asdict(self.startup.status)
        if self.keys.number_of(request) is not None:
            status["models"] = await asyncio.to_thread(self.catalogue.names)
            status["waiting"] = self.worker.waiting
            status["computing"] = self.worker.computing
        return JSONResponse(status)

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        self.keys.require(request)
        entries = await asyncio.to_thread(self.catalogue.entries)
        return JSONResponse({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        self.keys.require(request)
        entry = await asyncio.to_thread(self.catalogue.entry, request.path_params["name"])
        return JSONResponse(entry)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        body = await self._read(request, ChatRequest)
        model = self.startup.model
        # Not on the generation thread: a large schema takes as long as many tokens.
        constraint = await asyncio.to_thread(model.structures.constraint, body)
        job = self._submit(request, body, lambda emit: model.chat(body, constraint, emit))
        return await self._answer(request, body, model, job)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        body = await self._read(request, CompletionRequest)
        model = self.startup.model
        job = self._submit(request, body, lambda emit: model.complete(body, emit))
        return await self._answer(request, body, model, job)

    async def score(self, request: Request) -> Response:
        """POST /v1/score: what a reward model thinks of completions of one chat."""
        body = await self._read(request, ScoreRequest)
        model = self.startup.model
        job = self._submit(request, body, lambda emit: model.score(body, emit))
        async with _called_off_with_client(request, job):
            async for scored in job.events():
                answer: dict[str, Any] = {"object": "list", "model": body.model, "digest": scored.digest}
                answer["scores"] = scored.scores
                if body.heads:
                    answer["heads"] = scored.heads
                    answer["granularity"], answer["context"] = scored.granularity, scored.context
                    if scored.groups:
                        answer["groups"] = scored.groups
                    answer["segments"] = {
                        head: [[reward._asdict() for reward in rewards] for rewards in of_completions]
                        for head, of_completions in scored.segments.items()
                    }
                return JSONResponse(answer)
        raise ClientDisconnect

    async def divergence(self, request: Request) -> Response:
        """POST /v1/kl: how far a model is from a reference, token by token of one answer."""
        body = await self._read(request, DivergenceRequest)
        model = self.startup.model
        job = self._submit(request, body, lambda emit: model.divergence(body, emit))
        async with _called_off_with_client(request, job):
            async for result in job.events():
                reference = body.reference or self.catalogue.base_name
                named = {"object": "list", "model": body.model, "reference": reference}
                return JSONResponse(named | asdict(result))
        raise ClientDisconnect

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings: texts as vectors of length 1, the means of a model's last hidden states."""
        body = await self._read(request, EmbeddingRequest)
        model = self.startup.model
        job = self._submit(request, body, lambda emit: model.embed(body, emit))
        async with _called_off_with_client(request, job):
            async for result in job.events():
                encode = _base64 if body.encoding_format == "base64" else list
                data = [
                    {"object": "embedding", "index": index, "embedding": encode(vector)}
                    for index, vector in enumerate(result.vectors)
                ]
                usage = {"prompt_tokens": result.tokens, "total_tokens": result.tokens}
                return JSONResponse({"object": "list", "model": body.model, "data": data, "usage": usage})
        raise ClientDisconnect

    async def figures(self, request: Request) -> Response:
        """GET /metrics, as Prometheus reads it; needs the key."""
        self.keys.require(request)
        return Response(self.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    # ── Steps ─────────────────────────────────────────────────────────────────────────

    def _submit(self, request: Request, body: RequestBody, work: Work) -> ServingJob:
        number = self.keys.require(request)
        client = f"{number}"
        if number == 0:
            client += request.headers.get(_CLIENT_HEADER, "")[:200]
        return self.worker.submit(
            work, route=request.url.path, client=client, seconds=self._seconds(request, body)
        )

    def _seconds(self, request: Request, body: RequestBody) -> float:
        """Return the request's time limit in seconds: the least of body, header and server."""
        limits = [self.seconds_per_request] + ([body.timeout] if body.timeout is not None else [])
        header = request.headers.get(_TIMEOUT_HEADER)
        if header is not None:
            try:
                seconds = float(header)
            except ValueError:
                seconds = math.nan
            if not 0 < seconds < math.inf:
                message = f"Invalid value for the header {_TIMEOUT_HEADER}: seconds above 0 are expected."
                raise RequestError(400, message, code="invalid_value", param=_TIMEOUT_HEADER)
            limits.append(seconds)
        return min(limits)

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        """The validated body. The key comes first: an outsider learns nothing of what is understood."""
        self.keys.require(request)
        content = await read_body(request, self.max_body_bytes)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            raise from_validation(error) from None

    async def _answer(
        self, request: Request, body: SamplingRequest, model: Model, job: ServingJob
    ) -> Response:
        from training.serving.answers import CompletionResponse

        events = job.events()
        async with _called_off_with_client(request, job):
            # The job's first event says that the request is in order; an error has a status still.
            started = await anext(events, None)
            if started is None:
                raise ClientDisconnect
            answer = CompletionResponse(request=body, started=started, tokenizer=model.backbone.tokenizer)
            if not body.stream:
                async for generated in events:
                    return JSONResponse(answer.whole(generated.samples))
                raise ClientDisconnect
        return StreamingResponse(
            _stream(answer, events, job),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def _stream(
    answer: CompletionResponse, events: AsyncIterator[Any], job: ServingJob
) -> AsyncIterator[bytes]:
    """Server-sent events; closing this early, as happens when the client goes, calls the job off."""
    from training.rlhf.rollout.samples import Delta
    from training.serving.answers import DONE, event

    opened: set[int] = set()
    samples: list[Sample] = []
    try:
        async for happened in events:
            if not isinstance(happened, Delta):
                samples = happened.samples
                continue
            choice = happened.prompt * answer.request.samples + happened.sample
            if answer.is_chat and choice not in opened:
                opened.add(choice)
                yield event(answer.opening(choice))
            yield event(answer.piece(happened))
        options = answer.request.stream_options
        if options is not None and options.include_usage:
            yield event(answer.usage_piece(samples))
        yield DONE
    except RequestError as error:
        # The status line is long gone: an error can only be said inside the stream.
        yield event(error.body())
    finally:
        job.cancel()


@contextlib.asynccontextmanager
async def _called_off_with_client(request: Request, job: ServingJob) -> AsyncIterator[None]:
    """Inside, the job is cancelled as soon as the client closes its connection."""

    async def watch() -> None:
        await wait_for_disconnect(request)
        job.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        job.cancel()
        raise
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


# ── Application ───────────────────────────────────────────────────────────────────────


def build_application(server: ServerComponents) -> Starlette:
    """Return the application: it begins to fetch and load as it starts, and calls all off as it stops."""

    @contextlib.asynccontextmanager
    async def lifespan(_application: Starlette) -> AsyncIterator[None]:
        server.startup.start()
        server.worker.start()
        yield
        await asyncio.to_thread(server.startup.stop)
        await asyncio.to_thread(server.worker.stop, server.seconds_to_stop)

    return Starlette(
        routes=[
            Route("/health", server.health, methods=["GET"]),
            Route("/v1/models", server.models, methods=["GET"]),
            Route("/v1/models/{name}", server.model, methods=["GET"]),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/completions", server.completions, methods=["POST"]),
            Route("/v1/score", server.score, methods=["POST"]),
            Route("/v1/kl", server.divergence, methods=["POST"]),
            Route("/v1/embeddings", server.embeddings, methods=["POST"]),
            Route("/metrics", server.figures, methods=["GET"]),
        ],
        exception_handlers=exception_handlers(),
        lifespan=lifespan,
    )
