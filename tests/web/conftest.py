"""One Chromium for all files that a process runs, each test in a tab of its own."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from audio.codecs.g711 import ulaw_decode
from lab.http.browser import chromium
from lab.worker.qwen import file


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The customer's digits as a WAV file, in two channels at 48 kHz as a browser's device would have them."""
    path = tmp_path_factory.mktemp("speech") / "digits.wav"
    samples = ulaw_decode(file("customer").read_bytes())
    slow = np.concatenate([samples, np.zeros(8000, np.int16)])
    at = np.arange(len(slow) * 6) / 6
    fast = np.interp(at, np.arange(len(slow)), slow).astype(np.int16)
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(48_000)
        writer.writeframes(np.repeat(fast, 2).tobytes())
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(spoken: Path) -> AsyncIterator[Browser]:
    """Its microphone plays `spoken` once, and worker.example is this machine."""
    microphone = f"--use-file-for-fake-audio-capture={spoken}%noloop"
    async with chromium(microphone, "--host-resolver-rules=MAP worker.example 127.0.0.1") as started:
        yield started
