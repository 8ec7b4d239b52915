"""Run Python as a process that is asked to stop when the one that started it is killed: `-m train.compare.guarded ...`.

The arguments are those of the interpreter. On Linux alone; elsewhere such a process runs to its end.
"""

import ctypes
import os
import signal
import sys

SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
