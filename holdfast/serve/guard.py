"""Checks of every request: host, origin, token, size and time."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.serve.meters import Meters
from holdfast.serve.serving import Serving

log = logging.getLogger("holdfast.serve")
READING = ("GET", "HEAD", "OPTIONS")
ASKING = ("/v1/predict",)  # changes nothing
PROBES = ("/healthz", "/readyz", "/metrics")  # asked for by address, not by name
UPLOADS = ("/v1/learn", "/v1/suggest", "/v1/correct", "/v1/generations/compare")
READ_ONLY = (
    "this service answers only; teach the learner where its directory is, with holdfast learn or another "
    "holdfast serve: the new generation then answers here"
)
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Refused(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        self.status = status
        self.error = error
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Guard:
    """Check a request before its body is read; bound its size and time; add headers to its answer."""

    def __init__(self, app: ASGIApp, serving: Serving, meters: Meters) -> None:
        self.app = app
        self.serving = serving
        self.meters = meters
        self.held = 0
        """Bytes of bodies in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of ASGI."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        began, status, held = time.monotonic(), 0, 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self.held += size
            if self.held > self.serving.limits.reading:
                raise Refused(429, "too much is being sent; try again", retry_after="1", connection="close")

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in known]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            self._check(scope)
            body = await self._body(scope, receive, hold)
            async with asyncio.timeout(self.serving.limits.timeout):
                await self.app(scope, _replayed(body, receive), answer)
        except Refused as error:
            self.meters.refused.labels(str(error.status)).inc()
            await _say(answer, error)
        except TimeoutError:
            self.meters.refused.labels("timeout").inc()
            if not status:
                await _say(answer, Refused(503, "the answer took too long; try again", retry_after="5"))
        except Exception as error:  # never a traceback, nor a message that could quote a text
            log.error("internal error: %s at %s", type(error).__name__, _place(error))
            if not status:
                await _say(answer, Refused(500, "internal error"))
        finally:
            self.held -= held
            route = getattr(scope.get("route"), "path", "other")
            self.meters.requests.labels(route, str(status)).inc()
            self.meters.seconds.labels(route).observe(time.monotonic() - began)

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope)
        host = headers.get("host", "")
        probe = scope["method"] == "GET" and scope["path"] in PROBES
        if self.serving.hosts and not probe and _hostname(host) not in self.serving.hosts:
            # A name of somebody else that resolves to this machine: a page elsewhere asks on a user's behalf.
            raise Refused(421, "this service is not called by that name; see --allow-host")
        if scope["method"] in READING or scope["path"] in ASKING:
            return
        if self.serving.read_only:
            raise Refused(405, READ_ONLY, allow="GET")
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != host
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "a page of another site may not change anything here")
        kind, _, shown = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(shown.strip().encode(), self.serving.token.encode())
        if kind.casefold() != "bearer" or not right:
            raise Refused(
                401, "this needs the service's token: Authorization: Bearer TOKEN", www_authenticate="Bearer"
            )

    async def _body(self, scope: Scope, receive: Receive, hold: Callable[[int], None]) -> bytes:
        """Return the body, read in time and within the limit; `hold` is told the size of each part."""
        limits = self.serving.limits
        most = limits.body
        if scope["method"] in READING:
            most = 0
        elif scope["method"] == "POST" and scope["path"] in UPLOADS:
            most = limits.upload
        refused = Refused(413, f"the request has more than {most:,} bytes", connection="close")
        length = _headers(scope).get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise refused
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.slow):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client has gone")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise refused
                    hold(len(part))
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(
                408, f"the request did not arrive in {limits.slow:g} seconds", connection="close"
            ) from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _headers(scope: Scope) -> Mapping[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"


async def _say(send: Send, refused: Refused) -> None:
    body = json.dumps({"error": refused.error}).encode()
    headers: dict[str, Any] = {"content-type": "application/json", "content-length": str(len(body))}
    raw = [(name.encode(), value.encode()) for name, value in (headers | refused.headers).items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
