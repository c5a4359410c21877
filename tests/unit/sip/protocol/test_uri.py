"""Parts of URIs in headers: user, host and parameters, wherever parameters stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip.protocol.message import address_uri
from sip.protocol.uri import host_of, parameter, user_of, without_parameters


@pytest.mark.parametrize(
    ("header", "uri", "user", "host"),
    [
        ("<sip:+33123;npdi;rn=+33999@h>;tag=1", "sip:+33123;npdi;rn=+33999@h", "+33123", "h"),
        ('"A; B" <sip:+33123;cpc=ordinary@h;user=phone?X=1>', "sip:+33123;cpc=ordinary@h", "+33123", "h"),
        ("sip:+33123;npdi@h:5070;tag=1", "sip:+33123;npdi@h:5070", "+33123", "h"),
        ("<sip:4711:secret@[2001:db8::1]:5060;ob>", "sip:4711:secret@[2001:db8::1]:5060", "4711", "2001:db8::1"),
        ("<sip:%2B33123;phone-context=+33@h>", "sip:%2B33123;phone-context=+33@h", "+33123", "h"),
        ("<tel:+33-123;npdi;rn=+33999>", "tel:+33-123", "+33-123", ""),
        ("<tel:112;phone-context=ims.example>", "tel:112", "112", ""),
        ("<sips:pbx.example;transport=tcp>", "sips:pbx.example", "", "pbx.example"),
        ("<sip:ann@office@h>", "sip:ann@office@h", "ann@office", "h"),
        ("<sip:*98;x=?y@h>", "sip:*98;x=?y@h", "*98", "h"),
        ("", "", "", ""),
    ],
)
def test_a_user_has_parameters_of_its_own(header: str, uri: str, user: str, host: str) -> None:
    assert address_uri(header) == uri
    assert (user_of(uri), host_of(uri)) == (user, host)


def test_a_parameter_is_the_uri_s_and_not_the_user_s() -> None:
    uri = "sip:1;line=user@h;Line=a%20b;lr?line=header"
    assert parameter(uri, "line") == "a b" and parameter(uri, "lr") == parameter(uri, "x") == ""
    assert parameter("sip:h;line=2", "line") == "2"


@given(st.text(max_size=100))
def test_any_text_has_parts(text: str) -> None:
    for part in (user_of(text), host_of(text), parameter(text, "line")):
        assert isinstance(part, str)
    assert without_parameters(without_parameters(text)) == without_parameters(text)
