"""Recording metadata: the RFC's own example, the drafts', what clients leave out, updates; and anything else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import Siprec, SiprecParticipant
from mediaworker.ingress.sip.siprec import speaker
from sip.protocol.message import SipMessage
from sip.protocol.siprec import (
    MAX_CHARS,
    Metadata,
    MetadataError,
    Participant,
    Recording,
    is_recording,
    metadata_of,
    parse,
    same_people,
)

NAMESPACE = "urn:ietf:params:xml:ns:recording:1"

# RFC 7865 section 10.1, shortened: two streams, each sent by one and heard by the other.
RFC = """<?xml version="1.0" encoding="UTF-8"?>
<recording xmlns='urn:ietf:params:xml:ns:recording:1'>
  <datamode>complete</datamode>
  <group group_id="7+OTCyoxTmqmqyA/1weDAg=="><associate-time>2010-12-16T23:41:07Z</associate-time></group>
  <session session_id="hVpd7YQgRW2nD22h7q60JQ==">
    <sipSessionID>ab30317f1a784dc48ff824d0d3715d86;remote=47755a9de7794ba387653f2099600ef2</sipSessionID>
    <group-ref>7+OTCyoxTmqmqyA/1weDAg==</group-ref>
  </session>
  <participant participant_id="srfBElmCRp2QB23b7Mpk0w==">
    <nameID aor="sip:bob@biloxi.com"><name xml:lang="it">Bob B</name></nameID>
    <mydata xmlns='http://example.com/my'><aor>sip:nobody@example.com</aor></mydata>
  </participant>
  <participant participant_id="zSfPoSvdSDCmU3A3TRDxAw==">
    <nameID aor="sip:Paul@biloxi.com"><name xml:lang="it">Paul</name></nameID>
  </participant>
  <stream stream_id="UAAMm5GRQKSCMVvLyl4rFw==" session_id="hVpd7YQgRW2nD22h7q60JQ=="><label>96</label></stream>
  <stream stream_id="i1Pz3to5hGk8fuXl+PbwCw==" session_id="hVpd7YQgRW2nD22h7q60JQ=="><label>97</label></stream>
  <sessionrecordingassoc session_id="hVpd7YQgRW2nD22h7q60JQ=="><associate-time>2010-12-16T23:41:07Z</associate-time>
  </sessionrecordingassoc>
  <participantsessionassoc participant_id="srfBElmCRp2QB23b7Mpk0w==" session_id="hVpd7YQgRW2nD22h7q60JQ==">
    <associate-time>2010-12-16T23:41:07Z</associate-time>
  </participantsessionassoc>
  <participantstreamassoc participant_id="srfBElmCRp2QB23b7Mpk0w==">
    <send>i1Pz3to5hGk8fuXl+PbwCw==</send>
    <recv>UAAMm5GRQKSCMVvLyl4rFw==</recv>
  </participantstreamassoc>
  <participantstreamassoc participant_id="zSfPoSvdSDCmU3A3TRDxAw==">
    <send>UAAMm5GRQKSCMVvLyl4rFw==</send>
    <recv>i1Pz3to5hGk8fuXl+PbwCw==</recv>
  </participantstreamassoc>
</recording>"""

# As draft-ietf-siprec-metadata-08 and the clients of its time have it.
DRAFT = """<?xml version="1.0" encoding="UTF-8"?>
<recording xmlns='urn:ietf:params:xml:ns:recording'>
  <dataMode>Complete</dataMode>
  <session id="urn:uuid:1"><start-time>2010-12-16T23:41:07Z</start-time></session>
  <participant id="urn:uuid:2" session="urn:uuid:1">
    <nameID aor="sip:4711@192.0.2.1"><name>Ann</name></nameID>
    <send>urn:uuid:4</send>
    <recv>urn:uuid:5</recv>
  </participant>
  <participant id="urn:uuid:3" session="urn:uuid:1">
    <aor>tel:+4930123456</aor>
    <send>urn:uuid:5</send>
  </participant>
  <stream id="urn:uuid:4" session="urn:uuid:1"><mode>separate</mode><label>1</label></stream>
  <stream id="urn:uuid:5" session="urn:uuid:1"><mode>separate</mode><label>2</label></stream>
