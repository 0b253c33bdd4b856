"""What submits a farm's renewals where its nodes cannot: a job on the submitting host.

python -m deploy.engines.farm_keeper NAME
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

from deploy.engines.farm import Farm, read_farm
from deploy.host.errors import KitError

log = logging.getLogger("numlkit.farm")
_LOOK_S, _PAUSE_S = 1.0, 10.0


def keep(farm: Farm, sleep: Callable[[float], None] = time.sleep) -> None:
    """Submit what servers ask for, until the farm ends."""
    while farm.goes_on:
        try:
            farm.submit_renewals()
            sleep(_LOOK_S)
        except (KitError, OSError) as error:
            log.warning("a server cannot be renewed yet: %s", error)
            sleep(_PAUSE_S)


def main(argv: Sequence[str]) -> int:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    farm = read_farm(argv[0])
    if farm is None:
        log.warning("farm %s has ended", argv[0])
    else:
        keep(farm)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
