"""`python -m pejax.interop PATH`."""

from pejax._process.text import run
from pejax.interop.command import main

if __name__ == "__main__":
    run(main)
