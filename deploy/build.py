"""``python3 deploy/build.py`` is ``numlkit build``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent)  # with PYTHONSAFEPATH, too
    from host.bootstrap import ensure_kit

    ensure_kit()
    from deploy.main import main

    sys.exit(main(["build", *sys.argv[1:]]))
