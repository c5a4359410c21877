"""`WS /asterisk/media`: which WebSocket channels of Asterisk may connect, and the session of each."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable

from config import Settings
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.asterisk.calls import AsteriskCalls
from mediaworker.ingress.asterisk.session import AsteriskCounters, AsteriskPolicy, AsteriskSession
from mediaworker.ingress.interfaces import CallOpener, MediaSession, SessionFactory, Upgrade
from mediaworker.ingress.upgrade_admission import UpgradeAdmission

MEDIA = "/asterisk/media"


class AsteriskIngress:
    """Implements `interfaces.MediaEndpoint`."""

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
        """How many are connected."""
        self._settings = settings
        self._admission = UpgradeAdmission("channel of Asterisk's refused", self.counters, refusal, failures)

    def use(self, settings: Settings) -> None:
        """Use these settings for channels that connect from now on."""
        self._settings = settings

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Raises CallRefused 401, 403 or 503."""
        headers, challenge = bearing(upgrade.headers), 'Basic realm="mediaworker"'
        access = self._admission.check_key(upgrade, self._settings, headers=headers, challenge=challenge)
        self._admission.check_room(upgrade)

        def opens(now: float) -> MediaSession:
            policy = AsteriskPolicy(
                owner=access.name,
                start_timeout_s=self._settings.media.start_timeout_s,
                answers=self._settings.asterisk.answer,
            )

            self.channels += 1
            on_problem = self._admission.notices.of(upgrade.peer, lambda: session.call_id)
            session = AsteriskSession(
                policy, self.calls, now, counters=self.counters, on_problem=on_problem, on_lost=self._left
            )
            return session

        return opens

    def _left(self) -> None:
        self.channels -= 1


def bearing(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers with a bearer key in place of a user name and a password, which is the key.

    Asterisk's websocket_client.conf holds nothing else; the user name may be anything.
    """
    return [
        (name, f"Bearer {_password(value)}" if name.lower() == "authorization" and _is_basic(value) else value)
        for name, value in headers
    ]


def _is_basic(value: str) -> bool:
    return value.strip().partition(" ")[0].lower() == "basic"


def _password(value: str) -> str:
    """The password (RFC 7617), or empty, which is no key."""
    try:
        text = base64.b64decode(value.strip().partition(" ")[2].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text.partition(":")[2]
