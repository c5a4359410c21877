"""The tag of a From or To header."""

from __future__ import annotations

import pytest

from sip.protocol.message import tag_of


@pytest.mark.parametrize(
    ("header", "tag"),
    [
        ("<sip:4711@pbx.example>;tag=a1", "a1"), ("sip:4711@pbx.example;tag=a1", "a1"), ("<sip:x@y>", ""),
        ('"Ann;tag=no" <sip:x@y;tag=neither> ; Tag = Yes;other=1', "Yes"), ("<sip:x@y>;other=1;tag=b;last", "b"),
    ],
)  # fmt: skip
def test_the_tag_of_a_header(header: str, tag: str) -> None:
    assert tag_of(header) == tag
