"""Runs the command line as `python -m trunkline_worker`."""

import sys

from .cli import main

sys.exit(main())
