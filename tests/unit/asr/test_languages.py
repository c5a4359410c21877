"""Languages: their names, and which engine knows them."""

from __future__ import annotations

import pytest

from asr.engines.selection import select
from config import ConfigError
from config.settings import Asr


@pytest.mark.parametrize("code", ["en", "en-GB", "en_US", "EN"])
async def test_english_has_regions(code: str) -> None:
    assert select(Asr(engine="moonshine", language=code)).engine == "moonshine"


@pytest.mark.parametrize("code", ["de", "de-DE", "cmn", "english", "e", "yue"])
async def test_moonshine_must_know_the_language(code: str) -> None:
    with pytest.raises(ConfigError, match=r"^asr\.language = .* it knows en \(asr.engine = 'moonshine': Moonshine"):
        select(Asr(engine="moonshine", language=code))


@pytest.mark.parametrize("code", ["english", "e", "xx"])
async def test_the_engine_that_is_found_must_know_the_language(code: str) -> None:
    with pytest.raises(ConfigError, match=r"^asr\.language = .* engine mixed .* it knows .* \(auto: Moonshine"):
        select(Asr(model="nobody/nothing", language=code))


async def test_without_whisper_moonshine_is_found_alone() -> None:
    found = select(Asr(model="nobody/nothing", whisper_model="/no/folder"))
    assert found.engine == "moonshine" and "/no/folder is no folder with a Whisper model" in found.reason
