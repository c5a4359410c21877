"""Dialogs as tables: who sends what, what must come, and how the call ends. SIPp is the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.patience import until
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import SDP, Body, Send, Step, mixed, offer, scenario
from lab.sip.siprec import REQUIRE, SRC, line, metadata
from lab.worker.peers import Worker
from tools.field.outcome import Outcome, one_line


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    reference: str
    steps: Sequence[Step]
    reason: str = "hangup"
    """Of `call.ended`; empty: there is no call."""
    contact: str = ""
    """Parameters of the caller's Contact."""


def audio(*lines: str, formats: str = "0 101", port: int = 40000) -> str:
    events = () if "101" not in formats.split() or any("101" in each for each in lines) else (
        "a=rtpmap:101 telephone-event/8000",
    )  # fmt: skip
    return "\n".join([f"m=audio {port} RTP/AVP {formats}", *events, *lines])


def bare(text: str) -> Body:
    return Body(SDP, text)


PLAIN, BYE = Send("INVITE", offer(audio())), Send("BYE")
TWO = offer(line(40000, "1"), line(40002, "2"))
RECORDING = Send("INVITE", mixed(TWO, metadata()), REQUIRE)


def hold(*lines: str, address: str = "[media_ip]", ours: str) -> tuple[Send, Send]:
    """And its end; both by an offer."""
    held = Send("INVITE", offer(audio(*lines), address=address, version=2), has=[f"a={ours}"])
    return held, Send("INVITE", offer(audio(), version=3), has=["a=sendrecv"])


def delayed(*lines: str, address: str = "[media_ip]", version: int = 2) -> Send:
    """A re-INVITE that asks for an offer, and the answer to that in its ACK."""
    answer = offer(audio(*lines), address=address, version=version)
    return Send("INVITE", has=["m=audio [1-9][0-9]* RTP/AVP 0 .*101", "a=sendrecv"], ack=answer)


