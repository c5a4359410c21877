"""Threads of the linear algebra under numpy."""

from __future__ import annotations

import os

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread() -> None:
    """Called before numpy is imported, for this process and its children, unless the environment says otherwise.

    The VAD's small products are slower on several threads, and the loop needs its core.
    """
    for name in NAMES:
        os.environ.setdefault(name, "1")
