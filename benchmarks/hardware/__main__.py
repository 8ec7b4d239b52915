"""Run `python -m benchmarks.hardware`."""

import signal
import sys

from benchmarks.hardware.program import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes are ended on the way out
    raise SystemExit(main())
