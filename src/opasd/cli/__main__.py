"""`python -m opasd.cli`, as `accelerate launch -m opasd.cli` calls it."""

import os
import sys

from opasd.cli import main

code = main()
if os.environ.get("WORLD_SIZE", "1") != "1":
    # One of several processes: gloo's threads may abort an interpreter that takes its time to end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
