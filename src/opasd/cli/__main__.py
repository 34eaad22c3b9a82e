"""`python -m opasd.cli`, as `accelerate launch -m opasd.cli` calls it."""

import sys

from opasd.cli import main

sys.exit(main())
