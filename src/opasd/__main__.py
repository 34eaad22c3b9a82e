"""`python -m opasd`."""

import sys

from opasd.cli import main

sys.exit(main())
