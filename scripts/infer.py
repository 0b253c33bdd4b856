#!/usr/bin/env python3
"""``numlkit infer``, under its former name."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.host.bootstrap import ensure_kit

ensure_kit()

from deploy.main import main

sys.exit(main(["infer", *sys.argv[1:]]))
