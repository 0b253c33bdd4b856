#!/usr/bin/env python3
"""``numlkit infer``, under its former name."""

import runpy
import sys
from pathlib import Path

command = Path(__file__).resolve().parents[1] / "deploy" / "infer.py"
sys.path[0] = str(command.parent)
runpy.run_path(str(command), run_name="__main__")
