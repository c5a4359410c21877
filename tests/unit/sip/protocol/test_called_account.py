"""Which account a call belongs to, by what PBXs and SBCs put into an INVITE."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip.protocol.called_account import CalledAccount, called_account

OWN = "192.0.2.1:5060"
ACCOUNTS = (
    CalledAccount("sales", "4711", frozenset(("pbx.example",))),
    CalledAccount("support", "4712", frozenset(("pbx.example",))),
    CalledAccount("north", "100", frozenset(("north.example",)), line="aa"),
    CalledAccount("south", "100", frozenset(("south.example", "backup.example")), line="bb"),
)
PBX = ("sales", "support")
TENANTS = ("north", "south")


@pytest.mark.parametrize(
    ("request_uri", "to", "here", "account"),
    [
        # Two accounts at one PBX.
        (f"sip:4711@{OWN};ob", f"sip:4711@{OWN}", PBX, "sales"),
        (f"sip:4712@{OWN};ob", "tel:+331234", PBX, "support"),
        (f"sip:4712@{OWN}", "sip:+331234@pbx.example", PBX, "support"),
        (f"sip:4712@{OWN}", "sip:4711@pbx.example", PBX, "support"),  # diverted
        (f"sip:{OWN}", "sip:4711@pbx.example", PBX, "sales"),  # a gateway that names no user
        (f"sip:+331234@{OWN}", "sip:4712@pbx.example", PBX, "support"),  # the number that was dialled
        (f"sip:%34711;npdi@{OWN}", "sip:x@y", PBX, "sales"),
        (f"sip:+331234@{OWN}", "tel:4711;phone-context=pbx.example", PBX, "sales"),
        (f"sip:+331234@{OWN}", "tel:+331234", PBX, ""),
        # One at the source, called by its number.
        (f"sip:+331234@{OWN}", "tel:+331234", ("sales",), "sales"),
        # From elsewhere.
        (f"sip:4711@{OWN}", f"sip:4711@{OWN}", (), "sales"),
        (f"sip:+331234@{OWN}", "tel:+331234", (), ""),
        ("urn:service:sos", "urn:service:sos", (), ""),
        ("", "", (), ""),
        # The same extension of two tenants, at one PBX or two.
        (f"sip:100@{OWN};line=bb;ob", f"sip:100@{OWN}", TENANTS, "south"),
        (f"sip:other@{OWN};line=aa", "sip:4711@pbx.example", (*PBX, *TENANTS), "north"),
        (f"sip:100@{OWN}", "sip:100@South.Example", TENANTS, "south"),
        (f"sip:100@{OWN}", "sip:100@backup.example", (), "south"),
        (f"sip:100@{OWN}", f"sip:100@{OWN}", ("north",), "north"),
        (f"sip:100@{OWN}", f"sip:100@{OWN}", TENANTS, ""),
        (f"sip:100@{OWN};line=cc", "sip:100@north.example", TENANTS, "north"),  # of an earlier configuration
        # The Contact is told to the registrar alone: it says more than the source does.
        (f"sip:4711@{OWN}", "sip:4711@x", ("support",), "sales"),
    ],
)
def test_by_request_uri_then_user_then_source(request_uri: str, to: str, here: tuple[str, ...], account: str) -> None:
    assert called_account(ACCOUNTS, request_uri=request_uri, to_uri=to, here=here) == account


@given(st.text(max_size=60), st.text(max_size=60), st.sets(st.sampled_from([each.name for each in ACCOUNTS])))
def test_it_is_one_of_them_or_none(request_uri: str, to: str, here: set[str]) -> None:
    found = called_account(ACCOUNTS, request_uri=request_uri, to_uri=to, here=here)
    assert found in {"", *(each.name for each in ACCOUNTS)}
    if len(here) == 1 and not found:
        assert not here, "a source of one account is that account's"
