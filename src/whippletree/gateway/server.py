"""The gateway: an HTTP face for sessions, in the event loop that samples and trains.

Invariant: the session is named by the URL (`/s/SESSION/...`) or by the API key, and by nothing that a harness may drop;
a reply's first byte is sent after its last token was sampled, but for keep-alives.
"""

from __future__ import annotations

import asyncio
import resource
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from whippletree.errors import ContextOverflow, GatewayError
from whippletree.gateway.bodies import Bodies
from whippletree.gateway.dialects import CHAT_COMPLETIONS, GEMINI, MESSAGES, RESPONSES
from whippletree.gateway.dialects.base import CONTEXT_LENGTH, Dialect, DialectError, ascii_json
from whippletree.gateway.dialects.messages import count_tokens_reply
from whippletree.gateway.wire import Answer, WireSession
from whippletree.types import Completion, Json, Rollout

MAX_BODY = 64 << 20
"""Bytes of one request."""
KEEP_ALIVE_S = 10.0
"""Between two signs of life while a streamed reply is being sampled."""
IDLE_S = 600
"""Until a connection between two calls is closed: longer than clients keep one, so that none is closed under a request.
"""
_KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")

Finder = Callable[[str], WireSession | None]


@dataclass(frozen=True, slots=True)
class Ending:
    """What is said of a session when it is ended from outside."""

    reward: float | None = None
    """In [0, 1]."""
    task: str = ""
    harness: str = ""


Ender = Callable[[str, Ending], Awaitable[Rollout | None]]


