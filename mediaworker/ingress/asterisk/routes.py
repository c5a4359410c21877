"""`/asterisk/media` at the door: which channels of Asterisk's may connect, and where they are served."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable

from config import Settings
from mediaworker.calls.registry import CallRefused
from mediaworker.http.auth import decide
from mediaworker.ingress.asterisk.calls import AsteriskCalls
from mediaworker.ingress.asterisk.session import AsteriskCounters, AsteriskPolicy, AsteriskSession
from mediaworker.ingress.auth_failures import AuthFailures
from mediaworker.ingress.interfaces import CallOpener, MediaSession, SessionFactory, Upgrade
from mediaworker.ingress.notices import Notices

MEDIA = "/asterisk/media"


class AsteriskIngress:
    """Implements `ports.Endpoint`. `refusal` says why no call is taken now (`CallRegistry.refusal`)."""

    subprotocols: tuple[str, ...] = ("media",)
    text_as_bytes = False

    def __init__(
        self,
        settings: Settings,
        open_call: CallOpener,
        *,
        refusal: Callable[[], CallRefused | None] = lambda: None,
        failures: AuthFailures | None = None,
    ) -> None:
        self.counters = AsteriskCounters()
        self.calls = AsteriskCalls(open_call)
        self.channels = 0
        """Connected now."""
        self._settings, self._refusal = settings, refusal
        self._failures = failures or AuthFailures()
        self._notices = Notices()

    def use(self, settings: Settings) -> None:
        """For the channels that connect from now on."""
        self._settings = settings

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Raises Refused 401, 403 or 503."""
        access = decide(
            bearing(upgrade.headers), upgrade.peer, self._settings.auth.api_keys, "stream", direct=upgrade.direct
        )
        if access.failure is not None:
            why = "unauthorized" if access.status == 401 else "forbidden"
            challenge = 'Basic realm="mediaworker"' if access.status == 401 else access.challenge
            self.counters.refuse(why)
            now = asyncio.get_running_loop().time()
            delay_s = self._failures.record(access.failure, upgrade.peer, upgrade.path, now)
            raise CallRefused(access.status, access.reason, challenge=challenge, delay_s=delay_s)
        if (full := self._refusal()) is not None:
            raise self._refuse("capacity", upgrade, full)

        def opens(now: float) -> MediaSession:
            policy = AsteriskPolicy(
                owner=access.name,
                start_timeout_s=self._settings.media.start_timeout_s,
                answers=self._settings.asterisk.answer,
            )

            self.channels += 1
            on_problem = self._notices.of(upgrade.peer, lambda: session.call_id)
            session = AsteriskSession(
                policy, self.calls, now, counters=self.counters, on_problem=on_problem, on_lost=self._left
            )
            return session

        return opens

    def _left(self) -> None:
        self.channels -= 1

    def _refuse(self, why: str, upgrade: Upgrade, refused: CallRefused) -> CallRefused:
        self.counters.refuse(why)
        now = asyncio.get_running_loop().time()
        self._notices.warn(upgrade.peer, "channel of Asterisk's refused", now, refused.reason)
        return refused


def bearing(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers with a key in place of user name and password: all that websocket_client.conf can hold. The password
    is the key; the name is anything."""
    return [
        (name, f"Bearer {_password(value)}" if name.lower() == "authorization" and _is_basic(value) else value)
        for name, value in headers
    ]


def _is_basic(value: str) -> bool:
    return value.strip().partition(" ")[0].lower() == "basic"


def _password(value: str) -> str:
    """RFC 7617; empty, which is no key, when it is not that."""
    try:
        text = base64.b64decode(value.strip().partition(" ")[2].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text.partition(":")[2]
