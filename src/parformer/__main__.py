"""`python -m parformer` is the same as `parformer`."""

import sys

from parformer.cli import main

sys.exit(main())
