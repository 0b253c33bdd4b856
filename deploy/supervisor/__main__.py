"""Entry of the supervisor's process: ``python -m deploy.supervisor FOLDER``."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import signal
import sys
from pathlib import Path

from deploy.client.admin import Admin
from deploy.deployment import EngineName
from deploy.server.golden import golden_of
from deploy.server.probe import Probe
from deploy.state import DeploymentFolder, endpoint, reachable_host
from deploy.supervisor.process import ProcessServer
from deploy.supervisor.supervise import StartServer, Supervisor


def server_of(engine: EngineName) -> StartServer:
    """Return what starts a server in ``engine``'s way."""
    # Imported where they are used: the docker SDK takes a quarter of a second.
    if engine == "docker":
        from deploy.supervisor.container import ContainerServer

        return ContainerServer
    if engine == "apptainer":
        from deploy.supervisor.instance import InstanceServer

        return InstanceServer
    return ProcessServer


def main(argument: str) -> int:
    """Run the deployment whose folder is ``argument``; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    path = Path(argument)
    folder = DeploymentFolder(path.name, path.parent)
    with folder.lock_file.open("a") as lock:
        # One supervisor per deployment: the lock is held for the life of this process.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.error("deployment %s already has a supervisor", folder.name)
            return 1
        plan = folder.plan()
        if plan is None:
            logging.error("no plan in %s", path)
            return 1
        if plan.deployment.cpus is not None and plan.engine != "docker":
            # What this process starts may run on no other core. At random: several deployments
            # are not to share the first ones.
            usable = sorted(os.sched_getaffinity(0))
            chosen = random.sample(usable, min(plan.deployment.cpus, len(usable)))
            os.sched_setaffinity(0, chosen)
        golden = {model: golden_of(plan.repository / model) for model in plan.deployment.models}
        address = endpoint(reachable_host(plan.deployment.http_listen), plan.ports.http)
        probe = Probe(f"http://{address}", identity=plan.identity)

        def admin_with(key: str) -> Admin:
            return Admin(address, key, timeout=plan.deployment.timeout)

        supervisor = Supervisor(folder, plan, server_of(plan.engine), probe, admin_with, golden)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: supervisor.request_stop())
        try:
            return supervisor.run()
        finally:
            plan.key_file.unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
