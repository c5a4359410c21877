"""Which worker registers an account that only one may register (`sip.accounts.one_worker`).

A key of JetStream names the worker that holds the account. It is written only on top of what was read, so of two
workers that want it one has it. It is free when nobody holds it, or a worker that is gone, which `leases` decides.
While NATS is away nothing changes hands.
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

from config.tasks import within
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why

if TYPE_CHECKING:
    from sip.pjsip.accounts import RegisteredAccount

BUCKET = "ACCOUNTS"
LEAVE_S = 2.0
"""The registrar has so long to answer that a registration is taken back, and then NATS to take the keys."""
log = structlog.get_logger("cluster")


@dataclass(frozen=True, slots=True)
class Holder:
    """Of an account, as its key says."""

    worker: str = ""
    """Empty: nobody."""
    revision: int = 0
    """0: the key is not there."""


class ClusterAccounts:
    """See the module. `read` and `settle` at each renewal of this worker's lease, `release` before it takes no more
    calls. `accounts` are those that one worker alone registers."""

    def __init__(self, connection: NatsConnection, accounts: Sequence[RegisteredAccount] = ()) -> None:
        self._connection, self.accounts = connection, accounts
        self._holders: dict[str, Holder] = {}
        """Key → as it was read last."""
        self._held: dict[str, int] = {}
        """Keys of the accounts that this worker holds, with their revisions."""
        self._released = False

    @property
    def warnings(self) -> list[str]:
        """For the time that NATS cannot be reached."""
        waiting = ", ".join(each.name for each in self.accounts if each.registration.state == "standby")
        return [f"cluster: this worker cannot take over the registration of {waiting} now"] if waiting else []

    async def read(self) -> set[str]:
        """Ids of the workers that hold accounts. Raises ClusterUnreachable, APIError, nats.errors.Error."""
        if self.accounts:
            bucket = await self._connection.bucket(BUCKET)
            keys = [_key(account) for account in self.accounts]
            holders = await asyncio.gather(*(_read(bucket, key) for key in keys))
            self._holders = dict(zip(keys, holders, strict=True))
        return {holder.worker for holder in self._holders.values()} - {""}

    async def settle(self, own: str, gone: Collection[str]) -> None:
        """Take accounts that are free, and stand by where another worker holds one. Raises as `read`.

        own: this worker's id; gone: ids of workers that hold nothing any more.
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
                await self._take(bucket, account, own)

    async def release(self) -> None:
        """Take every registration back and leave the accounts to other workers, in a few seconds."""
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
        """It registers once more when the key has been written since: see `_stand_by`."""
        key = _key(account)
        if self._held.get(key) != revision and not self._released:
            self._held[key] = revision
            account.hold()

    async def _take(self, bucket: KeyValue, account: RegisteredAccount, own: str) -> None:
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
        """Another worker holds the account. What this one had registered may have pushed out the other's contact at the
        PBX, so its key is written again, by which it knows that it is to register once more."""
        self._held.pop(_key(account), None)
        if account.stand_by("another worker registers it"):
            await _all_left([account])
            with contextlib.suppress(KeyWrongLastSequenceError):
                await bucket.update(_key(account), holder.worker.encode(), holder.revision)


def _key(account: RegisteredAccount) -> str:
    """Readable by `base64 -d`: a user's name may have letters that a key may not."""
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
