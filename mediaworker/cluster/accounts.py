"""The election of the one worker that registers a SIP account marked `sip.accounts.one_worker`.

A key in JetStream names the worker that holds the account. A worker writes the key only if it has not changed since it
was read (compare and swap), so of two competing workers one wins. An account is free when its key is missing, or when
its worker is gone, which `leases` decides. While NATS cannot be reached, no account changes its worker.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from config.process.tasks import within
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why

if TYPE_CHECKING:
    from sip.pjsip.accounts import RegisteredAccount

BUCKET = "ACCOUNTS"
LEAVE_S = 2.0
"""The timeout for the registrar's answer to an unregistration, and then for the deletion of the keys in NATS."""
log = structlog.get_logger("cluster")


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker that holds an account, as its key names it."""

    worker: str = ""
    """The worker's id; empty if the account is free."""
    revision: int = 0
    """The key's revision; 0 if the key does not exist."""


class ClusterAccounts:
    """Decides for each of `accounts` whether this worker registers it.

    The owner calls `read` and `settle` at each renewal of this worker's lease, and `release` before the worker stops
    accepting calls.
    """

    def __init__(self, connection: NatsConnection, accounts: Sequence[RegisteredAccount] = ()) -> None:
        self._connection, self.accounts = connection, accounts
        self._holders: dict[str, Holder] = {}
        """Key → the holder that was read last."""
        self._held: dict[str, int] = {}
        """Keys of the accounts that this worker holds, with their revisions."""
        self._released = False

    @property
    def warnings(self) -> list[str]:
        """The warnings that readiness shows while NATS cannot be reached."""
        waiting = ", ".join(each.name for each in self.accounts if each.registration.state == "standby")
        return [f"cluster: this worker cannot take over the registration of {waiting} now"] if waiting else []

    async def read(self) -> set[str]:
        """Read the keys, and return the ids of the workers that hold accounts.

        Raises ClusterUnreachable, APIError, nats.errors.Error.
        """
        if self.accounts:
            bucket = await self._connection.bucket(BUCKET)
            keys = [_key(account) for account in self.accounts]
            holders = await asyncio.gather(*(_read(bucket, key) for key in keys))
            self._holders = dict(zip(keys, holders, strict=True))
        return {holder.worker for holder in self._holders.values()} - {""}

    async def settle(self, own: str, gone: Collection[str]) -> None:
        """Claim accounts that are free, and stand by where another worker holds one. Raises as `read`.

        own: this worker's id; gone: the ids of workers whose accounts count as free.
        """
        if not self.accounts:
            return
        bucket = await self._connection.bucket(BUCKET)
        for account in self.accounts:
            holder = self._holders[_key(account)]
            if holder.worker == own:
                self._hold(account, holder.revision)
            elif holder.worker and holder.worker not in gone:
                await self._stand_by(bucket, account, holder)
            else:
                await self._claim(bucket, account, own)

    async def release(self) -> None:
        """Unregister all accounts and release them to other workers; takes a few seconds at most."""
        if self._released:
            return
        self._released = True
        await _all_left([each for each in self.accounts if each.stand_by("this worker takes no more calls")])
        async with within(LEAVE_S):
            for key, revision in self._held.items():
                await self._give_up(key, revision)

    async def _give_up(self, key: str, revision: int) -> None:
        try:
            await (await self._connection.bucket(BUCKET)).delete(key, revision)
        except TROUBLE as error:
            log.info("an account stays with this worker until its lease has run out", reason=why(error))

    def _hold(self, account: RegisteredAccount, revision: int) -> None:
        """Register the account, and again whenever its key has a new revision: see `_stand_by`."""
        key = _key(account)
        if self._held.get(key) != revision and not self._released:
            self._held[key] = revision
            account.hold()

    async def _claim(self, bucket: KeyValue, account: RegisteredAccount, own: str) -> None:
        key = _key(account)
        before = self._holders[key]
        if self._released:
            return
        try:
            if before.revision:
                revision = await bucket.update(key, own.encode(), before.revision)
            else:
                revision = await bucket.create(key, own.encode())
        except KeyWrongLastSequenceError:
            return  # another worker was faster
        if self._released:
            return await self._give_up(key, revision)
        log.info("this worker registers the account from now on", account=account.name, before=before.worker or None)
        self._hold(account, revision)

    async def _stand_by(self, bucket: KeyValue, account: RegisteredAccount, holder: Holder) -> None:
        """Unregister an account that another worker holds.

        This worker's registration may have replaced the other worker's contact at the PBX. So the key is written again
        with the same content: its new revision makes the holder register once more.
        """
        self._held.pop(_key(account), None)
        if account.stand_by("another worker registers it"):
            await _all_left([account])
            with contextlib.suppress(KeyWrongLastSequenceError):
                await bucket.update(_key(account), holder.worker.encode(), holder.revision)


def _key(account: RegisteredAccount) -> str:
    """The key of an account: its address in base64, because a user name may contain letters that a key may not."""
    return base64.urlsafe_b64encode(account.address.encode()).decode()


async def _read(bucket: KeyValue, key: str) -> Holder:
    try:
        entry = await bucket.get(key)
    except KeyNotFoundError:
        return Holder()
    return Holder((entry.value or b"").decode(errors="replace"), entry.revision or 0)


async def _all_left(accounts: Sequence[RegisteredAccount]) -> None:
    async with within(LEAVE_S):
        await asyncio.gather(*(account.left.wait() for account in accounts))
