"""SIPp scenarios from steps: a dialog as a caller has it, without writing each header of each message again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from xml.sax.saxutils import quoteattr

from lab.patience import seconds

SDP = "application/sdp"
MIXED = "multipart/mixed;boundary=between"


@dataclass
class Body:
    content_type: str
    text: str


def offer(*media: str, address: str = "[media_ip]", version: int = 1) -> Body:
    """`media`: m-lines with what belongs to them, lines apart by newlines."""
    family = "[media_ip_type]" if address == "[media_ip]" else "6" if ":" in address else "4"
    head = f"v=0\no=caller 1 {version} IN IP[media_ip_type] [media_ip]\ns=-\nc=IN IP{family} {address}\nt=0 0\n"
    return Body(SDP, head + "\n".join(media))


def mixed(*bodies: Body) -> Body:
    parts = [f"--between\nContent-Type: {body.content_type}\n\n{body.text.rstrip()}" for body in bodies]
    return Body(MIXED, "\n".join([*parts, "--between--"]))


@dataclass
class Send:
    """A request of the caller's, the answer that it must get, and what must be in there.

    `keep`: variable → regular expression; what it matches in the body is kept, and written to the log of the call.
    """

    method: str
    body: Body | None = None
    headers: Sequence[str] = ()
    answer: int = 200
    has: Sequence[str] = ()
    lacks: Sequence[str] = ()
    keep: Mapping[str, str] = field(default_factory=dict)
    ack: Body | None = None
    acked: bool = True


@dataclass
class Pause:
    milliseconds: int
    """On a quiet machine: so many that a test can do something meanwhile."""


@dataclass
class Expect:
    """A request of the worker's, answered 200."""

    method: str


Step = Send | Pause | Expect


def scenario(*steps: Step, contact: str = "") -> str:
    """`contact`: parameters of the caller's Contact."""
    writer = _Writer(contact)
    body = "\n".join(line for step in steps for line in writer.step(step))
    names = ",".join(writer.variables)
    reference = f'<Reference variables="{names}"/>' if names else ""
    return f'<?xml version="1.0" encoding="UTF-8" ?>\n<scenario name="steps">\n{body}\n{reference}\n</scenario>\n'


class _Writer:
    def __init__(self, contact: str) -> None:
        self._contact = contact
        self._cseq = count(1)
        self._begun = False
        self._names = count(1)
        self.variables: list[str] = []

    def step(self, step: Step) -> Iterator[str]:
        match step:
            case Pause():
                yield f'<pause milliseconds="{seconds(step.milliseconds):.0f}"/>'
            case Expect():
                yield f'<recv request="{step.method}"/>'
                copied = "\n".join(f"[last_{name}:]" for name in ("Via", "From", "To", "Call-ID", "CSeq"))
                yield _send(f"SIP/2.0 200 OK\n{copied}\n{self._own()}\nContent-Length: 0\n", retrans=False)
            case Send():
                yield from self._request(step)

    def _request(self, step: Send) -> Iterator[str]:
        number = next(self._cseq)
        yield self._message(step.method, number, step.body, step.headers, begin=not self._begun)
        if step.method == "INVITE":
            yield '<recv response="100" optional="true"/>'
            yield '<recv response="180" optional="true"/>'
        record = ' rrs="true"' if not self._begun and step.answer < 300 else ""
        yield f'<recv response="{step.answer}"{record}>{self._checks(step)}</recv>'
        if step.keep:
            kept = " ".join(f"{name}=[${name}]" for name in step.keep)
            yield f"<nop><action><log message={quoteattr(kept)}/></action></nop>"
        if step.method == "INVITE" and step.acked:
            within = step.answer >= 300 and not self._begun
            yield self._message("ACK", number, step.ack, (), begin=within, tagged=True)
        self._begun = self._begun or step.answer < 300

    def _checks(self, step: Send) -> str:
        checks = [self._check(text, "check_it") for text in step.has]
        checks += [self._check(text, "check_it_inverse") for text in step.lacks]
        for name, text in step.keep.items():
            where = f'search_in="msg" check_it="true" assign_to={quoteattr(name)}'
            checks.append(f"<ereg regexp={quoteattr(text)} {where}/>")
        return f"<action>{''.join(checks)}</action>" if checks else ""

    def _check(self, text: str, how: str) -> str:
        name = f"v{next(self._names)}"
        self.variables.append(name)
        return f'<ereg regexp={quoteattr(text)} search_in="msg" {how}="true" assign_to="{name}"/>'

    def _message(
        self,
        method: str,
        number: int,
        body: Body | None,
        headers: Sequence[str],
        *,
        begin: bool,
        tagged: bool = False,
    ) -> str:
        tag = "[peer_tag_param]" if tagged or not begin else ""
        lines = [
            f"{method} {'sip:1000@[remote_ip]:[remote_port]' if begin else '[next_url]'} SIP/2.0",
            "Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]",
            'From: "Caller" <sip:4711@[local_ip]:[local_port]>;tag=[pid]-[call_number]',
            f"To: <sip:1000@[remote_ip]:[remote_port]>{tag}",
            "Call-ID: [call_id]",
            f"CSeq: {number} {method}",
            self._own(),
            "Max-Forwards: 70",
            *(["[routes]"] if tag else []),
            *headers,
        ]
        if body is not None:
            lines.append(f"Content-Type: {body.content_type}")
        lines.append("Content-Length: [len]")
        return _send("\n".join([*lines, "", body.text if body else ""]), retrans=method != "ACK")

    def _own(self) -> str:
        return f"Contact: <sip:4711@[local_ip]:[local_port];transport=[transport]>{self._contact}"


def _send(text: str, *, retrans: bool) -> str:
    often = ' retrans="500"' if retrans else ""
    head, _, body = text.partition("\n\n")
    return f"<send{often}><![CDATA[\n{head.rstrip()}\n\n{body.rstrip()}\n]]></send>"
