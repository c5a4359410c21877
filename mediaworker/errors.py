"""The root of this package's errors, and whose fault each of them is.

MediaworkerError
├── of the one who asks: a client, a peer, or the person at the command line
│   ├── Problem (BadUpload), BadRequest     an HTTP request that cannot be served; `status` is its answer
│   ├── CallRefused           the port, the worker or the account is full or closed; `status` is HTTP's, or SIP's 486
│   ├── MalformedMessage (StreamMalformed)   a message of a media stream that breaks its protocol
│   ├── UnknownMessage        a message of a media stream of a kind that this worker does not know
│   ├── CallOver, CallLive, NotPlayable    too late, too early, or too much for this call (409, 429)
│   ├── SoundError, CaptureError           a sound or a capture that cannot be played
│   ├── FileRefused, MediaError            a file that cannot be transcribed; `fault` says why
│   ├── SourceError, SourceChanged         the address of a file has no file, or another one than before
│   ├── TooMany, Busy         as many jobs or files as there may be (429, 503)
│   ├── EventError            a frame that is no event of this version
│   ├── SubscriptionClosed (ResumeError)   a subscription that ends, with its close code
│   ├── PatternError, RulesError           phrases or rules that cannot be used; each is a ValueError too
│   ├── ForbiddenTarget       an address that webhooks and downloads must not reach; an OSError too
│   └── NotOurResult          something else lies where a result of `transcribe` would be
├── of the machine, or of what the worker needs beside it
│   ├── StartError            the service cannot start
│   ├── StoreError (StoreUnusable), DiskFull   a store or a disk fails (507)
│   ├── SandboxError          the decoder of files cannot be confined, so that it reads nothing
│   ├── EngineUnavailable     no engine answers just now; it can be asked again
│   └── ClusterUnreachable, OwnerAway, JobElsewhere   NATS, or the worker that has a call or a job, does not answer
├── of a worker, as a client sees it: ClientError, CursorExpired
└── CommandError              ends a command with its exit code
    ├── StreamError           the peer refused or broke the stream
    ├── NoFiles               there is nothing to transcribe
    └── UsageError            the arguments are wrong, or a file that they name
        └── PlayError, ResultClash   it cannot be played; two results would have one name
"""

from __future__ import annotations


class MediaworkerError(Exception):
    """The base of the package's errors."""
