"""`python -m pejax.interop PATH`."""

from pejax.interop.command import main

if __name__ == "__main__":
    main()
