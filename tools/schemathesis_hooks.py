"""What Schemathesis has to be told: how a sound is sent. It runs in an environment of its own (`tools.fuzz_api`)."""

from typing import Any

import schemathesis


@schemathesis.serializer("audio/wav", "audio/basic")
def sound(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
