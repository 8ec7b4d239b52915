"""`python -m pejax.interop DIR`."""

from pejax.interop.command import main

if __name__ == "__main__":
    main()
