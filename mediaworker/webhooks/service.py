"""All webhooks of the configuration."""

from __future__ import annotations

import asyncio

from config import ConfigError, Settings
from mediaworker.events.hub import EventHub
from mediaworker.webhooks.delivery import DURABLE, Delivery
from mediaworker.webhooks.post import wrong_with_secret, wrong_with_url


def check(settings: Settings) -> None:
    """Raises ConfigError."""
    names: set[str] = set()
    for index, hook in enumerate(settings.webhooks):
        key = f"webhooks[{index}]"
        if hook.name in names:
            raise ConfigError(f"{key}.name", hook.name, "two webhooks have this name")
        names.add(hook.name)
        if wrong := wrong_with_url(hook.url):
            raise ConfigError(f"{key}.url", hook.url, wrong)
        if wrong := wrong_with_secret(hook.secret):
            raise ConfigError(f"{key}.secret", None, wrong)
        if unknown := set(hook.types) - DURABLE:
            raise ConfigError(f"{key}.types", min(unknown), f"expected some of {', '.join(sorted(DURABLE))}")


class EventWebhooks:
    """`start` after the hub, `stop` before it. Raises ConfigError."""

    def __init__(self, hub: EventHub, settings: Settings) -> None:
        check(settings)
        self.deliveries = tuple(Delivery(hub, hook) for hook in settings.webhooks)

    async def start(self) -> None:
        """Raises StoreError."""
        for delivery in self.deliveries:
            await delivery.start()

    async def stop(self) -> None:
        await asyncio.gather(*(delivery.stop() for delivery in self.deliveries))
