"""`python -m attn_dsl` is the command `attn-dsl`."""

import sys

from attn_dsl.cli import main

if __name__ == "__main__":
    sys.exit(main())
