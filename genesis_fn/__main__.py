"""`python -m genesis_fn`, which is `genesis-fn`."""

import sys

from genesis_fn.cli.main import main

sys.exit(main())
