"""Confinement of the process that decodes a stranger's file, so that a flaw in a decoder cannot reach anything else.

It has three layers, each of which holds without the others: a seccomp allowlist of the system calls that decoding
needs, a Landlock ruleset that grants no file, no TCP port and no signal, and resource limits. The confined process can
read the descriptors it has, answer on its socket, and use memory and processor time up to a limit.

seccomp is mandatory, and Landlock is used where the kernel has it. libseccomp itself is called, through ctypes: the
Python package for it (pyseccomp) has had no release since 2021, and the one for Landlock is a pre-release.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource

from mediaworker.errors import MediaworkerError

LIBSECCOMP = "libseccomp.so.2"

PR_SET_NO_NEW_PRIVS = 38
"""linux/prctl.h"""

ALLOWED = (
    # The descriptors it has are the file and the sockets to its parent; no call here opens another one.
    "read", "pread64", "lseek", "fstat", "close", "recvfrom", "sendto", "write",
    "brk", "munmap", "mremap", "madvise",
    "futex", "futex_waitv", "set_robust_list", "rseq", "sched_yield", "sched_getaffinity", "gettid", "getpid", "exit",
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall",
    "getrandom", "getrusage", "sysinfo", "exit_group",
)  # fmt: skip
"""System calls that are allowed with any arguments; `_conditional` adds those that depend on them. All others fail with
EPERM.

None of them starts a thread. Thousands of small threads would fit into the memory limit, and they count against the
limits of the worker and its service (`TasksMax`, `ulimit -u`), so that the worker could start no more.
"""

PROT_EXEC = 4
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
MASKED_EQUAL = 7
EQUAL = 4
"""seccomp.h: SCMP_ACT_ALLOW, SCMP_ACT_ERRNO, SCMP_CMP_MASKED_EQ, SCMP_CMP_EQ."""

LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
"""Numbers of the system calls, which are the same on all architectures."""
LANDLOCK_VERSION = 1
LANDLOCK_FILES = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
"""linux/landlock.h: the mask of all access rights to files, by the ABI version that introduced the latest of them."""
LANDLOCK_NET = {4: 0x3}
"""The rights to bind and to connect a TCP socket, by ABI version."""
LANDLOCK_SCOPES = {6: 0x3}
"""The scopes that forbid abstract UNIX sockets of, and signals to, processes outside, by ABI version."""


class SandboxError(MediaworkerError):
    """The process cannot be confined, so it must not read a stranger's file."""


class _Comparison(ctypes.Structure):
    """seccomp.h: `struct scmp_arg_cmp`."""

    _fields_ = [("argument", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


_Rule = tuple[int, str, list[_Comparison]]
"""An action, a system call, and the conditions on its arguments."""


class _Ruleset(ctypes.Structure):
    """linux/landlock.h: `struct landlock_ruleset_attr`."""

    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def confine(*, memory_bytes: int, cpu_s: int) -> None:
    """Confine this process for good. It must have a single thread, all its modules loaded and all its descriptors open.

    Beyond `memory_bytes` of address space an allocation fails; after `cpu_s` seconds of processor time SIGXCPU ends the
    process. Raises SandboxError when seccomp is not available.
    """
    library = _library()
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise SandboxError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    restrict_files()
    _limit(memory_bytes, cpu_s)
    _restrict_calls(library)


def shortcomings() -> list[str]:
    """Return the parts of the confinement that this machine cannot provide, as sentences for the log."""
    found = []
    try:
        _library()
    except SandboxError as error:
        found.append(f"files cannot be read: {error}")
    if not landlock_version():
        found.append("the kernel offers no Landlock: the readers of files are confined by seccomp and limits alone")
    return found


def landlock_version() -> int:
    """Return the kernel's Landlock ABI version; 0 when it has none, or when a filter around this process forbids it."""
    return max(0, int(_libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)))


def restrict_files() -> bool:
    """Grant this process no file, no TCP port and no signal to others from now on, by Landlock. Return False when the
    kernel has no Landlock."""
    version = landlock_version()
    if not version:
        return False
    masks = (_newest(rights, version) for rights in (LANDLOCK_FILES, LANDLOCK_NET, LANDLOCK_SCOPES))
    ruleset = _Ruleset(*masks)
    # A kernel that knows only the first fields of the structure accepts further ones if they are zero.
    descriptor = _libc.syscall(
        LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0
    )
    if descriptor < 0:
        return False
    try:
        return not _libc.syscall(LANDLOCK_RESTRICT_SELF, descriptor, 0)
    finally:
        os.close(descriptor)


def _newest(rights: dict[int, int], version: int) -> int:
    return rights[max((each for each in rights if each <= version), default=0)] if min(rights) <= version else 0


def _limit(memory_bytes: int, cpu_s: int) -> None:
    _lower(resource.RLIMIT_AS, memory_bytes)
    _lower(resource.RLIMIT_CPU, cpu_s, 1)  # the hard limit kills even where SIGXCPU is ignored
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        _lower(what, 0)


def _lower(what: int, value: int, margin: int = 0) -> None:
    """Lower a limit to `value`, and its hard limit to `margin` above that. A limit that is lower already stays."""
    _, hard = resource.getrlimit(what)
    most = value + margin if hard == resource.RLIM_INFINITY else min(value + margin, hard)
    resource.setrlimit(what, (min(value, most), most))


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBSECCOMP)
    except OSError:
        raise SandboxError(f"{LIBSECCOMP} is missing (Debian's package libseccomp2)") from None


def _restrict_calls(library: ctypes.CDLL) -> None:
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison)
    ]  # fmt: skip
    context = library.seccomp_init(ERRNO | errno.EPERM)
    if not context:
        raise SandboxError("libseccomp does not know this architecture")
    plain: list[_Rule] = [(ALLOW, name, []) for name in ALLOWED]
    for action, name, comparisons in plain + _conditional():
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # this architecture or this version of the library does not have the call
            continue
        count = len(comparisons)
        code = library.seccomp_rule_add_array(context, action, number, count, (_Comparison * count)(*comparisons))
        if code:
            raise SandboxError(f"the seccomp rule for {name}: {os.strerror(-code)}")
    if code := library.seccomp_load(context):
        raise SandboxError(f"the kernel rejects the seccomp filter: {os.strerror(-code)}")


def _conditional() -> list[_Rule]:
    """The rules with conditions: mapping memory that is not executable, and abort(3) of this process itself."""
    not_executable = [_Comparison(2, MASKED_EQUAL, PROT_EXEC, 0)]
    return [
        (ALLOW, "mmap", not_executable),
        (ALLOW, "mprotect", not_executable),
        (ALLOW, "tgkill", [_Comparison(0, EQUAL, os.getpid(), 0)]),
    ]
