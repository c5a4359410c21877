"""A limit of the listener for the workers of a file of tests, lifted behind each test. Not in the module of the engine,
which inference processes import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.engine.listener import Limit


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Limit:
    return Limit(tmp_path_factory.mktemp("limit") / "finals")


@pytest.fixture
def limit(limited: Limit) -> Iterator[Limit]:
    yield limited
    limited.lift()
