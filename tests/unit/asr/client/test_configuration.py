from __future__ import annotations

import os
from pathlib import Path

import pytest

from asr.client.local_pool import builds_from
from config.settings import Asr, Settings


@pytest.mark.parametrize("which", ["model", "partials_model"])
def test_new_weights_make_another_engine_of_the_same_settings(tmp_path: Path, which: str) -> None:
    files = [tmp_path / name for name in ("config.json", "model.safetensors")]
    for file in files:
        file.write_bytes(b"{}")
    settings = Settings(asr=Asr(**{which: str(tmp_path)}))
    before = builds_from("qwen", settings)
    assert builds_from("qwen", settings) == before
    other = builds_from("moonshine", settings)
    for file in files:
        os.utime(file, ns=(1, 1))
        assert (now := builds_from("qwen", settings)) != before
        before = now
    files[1].write_bytes(b"{} ")
    assert builds_from("qwen", settings) != before
    assert builds_from("moonshine", settings) == other, "it has its own weights"
