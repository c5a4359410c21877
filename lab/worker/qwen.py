"""The settings for Qwen3-ASR with the tiny model, the recordings of digits, and what is said in them."""

from __future__ import annotations

from pathlib import Path

from config import Settings
from config.settings import Asr
from lab.house import ROOT
from lab.worker.peers import TINY

DIGITS = ROOT / "tests" / "data" / "digits"
SAID = {
    "customer": ["four seven one two", "nine oh five three eight"],
    "agent": ["zero six two", "one eight four nine"],
    "long": ["one two three four five six seven eight nine zero " * 2],
}
SETTINGS = Settings(asr=Asr(engine="qwen", model=str(TINY)))
QWEN = {"ASR__ENGINE": "qwen", "ASR__MODEL": str(TINY)}


def file(name: str) -> Path:
    return DIGITS / f"{name}.ulaw"
