"""`python -m pipelines ...` is `hetero ...`, where the package is there and the command is not installed."""

from __future__ import annotations

import sys

from pipelines.cli import main

sys.exit(main())
