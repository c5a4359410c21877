"""Reads `multipart/form-data` with one file (RFC 7578) as it arrives: the file goes to the disk, fields to memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message

import structlog
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from mediaworker.files.disk import DiskFull, IncomingFile, disk_full
from mediaworker.http.problem import Problem

MAX_FIELDS = 200
MAX_FIELDS_BYTES = 256 * 1024
FILE = "file"
MB = 1024 * 1024
CLOSE = {"Connection": "close"}
"""The header of a refusal, since the rest of the form is not read."""
log = structlog.get_logger()


class BadUpload(Problem):
    """The peer's form is malformed, incomplete or too large; `status` is the HTTP status that it deserves."""

    def __init__(self, status: int, reason: str, field: str | None = None) -> None:
        super().__init__(status, reason, field=field, headers=CLOSE)


@contextlib.contextmanager
def upload_errors() -> Iterator[None]:
    """Turn errors of the disk into responses to an upload: Problem 507 when there is no room, otherwise 500."""
    try:
        yield
    except (DiskFull, OSError) as error:
        known = disk_full(error) if isinstance(error, OSError) else error
        if isinstance(known, DiskFull):
            raise Problem(507, str(known), headers=CLOSE) from None
        reason = known.strerror or str(known)
        log.error("an upload could not be stored", reason=reason)
        raise Problem(500, f"the file could not be stored ({reason}); see the worker's log", headers=CLOSE) from None


@dataclass(slots=True)
class Upload:
    filename: str
    fields: dict[str, list[str]]


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    filename: str | None = None
    data: bytearray = field(default_factory=bytearray)


class FormReader:
    """Collects a form from the parser's callbacks: the fields, and the bytes of the file until they are written."""

    def __init__(self, boundary: bytes) -> None:
        """Begin a form with this boundary. Raises BadUpload for an invalid one."""
        self.fields: dict[str, list[str]] = {}
        self.filename: str | None = None
        self.file = bytearray()
        """Bytes of the file that have not been written yet; the caller of `feed` writes and clears them."""
        self.complete = False
        self._part = _Part()
        self._header = (bytearray(), bytearray())
        self._count = self._bytes = 0

        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # type: ignore[arg-type]
        except FormParserError as error:
            raise _no_form(error) from None

    def feed(self, data: bytes) -> None:
        """Parse more of the body. Raises BadUpload."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _no_form(error) from None

    def _callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_header_begin": self._header_begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._part = _Part()
        self._count += 1
        if self._count > MAX_FIELDS:
            raise BadUpload(400, f"the form has more than {MAX_FIELDS} fields")

    def _header_begin(self) -> None:
        self._header = (bytearray(), bytearray())

    def _header_end(self) -> None:
        self._part.headers[bytes(self._header[0]).lower()] = bytes(self._header[1])

    def _headers(self) -> None:
        disposition = self._part.headers.get(b"content-disposition", b"")
        kind, options = parse_options_header(disposition)
        if kind != b"form-data" or b"name" not in options:
            raise BadUpload(400, "a part of the form has no name")
        self._part.name = options[b"name"].decode("utf-8", "replace")
        if b"filename" in options:
            self._part.filename = options[b"filename"].decode("utf-8", "replace")
        if self._part.name == FILE:
            self._part.filename = self._part.filename or _extended_filename(disposition)
            if self.filename is not None:
                raise BadUpload(400, "the form has more than one file", FILE)
            if self._part.filename is None:
                raise BadUpload(400, f"the field `{FILE}` is not a file: it has no filename", FILE)
            self.filename = self._part.filename

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.name == FILE:
            self.file += data[start:end]
            return
        self._bytes += end - start
        if self._bytes > MAX_FIELDS_BYTES:
            raise BadUpload(413, f"the fields beside the file have more than {MAX_FIELDS_BYTES >> 10} kB")
        self._part.data += data[start:end]

    def _end(self) -> None:
        if self._part.name != FILE:
            self.fields.setdefault(self._part.name, []).append(self._part.data.decode("utf-8", "replace"))

    def _finish(self) -> None:
        self.complete = True


async def receive(request: Request, into: IncomingFile, *, max_bytes: int) -> Upload:
    """Receive the whole body and write its file into `into`. Raises BadUpload, DiskFull, OSError, ClientDisconnect."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise BadUpload(415, "send the file as multipart/form-data")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes + MAX_FIELDS_BYTES:
        raise too_large(max_bytes)
    form = FormReader(options[b"boundary"])
    received = 0
    async for data in request.stream():
        received += len(data)
        if received > max_bytes + MAX_FIELDS_BYTES:  # also counts bytes that are neither file nor field
            raise too_large(max_bytes)
        form.feed(data)
        if form.file:
            if into.size + len(form.file) > max_bytes:
                raise too_large(max_bytes)
            await into.write(bytes(form.file))
            form.file.clear()
    if not form.complete:
        raise BadUpload(400, "the form ends before its last boundary")
    if form.filename is None:
        raise BadUpload(400, f"the form has no `{FILE}` field", FILE)
    await into.finish()
    return Upload(form.filename, form.fields)


def _extended_filename(disposition: bytes) -> str | None:
    """Return the file name of a parameter `filename*=UTF-8''…` (RFC 5987, RFC 2231). RFC 7578 forbids it in forms, but
    some clients send nothing else for names that are not ASCII: urllib3 before version 2, which Python's requests uses,
    and Java's mail parsers."""
    header = Message()
    header["Content-Disposition"] = disposition.decode("latin-1")
    return header.get_filename()


def too_large(max_bytes: int) -> BadUpload:
    return BadUpload(413, f"the file is larger than {max_bytes // MB} MB (files.max_upload_mb)", FILE)


def _no_form(error: FormParserError) -> BadUpload:
    return BadUpload(400, f"the body is not valid multipart/form-data ({error})")