</recording>"""


def partial(inside: str) -> Metadata:
    return parse(f"<recording xmlns='{NAMESPACE}'><datamode>partial</datamode>{inside}</recording>")


def recording(*documents: str) -> Recording:
    made = Recording()
    for document in documents:
        made.update(parse(document))
    return made


def names(made: Recording, label: str, place: int = 9) -> list[str]:
    return [participant.name or participant.user for participant in made.speakers(label, place)]


def test_the_example_of_the_rfc() -> None:
    made = recording(RFC)
    assert made.speakers("96", 0) == (Participant("zSfPoSvdSDCmU3A3TRDxAw==", "sip:Paul@biloxi.com", "Paul"),)
    assert names(made, "97") == ["Bob B"] and names(made, "98") == []
    ((session_id, label),) = made.sessions.items()
    assert session_id == "hVpd7YQgRW2nD22h7q60JQ==" and label.startswith("ab30317f")


def test_what_was_a_draft_is_in_the_field() -> None:
    made = recording(DRAFT)
    assert names(made, "1") == ["Ann"] and names(made, "2") == ["+4930123456"]


def test_streams_without_labels_go_by_their_order() -> None:
    made = recording(RFC.replace("<label>96</label>", "").replace("<label>97</label>", ""))
    assert [names(made, "", place) for place in range(3)] == [["Paul"], ["Bob B"], []]


def test_a_label_where_the_streams_id_belongs() -> None:
    made = recording(
        "<recording><participant participant_id='a'><nameID aor='sip:1@x'/></participant>"
        "<participantstreamassoc participant_id='a'><send>a_leg</send></participantstreamassoc></recording>"
    )
    assert names(made, "a_leg") == ["1"]


def people(*names: str) -> str:
    return "".join(f"<participant participant_id='{n}'><nameID aor='sip:{n}@x'/></participant>" for n in names)


def streams(*labels: str, mode: str = "") -> str:
    said = f"<mode>{mode}</mode>" if mode else ""
    return "".join(f"<stream stream_id='s{n}'><label>{n}</label>{said}</stream>" for n in labels)


def sends(**of: str) -> str:
    parts = [(n, "".join(f"<send>s{label}</send>" for label in labels)) for n, labels in of.items()]
    return "".join(f"<participantstreamassoc participant_id='{n}'>{s}</participantstreamassoc>" for n, s in parts)


def document(*parts: str) -> Recording:
    return recording(f"<recording>{''.join(parts)}</recording>")


def test_participants_without_associations_are_paired_by_their_order() -> None:
    made = document(people("ann", "bob"), streams("1", "2"))
    assert (names(made, "1"), names(made, "2"), names(made, "3")) == (["ann"], ["bob"], [])
    assert (names(made, "", 0), names(made, "", 1), names(made, "", 2)) == (["ann"], ["bob"], [])
    assert names(document(people("ann", "bob"), streams("1")), "1") == [], "whose it is cannot be told"
    assert names(document(people("ann"), streams("1", "2")), "1") == []
    # What the metadata says of somebody counts for everybody: the other one is not heard.
    assert names(document(people("ann", "bob"), streams("1", "2"), sends(ann="2")), "1") == []
    alone = document(people("ann", "bob"))
    assert [alone.speakers("x", place, unmixed_place=place, of=2) for place in range(3)] == [
        (Participant("ann", "sip:ann@x"),), (Participant("bob", "sip:bob@x"),), (),
    ]  # fmt: skip
    assert alone.speakers("x", 0, of=3) == ()
    third = document(people("ann", "bob"), streams("1", "2"), streams("3", mode="mixed"))
    assert (names(third, "2"), names(third, "3")) == (["bob"], [])


def test_which_stream_carries_everybody() -> None:
    said = document(people("ann", "bob"), streams("1", "2"), streams("3", mode="Mixed"))
    assert [said.is_mixed(label, 9) for label in "123"] == [False, False, True]
    assert [said.is_mixed("", place) for place in range(4)] == [False, False, True, False]
    shared = document(people("ann", "bob"), streams("1", "2", "3"), sends(ann="13", bob="23"))
    assert [shared.is_mixed(label, 9) for label in "123"] == [False, False, True]
    together = document(people("ann", "bob", "cleo"), streams("1", "2"), sends(ann="1", bob="1", cleo="2"))
    assert not together.is_mixed("1", 0), "two at one telephone have no other stream"
    assert document().is_mixed("Mixed", 0) and not document().is_mixed("remix", 0)
    said.update(partial("<stream stream_id='s1'><label>1</label></stream>"))
    assert said.is_mixed("3", 9)
    said.update(parse(DRAFT))
    assert not said.is_mixed("3", 9)


def test_metadata_in_base64() -> None:
    def message(body: str, *headers: str) -> SipMessage:
        kind = "Content-Type: application/rs-metadata+xml"
        return SipMessage.parse("\r\n".join(["INVITE sip:x@y SIP/2.0", "Call-ID: 1", kind, *headers, "", body]))

    for text in (RFC, "\ufeff" + DRAFT):
        plain = message(text)
        coded = base64.encodebytes(text.encode()).decode()  # in lines of 76
        assert "\n" in coded.strip()
        for each in (message(coded, "Content-Transfer-Encoding: base64"), message(coded), plain):
            assert is_recording(each) and len(recording(metadata_of(each).lstrip("\ufeff"))._participants) == 2
    for junk in ("bm8=", "####", "PD94", "é" * 10):
        with pytest.raises(MetadataError):
            recording(metadata_of(message(junk)))


def test_an_update_changes_what_it_names() -> None:
    made = recording(RFC)
    bob = "participant_id='srfBElmCRp2QB23b7Mpk0w=='"
    made.update(partial(f"<participant {bob}><nameID><name>Robert</name></nameID></participant>"))
    assert names(made, "97") == ["Robert"] and made.speakers("97", 0)[0].aor == "sip:bob@biloxi.com"
    # Bob transfers the call to Cleo: who is heard in the stream is another.
    made.update(
        partial(
            "<participant participant_id='c'><nameID aor='sip:cleo@biloxi.com'/></participant>"
            "<participantstreamassoc participant_id='c'><send>i1Pz3to5hGk8fuXl+PbwCw==</send></participantstreamassoc>"
            f"<participantstreamassoc {bob}><send>i1Pz3to5hGk8fuXl+PbwCw==</send>"
            "<disassociate-time>2010-12-16T23:45:07Z</disassociate-time></participantstreamassoc>"
        )
    )
    assert names(made, "97") == ["cleo"] and names(made, "96") == ["Paul"]
    gone = "<disassociate-time>2010-12-16T23:50:07Z</disassociate-time>"
    made.update(partial(f"<participantsessionassoc participant_id='c'>{gone}</participantsessionassoc>"))
    assert names(made, "97") == []
    made.update(parse(DRAFT))
    assert names(made, "96") == [] and names(made, "1") == ["Ann"], "a complete one stands for itself"


@pytest.mark.parametrize("order", [1, -1])
def test_from_one_session_to_another_in_one_document(order: int) -> None:
    """As a transfer is told: what ends and what begins stand together, in any order."""
    gone = "<disassociate-time>2010-12-16T23:45:07Z</disassociate-time>"
    parts = [
        f"<participantsessionassoc participant_id='ann' session_id='1'>{gone}</participantsessionassoc>",
        "<participantsessionassoc participant_id='ann' session_id='2'/>",
        f"<participantsessionassoc participant_id='bob' session_id='1'>{gone}</participantsessionassoc>",
    ]
    made = document(people("ann", "bob"), streams("1", "2"), sends(ann="1", bob="2"))
    made.update(partial("".join(parts[::order])))
    assert (names(made, "1"), names(made, "2")) == (["ann"], [])
    parts = [
        f"<participantstreamassoc participant_id='ann'><send>s1</send>{gone}</participantstreamassoc>",
        "<participantstreamassoc participant_id='ann'><send>s3</send></participantstreamassoc>",
        streams("3"),
    ]
    made.update(partial("".join(parts[::order])))
    assert (names(made, "1"), names(made, "3")) == ([], ["ann"])


@pytest.mark.parametrize(
    "text",
    [
        "", "no XML", "<recording", "<other/>", "<recording><participant/></recording>",
        "<recording>" + " " * MAX_CHARS,
        '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><recording>&b;</recording>',
        '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><recording>&x;</recording>',
        "<recording>\udce9</recording>", "<a>" * 50_00,
        "<recording>" + "".join(f"<stream id='{n}'/>" for n in range(300)) + "</recording>",
    ],
)  # fmt: skip
def test_what_is_no_metadata(text: str) -> None:
    with pytest.raises(MetadataError):
        recording(text)


def test_another_encoding_that_the_xml_names() -> None:
    head = '<?xml version="1.0" encoding="ISO-8859-1"?>'
    text = f"{head}<recording><participant id='a'><name>Ren\udce9</name></participant></recording>"
    assert parse(text).participants["a"] == Participant("a", "", "René")


TAGS = st.sampled_from(
    "mode recording participant stream nameID name aor label send recv participantstreamassoc session datamode "
    "disassociate-time participantsessionassoc associate-time x".split()
)
IDS = st.sampled_from(["", 'id="a"', 'participant_id="a"', 'stream_id="s"', 'id="b" aor="sip:1@x"', 'session_id="q"'])
TREES = st.recursive(
    st.sampled_from(["", "partial", "complete", "mixed", "a", "s", "\u00e9", "&lt;"]),
    lambda inner: st.builds(
        lambda tag, about, parts: f"<{tag} {about}>{''.join(parts)}</{tag}>", TAGS, IDS, st.lists(inner, max_size=4)
    ),
    max_leaves=30,
)


@given(st.lists(TREES | st.text(max_size=30), max_size=4), st.text(max_size=4))
def test_any_text_is_metadata_or_an_error(inner: list[str], label: str) -> None:
    made = Recording()
    for each in inner:
        try:
            made.update(parse(f"<recording>{each}</recording>"))
        except MetadataError as error:
            assert str(error) and "\n" not in str(error)
    assert made.is_mixed(label, 0) in (True, False)
    for participant in made.speakers(label, 0) + made.speakers(label, 1, unmixed_place=0, of=2):
        assert participant.user is not None and len(participant.name) <= 500


def test_which_invites_open_a_recording_session() -> None:
    def invite(*headers: str, body: str = "") -> SipMessage:
        return SipMessage.parse("\r\n".join(["INVITE sip:x@y SIP/2.0", "Call-ID: 1", *headers, "", body]))

    assert is_recording(invite("Require: timer, SIPREC"))
    assert is_recording(invite("Contact: <sip:src@example.com>;+sip.src"))
    assert not is_recording(invite("Supported: siprec", "Contact: <sip:src@example.com>"))
    mixed = 'Content-Type: multipart/mixed; boundary="b"'
    for kind in ("application/rs-metadata+xml", "Application/rs-metadata"):
        parts = f"--b\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n--b\r\nContent-Type: {kind}\r\n\r\n{DRAFT}"
        parts += "\r\n--b--"
        message = invite(mixed, body=parts)
        assert is_recording(message) and names(recording(metadata_of(message)), "1") == ["Ann"]


def test_roles_are_configured() -> None:
    settings = Siprec(
        participants=(
            SiprecParticipant(match="sip:4711@*", role="agent", name="Desk 11"),
            SiprecParticipant(match="47??", role="agent"),
            SiprecParticipant(match="inbound", role="customer"),
        ),
        others="customer",
    )
    ann, bob = Participant("a", "sip:4711@pbx", "Ann"), Participant("b", "sip:4712@pbx")
    cleo = Participant("c", "tel:+1", "Cleo")
    assert speaker(settings, [ann], "1") == ("agent", "Desk 11")
    assert speaker(settings, [bob], "1") == ("agent", "4712")
    assert speaker(settings, [cleo], "1") == ("customer", "Cleo")
    assert speaker(settings, [ann, bob], "1") == ("agent", "Desk 11, 4712")
    assert speaker(settings, [ann, cleo], "1") == ("unknown", "Desk 11, Cleo"), "a stream of both sides has no role"
    assert speaker(settings, [], "inbound") == ("customer", "") and speaker(settings, [], "1") == ("unknown", "")


def test_a_complete_document_forgets_who_sent_what() -> None:
    made = document(people("ann", "bob"), streams("1", "2"), sends(ann=["1"], bob=["2"]))
    made.update(parse(f"<recording>{people('cleo', 'dan')}{streams('1', '2')}</recording>"))
    assert names(made, "1") == ["cleo"] and names(made, "2") == ["dan"]


def test_everybody_who_is_named_is_an_identity_once() -> None:
    made = recording(DRAFT)
    assert made.identities() == ("sip:4711@192.0.2.1", "4711", "Ann", "tel:+4930123456", "+4930123456")
    assert Recording().identities() == ()


def test_metadata_may_be_in_base64() -> None:
    def invite(body: str) -> SipMessage:
        head = "INVITE sip:x@y SIP/2.0\r\nCall-ID: 1\r\nContent-Type: application/rs-metadata+xml"
        return SipMessage.parse(f"{head}\r\n\r\n{body}")

    encoded = base64.b64encode(RFC.encode()).decode()
    for body in (RFC, encoded, "\r\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))):
        assert metadata_of(invite(body)).strip() == RFC.strip()
    assert metadata_of(invite("not base64!")) == "not base64!" and not metadata_of(invite(" ")).strip()


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (("a", "sip:4711@x"), ("z", "tel:4711"), True),
        (("a", "sip:Ann@x"), ("a", "sip:ann@x;user=phone", "Ann"), True),
        (("a", "", "Ann"), ("z", "sip:4711@x", "Ann"), True),
        (("a", "sip:4711@x"), ("a",), True),
        (("a", "", "Ann"), ("a", "", "Ann B."), True),
        (("a", "sip:4711@x"), ("a", "sip:4799@x"), False),
        (("a", "sip:4711@x", "Ann"), ("a", "sip:4799@x", "Cleo"), False),
        (("a", "sip:4711@x"), ("z",), False),
        (("a",), ("z",), False),
    ],
)
def test_who_is_the_same_person(before: tuple[str, ...], now: tuple[str, ...], same: bool) -> None:
    one, other = Participant(*before), Participant(*now)
    assert one.is_same(other) == other.is_same(one) == same
    assert same_people([one], [other]) == same
    third = Participant("third", "sip:3@x")
    assert not same_people([one], [other, third]) and not same_people([one, third], [other])
    assert same_people([third, one], [other, third]) == same


def test_who_is_named_by_the_id_alone_is_who_was_named_before() -> None:
    made = document(people("ann"), streams("1"), sends(ann="1"))
    gone = "<disassociate-time>2010-12-16T23:45:07Z</disassociate-time>"
    made.update(partial(f"<participantsessionassoc participant_id='ann'>{gone}</participantsessionassoc>"))
    alone = "<participant participant_id='ann'/>" + streams("1").replace("<label>1</label>", "") + sends(ann="1")
    for text in (f"<recording>{alone}</recording>", f"<recording><datamode>partial</datamode>{alone}</recording>"):
        made.update(parse(text))
        assert names(made, "1") == ["ann"]
    made.update(partial("<participant participant_id='ann'><nameID aor='sip:bob@x'/></participant>"))
    assert made.speakers("1", 0) == (Participant("ann", "sip:bob@x"),), "nobody has another's name"
