"""Web pages of other origins: those of the configuration, with a key, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import ConfigError
from config.load import parse
from lab.http.api_server import EVENTS_KEY, bearer, running_api

CRM = "https://crm.example"
ASK = {"Origin": CRM, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}


async def test_an_origin_of_the_configuration_may_ask_with_a_key(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True, http={"host": "127.0.0.1", "port": 0, "cors_origins": [CRM]}) as api:
        asked = await api.client.options("/v1/calls", headers=ASK)
        assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == CRM
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()
        answer = await api.client.get("/v1/calls", headers={"Origin": CRM} | bearer(EVENTS_KEY))
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == CRM
        assert "access-control-allow-credentials" not in answer.headers
        # A page is told what is wrong, too.
        refused = await api.client.get("/v1/calls", headers={"Origin": CRM})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == CRM
        other = ASK | {"Origin": "https://elsewhere.example"}
        assert (await api.client.options("/v1/calls", headers=other)).status_code == 400
        answer = await api.client.get("/v1/calls", headers=other | bearer(EVENTS_KEY))
        assert "access-control-allow-origin" not in answer.headers


async def test_without_configuration_there_is_none(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        answer = await api.client.get("/v1/calls", headers={"Origin": CRM} | bearer(EVENTS_KEY))
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
        assert (await api.client.options("/v1/calls", headers=ASK)).status_code == 405


@pytest.mark.parametrize("origin", ["crm.example", "https://", "https://crm.example/", "https://*.example", "null"])
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    parse({"http": {"cors_origins": [CRM, "http://localhost:3000", "*"]}})
    with pytest.raises(ConfigError, match=r"cors_origins\[0\]"):
        parse({"http": {"cors_origins": [origin]}})
