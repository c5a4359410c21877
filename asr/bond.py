"""What ties a child process to its parent. The parent's side is `asr.child`."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def end_with_parent() -> None:
    """Called first thing in a child: it ends with its parent, and not before.

    Ctrl-C and a service manager's SIGTERM reach the whole group, while the parent still wants its last finals. A parent
    that has died before this call has closed the child's sockets.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
