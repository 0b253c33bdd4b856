"""``python3 deploy/build.py`` is ``numlkit build``."""

import sys

from host.bootstrap import ensure_kit

if __name__ == "__main__":
    ensure_kit()
    from deploy.main import main

    sys.exit(main(["build", *sys.argv[1:]]))