FLOWS = (
    Flow("a call with digits", "RFC 4733", [PLAIN, BYE]),
    Flow("a call whose offer comes in the ACK", "RFC 3261 13.2.2.4",
         [Send("INVITE", has=["m=audio"], ack=offer(audio())), BYE]),
    Flow("a re-INVITE without a body", "siphon-ai#190, diago#124", [PLAIN, delayed(), BYE]),
    Flow("three of them", "CUCM", [PLAIN, delayed(), delayed(version=3), delayed(version=4), BYE]),
    Flow("hold and resume by delayed offers", "CUCM", [PLAIN, delayed("a=inactive"), delayed(version=3), BYE]),
    Flow("music on hold by a delayed offer", "CUCM", [PLAIN, delayed("a=sendonly"), delayed(version=3), BYE]),
    Flow("hold by a null address in the ACK", "CUCM", [PLAIN, delayed(address="0.0.0.0"), delayed(version=3), BYE]),
    Flow("hold by inactive", "RFC 3264 8.4", [PLAIN, *hold("a=inactive", ours="inactive"), BYE]),
    Flow("hold by sendonly", "RFC 3264 8.4", [PLAIN, *hold("a=sendonly", ours="recvonly"), BYE]),
    Flow("hold by a null address", "RFC 2543", [PLAIN, *hold(address="0.0.0.0", ours="recvonly"), BYE]),
    Flow("a call that begins on hold", "RFC 3264", [Send("INVITE", offer(audio("a=inactive"))), BYE]),
    Flow("a session refresh by UPDATE", "RFC 4028", [PLAIN, Send("UPDATE"), BYE]),
    Flow("an UPDATE with an offer", "RFC 3311",
         [PLAIN, Send("UPDATE", offer(audio(), version=2), has=["m=audio"]), BYE]),
    Flow("another port and codec", "RFC 3264 8.3", [
        PLAIN, Send("INVITE", offer(audio(formats="8 101", port=40010), version=2), has=["RTP/AVP 8 101"]), BYE]),
    Flow("telephone-event of another clock first", "pjproject#2675", [
        Send("INVITE", offer(audio("a=rtpmap:110 telephone-event/16000", formats="0 110 101")), has=["RTP/AVP 0"]),
        BYE]),
    Flow("telephone-event at a codec's number", "", [
        Send("INVITE", offer(audio("a=rtpmap:10 telephone-event/8000", formats="0 10")), has=["RTP/AVP 0"]), BYE]),
    Flow("telephone-event at 96", "siphon-ai#190", [
        Send("INVITE", offer(audio("a=rtpmap:96 telephone-event/8000", formats="0 96")), has=["RTP/AVP 0 96"]),
        Send("INVITE", has=["RTP/AVP 0 .*96", "a=rtpmap:96 telephone-event"],
             ack=offer(audio("a=rtpmap:96 telephone-event/8000", formats="0 96"), version=2)), BYE]),
    Flow("Opus with one channel before PCMU", "", [
        Send("INVITE", offer(audio("a=rtpmap:120 opus/48000/1", formats="120 0 101")), has=["RTP/AVP 120"]), BYE]),
    Flow("only G.729", "", [Send("INVITE", offer("m=audio 40000 RTP/AVP 18"), answer=488)], reason=""),
    Flow("no s= line", "asterisk#1754", [
        Send("INVITE", bare("v=0\no=- 1 1 IN IP4 [media_ip]\nc=IN IP4 [media_ip]\nt=0 0\n" + audio())), BYE]),
    Flow("an o= line without a user", "asterisk#1754", [
        Send("INVITE", bare("v=0\no= 1 1 IN IP4 [media_ip]\ns=-\nc=IN IP4 [media_ip]\nt=0 0\n" + audio())), BYE]),
    Flow("a line of video beside the audio", "RFC 3264 6",
         [Send("INVITE", offer("m=video 40010 RTP/AVP 31", audio()), has=["m=video 0"]), BYE]),
    Flow("fax is refused, and the call goes on", "RFC 3261 14.1", [
        PLAIN, Send("INVITE", offer("m=image 40010 udptl t38", version=2), answer=488), Send("OPTIONS"), BYE]),
    Flow("digits and a flash by INFO, as event numbers", "RFC 4733 3.2", [
        PLAIN, *(Send("INFO", Body("application/dtmf-relay", f"Signal={each}\nDuration=160")) for each in (10, 11, 16)),
        Send("INFO", Body("application/dtmf", "10")), Send("INFO", Body("application/dtmf", "17"), answer=415), BYE]),
    Flow("recording metadata alone", "RFC 7866 9.1", [
        RECORDING, Send("UPDATE", metadata()), Send("INVITE", metadata(), has=["m=audio [1-9]"], ack=TWO), BYE],
        contact=SRC),
    Flow("two streams of a recording session", "RFC 7866", [RECORDING, BYE], contact=SRC),
    Flow("a recording session refreshed without a body", "siphon-ai#190", [
        RECORDING, Send("INVITE", has=["m=audio [1-9]", "a=label:1", "a=label:2"], ack=TWO), BYE], contact=SRC),
    Flow("a recording session whose streams pause and resume", "RFC 7866 8.1.7", [
        RECORDING,
        Send("INVITE", offer(line(40000, "1", "inactive"), line(40002, "2", "inactive"), version=2),
             has=["a=inactive"]),
        Send("INVITE", offer(line(40000, "1"), line(40002, "2"), version=3), has=["a=recvonly"]), BYE], contact=SRC),
)  # fmt: skip


async def run(running: Worker, folder: Path) -> list[Outcome]:
    found = []
    for flow in FLOWS:
        before = {call["call_id"] for call in running.every_call()}
        wrong = ""
        try:
            script = scenario(*flow.steps, contact=flow.contact)
            await Sipp(_made(folder / flow.name.replace(" ", "-").replace("/", "-"))).run(
                script, f"127.0.0.1:{running.sip_port}", timeout_s=30
            )
            wrong = _ended(running, flow, before)
        except Exception as error:
            wrong = one_line(error)
        found.append(Outcome("calls", flow.name, flow.reference, wrong))
    return found


def _ended(running: Worker, flow: Flow, before: set[str]) -> str:
    """What is wrong with the call that there is now."""
    if not flow.reason:
        return "it has become a call" if len(_new(running, before)) else ""
    (call_id,) = until(lambda: _new(running, before))
    until(lambda: running.get(f"/v1/calls/{call_id}")["ended_at"])
    reason = running.events(call_id)[-1]["reason"]
    return "" if reason == flow.reason else f"ended as {reason}"


def _new(running: Worker, before: set[str]) -> list[str]:
    return [call["call_id"] for call in running.every_call() if call["call_id"] not in before]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
