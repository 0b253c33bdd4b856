"""What submits a farm's renewals where its nodes cannot: a job on the submitting host.

python -m deploy.engines.farm_keeper NAME JOB
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

from deploy.engines.farm import Farm, farm_of
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
    name, job = argv
    farm = farm_of(name, job)
    if farm is None:
        log.warning("farm %s has ended", name)
    else:
        keep(farm)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
