"""`python -m blendfilter.cli`, the same as the command `blendfilter`."""

from blendfilter.cli import main

if __name__ == "__main__":
    main()
