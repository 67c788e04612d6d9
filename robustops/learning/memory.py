"""Memory settings of the process for training on CPUs."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def reuse_freed_memory() -> bool:
    """Keep the memory of freed tensors in the process (glibc only); returns whether it was set.

    By default glibc gives large blocks back to the system as they are freed, so that every tensor of
    every step is paid for with page faults.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_M_MMAP_THRESHOLD, 2**25), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**28))
    return all(mallopt(name, value) == 1 for name, value in settings)
