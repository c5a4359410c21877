"""The sending side of a Twilio stream: every message as Twilio writes it, and when it is due."""

from __future__ import annotations

import base64
import json
from typing import Any

from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule


def written(**options: Any) -> list[tuple[float, dict[str, Any]]]:
    writer = StreamWriter("MZ1", "CA1", "AC1")
    tracks = options.pop("tracks", {"inbound": b"\x01" * 320, "outbound": b"\x02" * 200})
    return [(due_s, json.loads(write())) for due_s, write in schedule(writer, tracks, {"agent": "7"}, **options)]


def test_a_stream_of_two_tracks() -> None:
    messages = written()
    assert [due_s for due_s, _ in messages] == [0.0, 0.0, 0.02, 0.02, 0.04, 0.04, 0.04]
    assert messages[0][1] == {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    assert messages[1][1] == {
        "event": "start", "sequenceNumber": "1", "streamSid": "MZ1",
        "start": {
            "accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound", "outbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {"agent": "7"},
        },
    }  # fmt: skip
    media = [message["media"] for _, message in messages[2:6]]
    assert [(each["track"], each["chunk"], each["timestamp"]) for each in media] == [
        ("inbound", "1", "0"), ("outbound", "1", "0"), ("inbound", "2", "20"), ("outbound", "2", "20"),
    ]  # fmt: skip
    assert base64.b64decode(media[3]["payload"]) == b"\x02" * 40 + b"\xff" * 120, "the rest is silence"
    assert [message.get("sequenceNumber") for _, message in messages] == [None, *"123456"]
    assert messages[-1][1] == {
        "event": "stop", "sequenceNumber": "6", "streamSid": "MZ1", "stop": {"accountSid": "AC1", "callSid": "CA1"},
    }  # fmt: skip


def test_a_tail_of_silence_and_digits_every_half_second() -> None:
    messages = written(tracks={"inbound": b"\x01" * 160}, tail_s=1.5, digits="5#")
    assert messages[-1][0] == 1.52
    assert sum(message["event"] == "media" for _, message in messages) == 76
    digits = [(due_s, message["dtmf"]) for due_s, message in messages if message["event"] == "dtmf"]
    assert digits == [
        (0.5, {"track": "inbound_track", "digit": "5"}), (1.0, {"track": "inbound_track", "digit": "#"}),
    ]  # fmt: skip


def test_marks_and_sids() -> None:
    writer = StreamWriter("MZ1", "CA1", "AC1", sequence=4)
    assert json.loads(writer.mark("end")) == {
        "event": "mark", "sequenceNumber": "5", "streamSid": "MZ1", "mark": {"name": "end"},
    }  # fmt: skip
    assert len(new_sid("CA")) == 34 and new_sid("MZ").startswith("MZ") and new_sid("AC") != new_sid("AC")
