"""Forms with a file, however they come: cut anywhere, mutated, endless."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from mediaworker.files.disk import MB, DiskFull, IncomingFile
from mediaworker.http.problem import Problem
from mediaworker.http.requests import parsed
from mediaworker.http.resources.calls import Patch
from mediaworker.http.resources.jobs import Wanted, parse_fields
from mediaworker.http.uploads import BadUpload, Upload, receive

BOUNDARY = "frontier"
MAX_BYTES = 2 * MB


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    more = f'; filename="{filename}"\r\nContent-Type: audio/wav' if filename is not None else ""
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
AUDIO = bytes(range(256)) * 3 + f"\r\n--{BOUNDARY[:-1]}\r\n--\r\n".encode() * 5
FORM = (
    part("language", b"en") + part("file", AUDIO, "a „call“.wav")
    + part("speakers[]", b"Ann") + part("speakers[]", b"Bo") + END
)  # fmt: skip
UPLOAD = Upload("a „call“.wav", {"language": ["en"], "speakers[]": ["Ann", "Bo"]})


def taken(
    folder: Path, chunks: Iterable[bytes], *, max_bytes: int = MAX_BYTES, kind: str = "", whole: bool = True
) -> tuple[Upload, bytes]:
    """What is made of a body that comes in these pieces. Raises what `receive` raises."""
    pieces = iter(chunks)

    async def come() -> dict[str, object]:
        if (data := next(pieces, None)) is not None:
            return {"type": "http.request", "body": data, "more_body": True}
        return {"type": "http.request", "body": b""} if whole else {"type": "http.disconnect"}

    header = kind or f"multipart/form-data; boundary={BOUNDARY}"
    request = Request({"type": "http", "headers": [(b"content-type", header.encode("latin-1"))]}, come)

    async def run() -> tuple[Upload, bytes]:
        into = IncomingFile(folder, min_free_bytes=0)
        try:
            upload = await receive(request, into, max_bytes=max_bytes)
            into.file.seek(0)
            return upload, into.file.read()
        finally:
            into.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uploads")


@given(st.lists(st.integers(0, len(FORM)), max_size=12))
def test_wherever_it_is_cut_it_is_the_same(folder: Path, cuts: list[int]) -> None:
    ends = sorted({0, *cuts, len(FORM)})
    pieces = [FORM[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    assert taken(folder, pieces) == (UPLOAD, AUDIO)


def test_byte_by_byte_it_is_the_same(folder: Path) -> None:
    assert taken(folder, (bytes([byte]) for byte in FORM)) == (UPLOAD, AUDIO)


@given(st.data())
def test_mutated_it_is_refused_or_taken(folder: Path, data: st.DataObject) -> None:
    body = bytearray(FORM)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        pieces = st.binary(max_size=30) | st.sampled_from([b"\r\n", b"--", END, BOUNDARY.encode(), b'"', b";"])
        body[at : at + data.draw(st.integers(0, 60))] = data.draw(pieces)
    middle = data.draw(st.integers(0, len(body)))
    try:
        upload, audio = taken(folder, [bytes(body[:middle]), bytes(body[middle:])], whole=data.draw(st.booleans()))
    except (BadUpload, ClientDisconnect) as error:
        assert not isinstance(error, BadUpload) or 400 <= error.status < 500
    else:
        assert len(audio) <= len(body) and isinstance(upload.filename, str)


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("filename*=UTF-8''%C3%BCber%20a.wav", "über a.wav"),
        ("filename*=utf-8'en'a.sln16", "a.sln16"),
        ("filename*=iso-8859-1''%FCber.wav", "über.wav"),
        ("filename*=nothing''a.wav", "a.wav"),
        ('filename*0="a"; filename*1="b.wav"', "ab.wav"),
        ("filename=\"plain.wav\"; filename*=UTF-8''other.wav", "plain.wav"),
    ],
)
def test_a_file_is_one_by_its_extended_name_alone(folder: Path, filename: str, name: str) -> None:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; {filename}\r\n\r\n'.encode()
    assert taken(folder, [head + AUDIO + b"\r\n" + END]) == (Upload(name, {}), AUDIO)


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40))
def test_of_any_extended_name_there_is_an_answer(folder: Path, filename: str) -> None:
    for more in (f"filename*={filename}", f"filename*{filename}", f"filename*0*={filename}; filename*1={filename}"):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; {more}\r\n\r\n'.encode("latin-1")
        try:
            assert taken(folder, [head + AUDIO + b"\r\n" + END])[1] == AUDIO
        except BadUpload as bad:
            assert bad.status == 400


@given(st.text(st.characters(max_codepoint=255), max_size=80))
def test_of_any_content_type_there_is_an_answer(folder: Path, kind: str) -> None:
    for header in (kind, f"multipart/form-data; boundary={kind}", f"multipart/form-data; boundary={kind * 8}"):
        try:
            taken(folder, [FORM], kind=header or "text/plain")
        except BadUpload as bad:
            assert bad.status in (400, 415)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (END, 400), (FORM[:-9], 400), (part("language", b"en") + END, 400), (b"no form at all", 400),
        (part("file", b"no filename") + END, 400), (part("file", b"1", "1") + part("file", b"2", "2") + END, 400),
        (part("x", b"y") * 201 + END, 400), (part("x", b"y" * 262145) + part("file", b"", "f") + END, 413),
        (part("file", bytes(MAX_BYTES + 1), "f") + END, 413),
        (part("file", b"", "f").replace(b"form-data", b"attachment") + END, 400),
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_status(folder: Path, body: bytes, status: int) -> None:
    with pytest.raises(BadUpload) as refused:
        taken(folder, [body])
    assert refused.value.status == status


def test_as_large_as_allowed_is_taken(folder: Path) -> None:
    assert taken(folder, [part("file", bytes(MAX_BYTES), "f") + END])[1] == bytes(MAX_BYTES)


def test_without_room_it_is_refused(folder: Path) -> None:
    async def run() -> None:
        into = IncomingFile(folder, min_free_bytes=1 << 60)
        try:
            await into.write(b"a")
            await into.finish()
        finally:
            into.close()

    with pytest.raises(DiskFull):
        asyncio.run(run())


async def test_a_file_is_not_closed_while_a_thread_writes_into_it(folder: Path) -> None:
    into, begun, goes_on = IncomingFile(folder, min_free_bytes=0), threading.Event(), threading.Event()

    def write(data: bytes) -> None:
        begun.set()
        goes_on.wait(10)

    into.put = write  # type: ignore[method-assign]
    writing = asyncio.create_task(into.write(bytes(MB)))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(2):
        writing.cancel()
        await asyncio.sleep(0.01)
    assert not writing.done()
    goes_on.set()
    await asyncio.wait([writing])
    assert writing.cancelled()
    into.close()


HEAD = b'--frontier\r\nContent-Disposition: form-data; name="x"; filename="'
ENDLESS = {
    "preamble": (b"\r\n", b"\r\n"),
    "header": (HEAD, b"a" * 1000),
    "headers": (HEAD + b'"', b"\r\nX-More: yes"),
    "field": (HEAD + b'"\r\n\r\n', b"a" * 1000),
    "fields": (b"", part("x", b"")),
    "file": (part("file", b"", "f")[:-2], b"a" * 1000),
    "behind": (FORM, b"a" * 1000),
    "boundaries": (b"--frontier\r\n\r\n", b"\r\n--frontie"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_takes_no_memory(folder: Path, what: str) -> None:
    begin, more = ENDLESS[what]

    def body() -> Iterator[bytes]:
        yield begin
        for _ in range(100):
            yield more * (65536 // len(more))

    tracemalloc.start()
    try:
        with pytest.raises(BadUpload):
            taken(folder, body(), max_bytes=3 * MB)
        assert tracemalloc.get_traced_memory()[1] < 6 * MB
    finally:
        tracemalloc.stop()


# -- the fields of a job -----------------------------------------------------------------------------------------------

NAMES = st.sampled_from([*msgspec.structs.fields(Wanted)]).map(lambda field: field.name) | st.text(max_size=10)
VALUES = st.text(max_size=30) | st.sampled_from(["true", "0", "split", "mix", "[]", "null", "x" * 9000])


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), max_size=5))
def test_any_fields_are_taken_or_refused(fields: dict[str, list[str]]) -> None:
    try:
        wanted = parse_fields(fields)
    except Problem as problem:
        assert problem.status == 400 and problem.detail
        return
    assert set(fields) <= {field.name for field in msgspec.structs.fields(Wanted)} | {"speakers[]"} - {"path"}
    for name, values in fields.items():
        if name in ("language", "prompt", "filename", "webhook_url"):
            assert getattr(wanted, name) == values[-1]


def test_fields_mean_what_they_say() -> None:
    wanted = parse_fields(
        {
            "language": ["en"], "channels": ["split"], "speakers[]": ["Ann"], "speakers": ["Bo"],
            "condition_on_previous_text": ["true"], "prompt": ["first", "last"],
        }
    )  # fmt: skip
    assert wanted == Wanted(
        language="en", channels="split", speakers=["Ann", "Bo"], condition_on_previous_text=True, prompt="last"
    )


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"tempo": ["fast"]}, "there is no field `tempo`"),
        ({"channels": ["both"]}, "channels: must not be 'both'"),
        ({"words": ["perhaps"]}, "words: must be true or false, not text"),
        ({"speakers": ["x"] * 65}, "speakers: must be a list of length <= 64"),
        ({"prompt": ["x" * 8001]}, "prompt: must be text of length <= 8000"),
    ],
)
def test_what_is_wrong_with_a_field_reads_well(fields: dict[str, list[str]], detail: str) -> None:
    with pytest.raises(Problem) as problem:
        parse_fields(fields)
    assert problem.value.detail == detail


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"names": {"a": 3}}', "names: must be text, not a whole number"),
        (b'{"language": 4}', "language: must be text or null, not a whole number"),
        (b"[]", "must be an object, not a list"),
        (b'{"int": 1}', "there is no field `int`"),
        (b'{"language": "\xff"}', "the text is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_change_of_a_call_reads_well(body: bytes, detail: str) -> None:
    with pytest.raises(Problem) as problem:
        parsed(body, Patch)
    assert problem.value.detail == detail


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"path": ["/etc/passwd"]}, "path"), ({"tempo": ["fast"]}, "tempo"), ({"channels": ["both"]}, "channels"),
        ({"condition_on_previous_text": ["perhaps"]}, "condition_on_previous_text"),
        ({"prompt": ["x" * 8001]}, "prompt"), ({"language[]": ["x" * 36]}, "language"),
        ({"speakers": ["x"] * 65}, "speakers"), ({"speakers": ["x" * 201]}, "speakers"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_field_names_it(fields: dict[str, list[str]], says: str) -> None:
    with pytest.raises(Problem) as problem:
        parse_fields(fields)
    assert problem.value.status == 400 and says in problem.value.detail
