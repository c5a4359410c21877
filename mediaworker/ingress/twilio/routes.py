"""Twilio's routes: the voice webhook, the stream status, and the admission of upgrades to media streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from config import Settings
from config.metrics.registry import MetricsRegistry
from mediaworker.access.auth_failures import AuthFailures, Reason
from mediaworker.access.local_trust import delay_answer, is_direct_asgi, is_local
from mediaworker.access.refusals import refusal_headers
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.http.problem import Problem
from mediaworker.http.requests import body_of
from mediaworker.ingress.interfaces import SessionFactory, Upgrade
from mediaworker.ingress.twilio import webhook
from mediaworker.ingress.twilio.calls import TwilioCalls
from mediaworker.ingress.twilio.counters import TwilioCounters
from mediaworker.ingress.twilio.session import TwilioSession
from mediaworker.ingress.upgrade_admission import MediaIngress

log = structlog.get_logger()

VOICE, STATUS, STREAM = "/twilio/voice", "/twilio/status", "/twilio/stream"
TOKEN_TTL_S = 60.0
"""How long the token in a webhook's response is valid: Twilio connects within a second or two."""
MAX_FIELDS = 200
STREAM_EVENTS = ("stream-started", "stream-stopped", "stream-error")


class TwilioIngress(MediaIngress[TwilioCounters]):
    """The Twilio ingress: `interfaces.MediaEndpoint` for `WS /twilio/stream`, and the two webhooks."""

    text_as_bytes = True
    new_counters = TwilioCounters
    refused_event = "Twilio stream refused"

    def __init__(
        self,
        settings: Settings,
        registry: CallRegistry,
        failures: AuthFailures | None = None,
        *,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(settings, registry, failures)
        self.statuses: dict[str, int] = {}
        """The number of stream status callbacks, by StreamEvent."""
        self._unix_time, self._calls = unix_time, TwilioCalls(registry)
        self._tokens = webhook.CallTokens(ttl_s=0.0)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        twilio, self._settings = settings.twilio, settings
        self._auth_tokens = tuple(t for t in (twilio.auth_token.reveal(), twilio.auth_token_next.reveal()) if t)
        self._tokens.use(self._auth_tokens, ttl_s=TOKEN_TTL_S)
        self._public_url = twilio.public_url.rstrip("/")
        self._stream_url = twilio.stream_url or _stream_url(self._public_url)

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("twilio", self.counters)

    # -- WS /twilio/stream --------------------------------------------------------------------------------------------

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Check an upgrade, and return what opens its session.

        Raises CallRefused with 403 for an upgrade without Twilio's signature or, without an auth token, from another
        machine; and with 503 while no call can be accepted.
        """
        if self._auth_tokens:
            allowed = webhook.verify(self._auth_tokens, upgrade.header("x-twilio-signature"), self._stream_url)
        else:
            allowed = upgrade.direct and is_local(upgrade.headers, upgrade.peer)
        if not allowed:
            raise self._forbid(upgrade.path, upgrade.peer)
        self.check_room(upgrade)
        make = partial(
            TwilioSession,
            self._settings,
            self._calls,
            check_token=lambda token, call, stream: self._tokens.check(token, call, stream, self._unix_time()),
            on_bad_token=lambda: self._fail("call_token", upgrade.path, upgrade.peer),
        )
        return self.opening(upgrade, make)

    # -- /twilio/voice and /twilio/status ------------------------------------------------------------------------

    async def voice(self, request: Request) -> Response:
        """The TwiML that sends the call here; 503, after which Twilio uses its fallback URL, while none is accepted."""
        form = await self._form(request)
        if isinstance(form, Response):
            return form
        self.counters.webhooks += 1
        if (refusal := self._registry.refusal()) is not None:
            self.counters.refuse("capacity")
            headers = dict(refusal_headers(refusal.status))
            return Response(webhook.busy(), refusal.status, headers=headers, media_type="text/xml")
        host = request.headers.get("host", "")
        tls = "s" if request.url.scheme == "https" else ""
        call_sid = form.get("CallSid", "")
        if not call_sid:  # the token is bound to it
            return Problem(400, "no CallSid").response()
        parameters = {
            "mw_mode": self._settings.twilio.mode,
            "mw_from": form.get("From", ""),
            "mw_to": form.get("To", ""),
            "mw_direction": form.get("Direction", ""),
            "mw_token": self._tokens.issue(call_sid, self._unix_time()),
        }
        # Without a public URL only this machine may connect, so the Host header of the request leads back here.
        stream_url = self._stream_url or f"ws{tls}://{host}{STREAM}"
        status_url = (self._public_url or f"http{tls}://{host}") + STATUS
        twilio = self._settings.twilio
        twiml = webhook.twiml(stream_url, status_url, twilio.mode, twilio.then, parameters.items())
        # Twilio caches responses to GET unless they forbid it, but a token can be used only once.
        return Response(twiml, media_type="text/xml", headers={"Cache-Control": "no-store"})

    async def status(self, request: Request) -> Response:
        """Log and count the status of a stream."""
        form = await self._form(request)
        if isinstance(form, Response):
            return form
        event = form.get("StreamEvent", "")
        known = event if event in STREAM_EVENTS else "other"
        self.statuses[known] = self.statuses.get(known, 0) + 1
        about = log.bind(call_sid=form.get("CallSid", "")[:64], stream_sid=form.get("StreamSid", "")[:64])
        if event == "stream-error":
            about.warning("twilio stream error", error=form.get("StreamError", "")[:200])
        else:
            about.info("twilio stream status", status=known)
        return Response(status_code=204)

    async def _form(self, request: Request) -> dict[str, str] | Response:
        """The form of an allowed request, or the response to a refused one."""
        peer = request.client.host if request.client else ""
        if not self._auth_tokens and not (is_direct_asgi(request.scope) and is_local(request.headers.items(), peer)):
            return self._refuse(request, peer)
        posted = request.method == "POST"
        try:
            # The query of a GET is its form, and the signature over the URL covers it.
            text = await body_of(request) if posted else request.url.query.encode()
            pairs = parse_qsl(text.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except Problem as problem:
            return problem.response()
        except ClientDisconnect:
            return Problem(400, "incomplete request").response()
        except ValueError:  # not UTF-8, or too many fields
            return Problem(400, "not a form").response()
        if self._auth_tokens:
            url = self._public_url + request.url.path + (f"?{request.url.query}" if request.url.query else "")
            signature = request.headers.get("x-twilio-signature", "")
            if not webhook.verify(self._auth_tokens, signature, url, pairs if posted else ()):
                return self._refuse(request, peer)
        return dict(pairs)

    def _refuse(self, request: Request, peer: str) -> Response:
        refused = self._forbid(request.url.path, peer)
        delay_answer(request.scope, refused.delay_s)
        return Problem(refused.status, refused.reason).response()

    def _forbid(self, path: str, peer: str) -> CallRefused:
        self.counters.forbidden += 1
        if self._auth_tokens:
            reason = "X-Twilio-Signature is missing or wrong"
        else:
            reason = "without twilio.auth_token only programs on this machine that run as the worker's user may connect"
        self._notices.warn(peer, "twilio request forbidden", asyncio.get_running_loop().time(), f"{path}: {reason}")
        return CallRefused(
            403, reason, delay_s=self._fail("signature" if self._auth_tokens else "not_local", path, peer)
        )

    def _fail(self, reason: Reason, path: str, peer: str) -> float:
        return self._failures.record(reason, peer, path, asyncio.get_running_loop().time(), logged=True)


def webhook_routes(twilio: TwilioIngress) -> list[BaseRoute]:
    """The two webhooks, for the HTTP port."""
    return [
        Route(VOICE, twilio.voice, methods=["GET", "POST"]),
        Route(STATUS, twilio.status, methods=["POST"]),
    ]


def _stream_url(public_url: str) -> str:
    """The URL of media streams: `https://host` → `wss://host/twilio/stream`; empty stays empty."""
    if not public_url:
        return ""
    parts = urlsplit(public_url)
    return urlunsplit(parts._replace(scheme="wss" if parts.scheme == "https" else "ws", path=parts.path + STREAM))