class Gateway:
    """Sessions by key, and the servers in front of them.

    Where given, `find` makes the sessions that are not known, and `end` is what `POST /s/SESSION/end` does.
    """

    def __init__(
        self,
        *,
        model: str = "whippletree",
        find: Finder | None = None,
        end: Ender | None = None,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._model, self._find, self._end, self._keep_alive_s = model, find, end, keep_alive_s
        self._sessions: dict[str, WireSession] = {}
        self._servers: list[asyncio.Server] = []
        self._config = uvicorn.Config(
            _app(self), lifespan="off", access_log=False, log_config=None, ws="none", timeout_keep_alive=IDLE_S
        )
        self._state = ServerState()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):  # a socket for each rollout and connection
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))

    def open(self, session: WireSession, key: str | None = None) -> str:
        """Register a session; returns its key, letters and digits that cannot be guessed."""
        key = key or secrets.token_hex(12)
        self._sessions[key] = session
        return key

    def close(self, key: str) -> None:
        """Forget a session; safe to call twice. Later requests get status 404."""
        self._sessions.pop(key, None)

    @property
    def model(self) -> str:
        return self._model

    async def listen(self, sock: socket.socket) -> asyncio.Server:
        """Accept connections on a listening socket, until the server that is returned is closed."""
        if not self._config.loaded:
            self._config.load()
        # Else the second part of a reply waits for the client's delayed acknowledgement of the first, some 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = await asyncio.get_running_loop().create_server(self._protocol, sock=sock)
        self._servers.append(server)
        return server

    async def stop(self) -> None:
        """Close every socket, and every connection that is still open."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        self._servers.clear()
        if tasks := list(self._state.tasks):
            _, late = await asyncio.wait(tasks, timeout=1.0)
            for task in late:
                task.cancel()

    def session(self, request: HttpRequest) -> WireSession | None:
        key = request.path_params.get("key") or _api_key(request)
        found = self._sessions.get(key)
        if found is None and self._find is not None and key and (found := self._find(key)) is not None:
            self._sessions[key] = found
        return found

    async def answer(self, request: HttpRequest, dialect: Dialect, **from_url: Json) -> Response:
        """One model call."""
        session = self.session(request)
        if session is None:
            return _json(dialect.error(404, "there is no such session; take the base URL that the run gave"), 404)
        try:
            body = {**session.bodies.read(await _body(request)), **from_url}
            answer = session.ask(dialect, body, request.headers)
        except DialectError as problem:
            session.counts["wire:refused"] += 1
            return _json(dialect.error(400, str(problem)), 400)
        except HTTPException as problem:
            session.counts["wire:refused"] += 1
            return _json(dialect.error(problem.status_code, problem.detail), problem.status_code)
        gone = asyncio.ensure_future(_gone(request))
        give_up = self._keep_alive_s if answer.wishes.stream else None
        await asyncio.wait((answer.task, gone), timeout=give_up, return_when=asyncio.FIRST_COMPLETED)
        if not answer.task.done() and not gone.done():
            events = _kept_alive(dialect, session, answer, gone, self._keep_alive_s)
            return StreamingResponse(events, media_type="text/event-stream")
        _settle(session, answer, gone)
        return _reply(dialect, answer) if answer.task.done() else Response(status_code=499)  # nobody is there to read

    async def finish(self, request: HttpRequest) -> Response:
        """End a session, with what is said of it."""
        key = request.path_params["key"]
        if self._end is None:
            return _json({"error": "sessions are ended by the run that opened them"}, 403)
        try:
            ending = _ending(Bodies().read(await _body(request)))
        except DialectError as problem:
            return _json({"error": str(problem)}, 400)
        rollout = await self._end(key, ending)
        self.close(key)
        if rollout is None:
            return _json({"error": f"there is no session '{key}'"}, 404)
        kinds = Counter(call.kind for call in rollout.calls)
        return _json({"rollout": rollout.id, "calls": kinds, "counts": dict(rollout.counts), "error": rollout.error})

    def _protocol(self) -> asyncio.Protocol:
        return HttpToolsProtocol(config=self._config, server_state=self._state, app_state={})


async def serve(gateway: Gateway, host: str, port: int) -> asyncio.Server:
    """Listen on an address of this machine. Raises GatewayError where it cannot be had."""
    try:
        sock = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise GatewayError(f"cannot listen on {host}:{port}: {error.strerror}; choose another address") from error
    return await gateway.listen(sock)


# ---- routes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Routes:
    """One endpoint for each kind of request."""

    gateway: Gateway

    async def chat(self, request: HttpRequest) -> Response:
        return await self.gateway.answer(request, CHAT_COMPLETIONS)

    async def responses(self, request: HttpRequest) -> Response:
        return await self.gateway.answer(request, RESPONSES)

    async def messages(self, request: HttpRequest) -> Response:
        return await self.gateway.answer(request, MESSAGES)

    async def gemini(self, request: HttpRequest) -> Response:
        model, _, verb = request.path_params["call"].rpartition(":")
        match verb:
            case "generateContent":
                return await self.gateway.answer(request, GEMINI, model=model, stream=False)
            case "streamGenerateContent":
                return await self.gateway.answer(request, GEMINI, model=model, stream=True)
            case "countTokens":
                return await self._count(request, GEMINI)
            case _:
                return _json(GEMINI.error(404, f"'{verb}' is not served here"), 404)

    async def end(self, request: HttpRequest) -> Response:
        return await self.gateway.finish(request)

    async def count_tokens(self, request: HttpRequest) -> Response:
        return await self._count(request, MESSAGES)

    async def models(self, request: HttpRequest) -> Response:
        model = {"id": self.gateway.model, "object": "model", "owned_by": "whippletree", "created": 0}
        return _json({"object": "list", "data": [model], "has_more": False})

    async def root(self, request: HttpRequest) -> Response:
        return _json({"model": self.gateway.model})

    async def unknown(self, request: HttpRequest) -> Response:
        if request.method == "HEAD":  # some harnesses ask whether anybody is there
            return Response()
        dialect = MESSAGES if "anthropic-version" in request.headers else CHAT_COMPLETIONS
        problem = f"{request.method} {request.url.path} is not served here"
        return _json(dialect.error(404, problem), 404)

    async def _count(self, request: HttpRequest, dialect: Dialect) -> Response:
        session = self.gateway.session(request)
        if session is None:
            return _json(dialect.error(404, "there is no such session"), 404)
        try:
            tokens = session.count_tokens(dialect, session.bodies.read(await _body(request)))
        except DialectError as problem:
            return _json(dialect.error(400, str(problem)), 400)
        return _json({"totalTokens": tokens} if dialect is GEMINI else count_tokens_reply(tokens))


def _app(gateway: Gateway) -> Starlette:
    routes = _Routes(gateway)
    table = [
        ("chat/completions", routes.chat, "POST"),
        ("responses", routes.responses, "POST"),
        ("messages", routes.messages, "POST"),
        ("messages/count_tokens", routes.count_tokens, "POST"),
        ("models", routes.models, "GET"),
        ("models/{call:path}", routes.gemini, "POST"),
    ]
    made = [
        Route(f"{base}{version}/{path}", endpoint, methods=[method])
        for base in ("/s/{key}", "")
        for path, endpoint, method in table
        for version in (("/v1beta", "/v1", "") if "call" in path else ("/v1", ""))
    ]
    made.append(Route("/s/{key}/end", routes.end, methods=["POST"]))
    everything = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    made += [Route(path, routes.root, methods=["GET"]) for path in ("/", "/s/{key}")]
    made.append(Route("/{path:path}", routes.unknown, methods=everything))
    return Starlette(routes=made)


# ---- one call ----------------------------------------------------------------------------------------------------


def _api_key(request: HttpRequest) -> str:
    given = next((request.headers[name] for name in _KEY_HEADERS if name in request.headers), "")
    return given.removeprefix("Bearer ").strip() or request.query_params.get("key", "")


async def _body(request: HttpRequest) -> bytes:
    """Raises HTTPException with status 413 where it is too large."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise HTTPException(413, f"the body is larger than {MAX_BODY >> 20} MiB")
        chunks.append(chunk)
    return b"".join(chunks) or b"{}"


