"""`python -m graphport`."""

import sys

from graphport.cli import main

if __name__ == "__main__":
    sys.exit(main())
