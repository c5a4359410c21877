"""The addresses of the HTTP port and the media port: loopback only, unless clients must present credentials."""

from __future__ import annotations

from config.network.addresses import is_loopback, parse_tcp
from config.settings import Settings

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"


def http_host(settings: Settings) -> str:
    """The address of the HTTP port: `http.host`, or the default that depends on the credentials."""
    return settings.http.host or (EVERYWHERE if settings.auth.api_keys else LOOPBACK)


def media_host(settings: Settings) -> str:
    """The address of the media port: `media.host`, or the default that depends on the credentials."""
    known = settings.auth.api_keys or settings.twilio.auth_token
    return settings.media.host or (EVERYWHERE if known else LOOPBACK)


def needs_credentials(http: str, media: str, settings: Settings) -> tuple[str, str] | None:
    """The key that is missing for listening on these addresses, and the reason; None if nothing is missing.

    With `twilio.auth_token` alone the media port may be open: Twilio signs its requests, and the other routes accept
    clients from other machines only with an API key.
    """
    if settings.auth.api_keys:
        return None
    if not is_loopback(http):
        return "http.host", "without API keys it must be loopback: configure auth.api_keys, or leave this key empty"
    if not is_loopback(media) and not settings.twilio.auth_token:
        return "media.host", (
            "without API keys or Twilio's token it must be loopback: configure auth.api_keys or twilio.auth_token, "
            "or leave this key empty"
        )
    return None


def needs_certificates(settings: Settings) -> tuple[str, str] | None:
    """The key that is missing for engine servers on other machines, and the reason; None if nothing is missing.

    Between machines, engine servers and workers must present certificates to each other.
    """
    addresses = [(f"asr.servers[{index}]", text) for index, text in enumerate(settings.asr.servers)]
    if settings.asr.listen:
        addresses.append(("asr.listen", settings.asr.listen))
    if settings.cluster.tls_cert:
        return None
    for key, text in addresses:
        if not is_loopback(parse_tcp(text)[0]):
            return "cluster.tls_cert", f"is required with {key} = {text!r}, which is not loopback"
        if not settings.cluster.token:
            return "cluster.token", f"is required with {key} = {text!r}, or the certificates of [cluster]"
    return None
