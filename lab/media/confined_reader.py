"""The process that reads files, with a decoder in it that has been taken over: it tries what it must not be able to do.

`python -m lab.media.confined_reader FILE REQUESTS ANSWERS NAME`, started in place of `mediaworker.files.decoder`.
NAME says what happens: `attempts` tries everything, `nobody-attempts` does so as an unprivileged user, and
`no-seccomp` finds no libseccomp. What came of each attempt is the reason, as JSON, for which the file is refused.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import audio.segmentation  # noqa: F401 - that user may not read where Python is
import audio.vad.silero  # noqa: F401
from mediaworker.files import decoder, media, sandbox

NOBODY = 65534
AT_FDCWD, O_WRONLY, O_CREAT = -100, 1, 0o100
HIGHEST = 512
"""Above all system calls of Linux."""
PAGE = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_library = ctypes.CDLL(sandbox.LIBSECCOMP)


def number(name: str) -> int:
    return int(_library.seccomp_syscall_resolve_name(name.encode()))


def call(name: str, *arguments: Any) -> Callable[[], int]:
    resolved = number(name)
    return lambda: int(_libc.syscall(resolved, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))


def fork() -> int:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def start_a_thread() -> None:
    try:
        threading.Thread(target=str).start()
    except RuntimeError as error:  # of Python's, which does not say why
        raise OSError(errno.EPERM, str(error)) from error


def run_code_of_its_own() -> int:
    """Writes machine code into memory and makes that executable."""
    address = _libc.mmap(None, ctypes.c_size_t(PAGE), 3, 0x22, -1, ctypes.c_long(0))
    return int(_libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 5))


PARENT = os.getppid()
TARGET = f"/tmp/escaped-{os.getpid()}"
PATH = ctypes.c_char_p(TARGET.encode())
ATTEMPTS: dict[str, Callable[[], object]] = {
    "read a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "write a file": lambda: os.open(TARGET, os.O_WRONLY | os.O_CREAT),
    "openat": call("openat", AT_FDCWD, PATH, O_WRONLY | O_CREAT, 0o600),
    "openat2": call("openat2", AT_FDCWD, PATH, ctypes.create_string_buffer(24), 24),
    "open by handle": call("open_by_handle_at", -1, None, 0),
    "memory file": call("memfd_create", ctypes.c_char_p(b"x"), 0),
    "make a folder": lambda: os.mkdir(TARGET),
    "remove": lambda: os.unlink("/tmp/no-such-file"),
    "rename": lambda: os.rename("/tmp/no-such-file", TARGET),
    "symlink": lambda: os.symlink("/etc", TARGET),
    "chmod": lambda: os.chmod("/tmp/no-such-file", 0o777),
    "truncate": lambda: os.truncate("/tmp/no-such-file", 0),
    "list a folder": lambda: os.listdir("/"),
    "memory of the parent": lambda: os.open(f"/proc/{PARENT}/mem", os.O_RDONLY),
    "socket": call("socket", 2, 1, 0),
    "pair of sockets": call("socketpair", 1, 1, 0, ctypes.create_string_buffer(8)),
    "connect": call("connect", -1, None, 0),
    "bind": call("bind", -1, None, 0),
    "listen": call("listen", -1, 1),
    "receive a descriptor": call("recvmsg", 0, None, 0),
    "send a descriptor": call("sendmsg", 0, None, 0),
    "io_uring": call("io_uring_setup", 1, None),
    "program": lambda: os.execve("/nonexistent", ["x"], {}),
    "execveat": call("execveat", AT_FDCWD, PATH, None, None, 0),
    "fork": fork,
    "clone a process": call("clone", 0x80000000, None, None, None, None),
    "clone3": call("clone3", None, 0),
    "start a thread": start_a_thread,
    "trace": call("ptrace", 16, PARENT, 0, 0),
    "let itself be traced": call("ptrace", 0, 0, 0, 0),
    "read the parent": call("process_vm_readv", PARENT, None, 0, None, 0, 0),
    "write the parent": call("process_vm_writev", PARENT, None, 0, None, 0, 0),
    "take a descriptor": call("pidfd_getfd", -1, 0, 0),
    "pidfd": call("pidfd_open", PARENT, 0),
    "signal the parent": lambda: os.kill(PARENT, 0),
    "signal a thread of the parent": call("tgkill", PARENT, PARENT, 0),
    "type into the terminal": call("ioctl", 2, 0x5412, ctypes.c_char_p(b"x")),
    "duplicate": lambda: os.dup(2),
    "run code of its own": run_code_of_its_own,
    "map executable memory": lambda: int(_libc.mmap(None, ctypes.c_size_t(PAGE), 7, 0x22, -1, ctypes.c_long(0)) or 0),
    "mount": call("mount", None, None, None, 0, None),
    "unshare": call("unshare", 0),
    "chroot": call("chroot", PATH),
    "bpf": call("bpf", 0, None, 0),
    "keys": call("keyctl", 0, -1, 0, 0, 0),
    "limits": call("prlimit64", PARENT, 7, None, ctypes.create_string_buffer(16)),
    "become dumpable": call("prctl", 4, 1, 0, 0, 0),
    "another filter": call("seccomp", 0, 0, None),
}
"""Each would succeed, or fail with something other than EPERM, in a process that is not confined."""


def outcome(attempt: Callable[[], object]) -> str:
    """The name of the error, or what came instead of one."""
    ctypes.set_errno(0)
    try:
        result = attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return errno.errorcode.get(ctypes.get_errno(), "?") if result == -1 or result == 2**64 - 1 else f"done: {result}"


class TakenOver:
    """In place of `Media`."""

    def __init__(self, file: Any, *_: object, **__: object) -> None:
        found: dict[str, str] = {}
        sweep = {f"system call {each}": lambda each=each: _libc.syscall(each, -1) for each in OTHERS}
        for name, attempt in (ATTEMPTS | sweep).items():
            found[name] = outcome(attempt)
            if found[name] not in ("EPERM", "ENOSYS"):  # it is not confined, and some of the others would do harm
                break
        found["the file"] = file.read(4).decode()
        refuse(json.dumps(found))


def refuse(reason: str) -> NoReturn:
    raise media.MediaError("unreadable", reason)


PARTLY = ("mmap", "mprotect", "tgkill")
PERMITTED = {number(name) for name in (*sandbox.ALLOWED, *PARTLY)}
PROBES = (335, 336)
"""uretprobe and uprobe of x86-64: no filter sees them, and the kernel ends whoever calls them outside of a probe."""
OTHERS = [each for each in range(HIGHEST) if each not in PERMITTED and each not in PROBES]


def main() -> None:
    name = sys.argv[4]
    if name == "no-seccomp":
        sandbox.LIBSECCOMP = "no-such-library.so"
    else:
        media.MediaFile = TakenOver  # type: ignore[misc,assignment]
    if name == "nobody-attempts" and os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    decoder.main()


if __name__ == "__main__":
    main()
