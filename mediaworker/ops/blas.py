"""The number of threads of numpy's linear algebra (BLAS)."""

from __future__ import annotations

import os

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread() -> None:
    """Limit BLAS to one thread in this process and its children, unless the environment sets a number.

    It must be called before numpy is imported. The VAD's small products are slower on several threads, and the event
    loop needs its core.
    """
    for name in NAMES:
        os.environ.setdefault(name, "1")
