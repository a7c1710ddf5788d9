"""Where may a test make the process die?

A failpoint is a named place at which a process kills itself when the environment says so:
`PARFORMER_FAILPOINT=checkpoint.before-rename:3` dies at the third visit. Nothing else reads
the variable, and without it a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal

_name, _, _count = os.environ.get("PARFORMER_FAILPOINT", "").partition(":")
_left = int(_count) if _count.isdigit() else 1


def failpoint(name: str) -> None:
    """Die here, at once and without a farewell, if this is the place that was asked for."""
    global _left
    if name != _name:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
