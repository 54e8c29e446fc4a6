"""`python -m gpin`: the same as the `gpin` command."""

import sys

from gpin.cli import main

if __name__ == "__main__":
    sys.exit(main())