def _ending(body: dict[str, Json]) -> Ending:
    """Raises DialectError."""
    if unknown := body.keys() - {"reward", "task", "harness"}:
        raise DialectError(f"unknown keys {sorted(unknown)}; expected reward, task and harness")
    reward = body.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1):
        raise DialectError(f"reward must be a number from 0 to 1, got {reward!r}")
    return Ending(reward, str(body.get("task", "")), str(body.get("harness", "")))


async def _gone(request: HttpRequest) -> None:
    """Until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _settle(session: WireSession, answer: Answer, gone: asyncio.Future[None]) -> None:
    """Tell the session whether the client is still there to have its reply."""
    if gone.done():
        session.abandon(answer)
    else:
        session.delivered(answer)
        gone.cancel()


def _reply(dialect: Dialect, answer: Answer) -> Response:
    try:
        completion = answer.task.result()
    except ContextOverflow as overflow:
        return _json(dialect.error(400, f"{CONTEXT_LENGTH}: {overflow}"), 400)
    except asyncio.CancelledError:
        return _json(dialect.error(503, "the session was closed"), 503)
    reply_id = secrets.token_hex(12)
    if not answer.wishes.stream:
        return _json(dialect.reply(answer.wishes, completion, reply_id))
    events = b"".join(dialect.events(answer.wishes, completion, reply_id))
    return Response(events, media_type="text/event-stream")


async def _kept_alive(
    dialect: Dialect, session: WireSession, answer: Answer, gone: asyncio.Future[None], every_s: float
) -> AsyncIterator[bytes]:
    """Signs of life while the reply is being sampled, then the reply."""
    try:
        while not answer.task.done() and not gone.done():
            yield dialect.keep_alive
            await asyncio.wait((answer.task, gone), timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        session.abandon(answer)
        gone.cancel()
        raise
    _settle(session, answer, gone)
    if not answer.task.done():
        return
    try:
        completion: Completion = answer.task.result()
    except ContextOverflow as overflow:
        yield dialect.error_event(f"{CONTEXT_LENGTH}: {overflow}")
    except asyncio.CancelledError:
        yield dialect.error_event("the session was closed")
    else:
        for frame in dialect.events(answer.wishes, completion, secrets.token_hex(12)):
            yield frame


def _json(body: Json, status: int = 200) -> Response:
    try:
        data = orjson.dumps(body)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs
        data = ascii_json(body)
    return Response(data, status, media_type="application/json")
