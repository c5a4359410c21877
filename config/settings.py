"""The typed configuration: one frozen struct per section, each field with its allowed range.

Times carry their unit in the name. Every key can be set in the TOML file or as `MEDIAWORKER_<SECTION>__<KEY>`, and
`config.load` reads both. `docs/reference/configuration.md` is generated from these classes, which `config.sections`
keeps in one file per group.
"""

from __future__ import annotations

from config.errors import ConfigError
from config.sections.calls import (
    Alerts,
    BotEndpointing,
    DictationEndpointing,
    Endpointing,
    Privacy,
    PrivacyPattern,
    Profiles,
    Route,
)
from config.sections.cluster import Cluster
from config.sections.events import Events, EventWebhook, Log, Retention, Tracing
from config.sections.files import Files, Jobs
from config.sections.ingress import Asterisk, AudioSocket, Twilio
from config.sections.listeners import ApiKey, Auth, Http, Media, Stream
from config.sections.recognition import Asr, Qwen
from config.sections.section import Positive, Reloadable, ReloadableItems, Seconds, Secret, Section
from config.sections.sip import Rtp, Sip, SipAccount, Siprec, SiprecParticipant, SipUser
from config.sections.text import Text

__all__ = [
    "Alerts", "ApiKey", "Asr", "Asterisk", "AudioSocket", "Auth", "BotEndpointing", "Cluster",
    "DictationEndpointing",
    "Endpointing", "EventWebhook", "Events", "Files", "Http", "Jobs", "Log", "Media", "Privacy",
    "PrivacyPattern", "Profiles", "Qwen", "Retention", "Route", "Rtp", "Secret", "Section", "Settings", "Sip",
    "SipAccount", "SipUser", "Siprec", "SiprecParticipant", "Stream", "Text", "Tracing", "Twilio",
]  # fmt: skip


class Settings(Section, frozen=True, kw_only=True):
    data_dir: str = "data"
    """This folder holds the event store and all other state; only one worker may use it."""
    shutdown_s: Reloadable[Seconds] = 30.0
    """After SIGTERM, calls may go on for up to this many seconds before they are ended with `reason: shutdown`."""
    max_calls: Reloadable[Positive] = 1000
    """The worker accepts at most this many calls over all ingresses; further ones are refused with 486 on SIP and 503
    elsewhere."""
    http: Http = Http()
    media: Media = Media()
    stream: Reloadable[Stream] = Stream()
    rtp: Rtp = Rtp()
    sip: Sip = Sip()
    siprec: Reloadable[Siprec] = Siprec()
    twilio: Reloadable[Twilio] = Twilio()
    audiosocket: AudioSocket = AudioSocket()
    asterisk: Reloadable[Asterisk] = Asterisk()
    endpointing: Reloadable[Profiles] = Profiles()
    asr: Asr = Asr()
    qwen: Reloadable[Qwen] = Qwen()
    cluster: Cluster = Cluster()
    files: Reloadable[Files] = Files()
    jobs: Jobs = Jobs()
    auth: Reloadable[Auth] = Auth()
    events: Events = Events()
    text: Reloadable[Text] = Text()
    privacy: Reloadable[Privacy] = Privacy()
    alerts: Alerts = Alerts()
    retention: Reloadable[Retention] = Retention()
    log: Reloadable[Log] = Log()
    traces: Tracing = Tracing()
    routes: Reloadable[tuple[Route, ...]] = ()
    webhooks: ReloadableItems[tuple[EventWebhook, ...]] = ()

    def check(self, key: str) -> None:
        if not self.data_dir:
            raise ConfigError("data_dir", "", "must not be empty")
        for index, account in enumerate(self.sip.accounts):
            if account.one_worker and not self.cluster.nats:
                raise ConfigError(
                    f"sip.accounts[{index}].one_worker", True, "needs cluster.nats, by which the workers agree on one"
                )
