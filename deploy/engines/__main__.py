"""The supervisor's process: ``python -m deploy.engines FOLDER``."""

import fcntl
import logging
import os
import random
import resource
import signal
import sys
from pathlib import Path

from deploy.client.probe import Probe
from deploy.deployment.state import DeploymentFolder, host_port, reachable_host
from deploy.engines.base import forget_everything
from deploy.engines.choose import engine_named
from deploy.engines.supervise import Supervisor
from deploy.triton.golden import golden_of
from numl_job.command import end_with_parent


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
        engine = engine_named(plan.engine)
        if plan.parent is not None:
            end_with_parent(signal.SIGTERM, plan.parent)
        # A server that has no more files takes no more connections, for ever: Triton 2.51 loses one
        # with every other connection whose streams are cancelled. Inherited, as the cores below.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if plan.deployment.cpus is not None and not engine.isolated:
            # Inherited by all that this process starts. Chosen at random, so that several
            # deployments do not share the first cores.
            usable = sorted(os.sched_getaffinity(0))
            chosen = random.sample(usable, min(plan.deployment.cpus, len(usable)))
            os.sched_setaffinity(0, chosen)
        golden = {model: golden_of(plan.repository / model) for model in plan.instances}
        address = host_port(reachable_host(plan.http_listen), plan.ports.http)
        grpc = host_port(reachable_host(plan.deployment.listen), plan.ports.grpc)
        # A client of an encrypted port would need its own certificate.
        plain = f"grpc://{grpc}" if plan.deployment.tls is None else None
        probe = Probe(f"http://{address}", identity=plan.identity, grpc=plain)
        supervisor = Supervisor(folder, plan, engine.server_type, probe, golden)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: supervisor.request_stop())
        status = supervisor.run()
        if status == 0 and plan.parent is not None:
            forget_everything(folder)
        return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
