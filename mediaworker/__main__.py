"""`python -m mediaworker` is the command `mediaworker`."""

import sys

from mediaworker.cli.main import main

sys.exit(main())
