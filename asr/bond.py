"""What ties a child process to its parent, and what keeps one process out of another. The parent's side of a child is
`config.child_process`."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
"""linux/prctl.h"""


def end_with_parent() -> None:
    """Called first thing in a child: it ends with its parent, and not before.

    Ctrl-C and a service manager's SIGTERM reach the whole group, while the parent still wants its last finals. A parent
    that has died before this call has closed the child's sockets.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forbid_tracing() -> None:
    """Keep this process's memory from other processes of the same user: none may trace it or read /proc/PID/mem.

    It leaves no core dump either, unless the kernel is told to write those of protected processes for root alone
    (`fs.suid_dumpable=2`, proc(5)). Root may still trace it.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
