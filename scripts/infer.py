#!/usr/bin/env python3
"""Send events to a NuGraph server: ``python3 scripts/infer.py FILE.h5 --display DIR``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.bootstrap import ensure_kit

ensure_kit()

from deploy.client.command import main

if __name__ == "__main__":
    sys.exit(main())
