"""``python3 deploy/up.py`` is ``numlkit up``."""

import sys

from host.bootstrap import ensure_kit

if __name__ == "__main__":
    ensure_kit()
    from deploy.main import main

    sys.exit(main(["up", *sys.argv[1:]]))
