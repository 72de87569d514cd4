"""`python -m medic`."""

import sys

from medic.cli import main

sys.exit(main())
