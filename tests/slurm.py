"""A real Slurm of one node on loopback: controller, node daemon and munge, of this process.

python3 -m tests.slurm COMMAND runs a command beside one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit import free_ports, lacking, until

_CONFIGURATION = """\
ClusterName=numlkit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports.http}
SlurmdPort={ports.grpc}
SlurmUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/slurmd
StateSaveLocation={folder}/slurmctld
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000
PartitionName=all Nodes=ALL Default=YES
"""
_DAEMONS = ("munged", "slurmctld", "slurmd")


@contextmanager
def slurm(folder: Path, cpus: int = 4) -> Iterator[dict[str, str]]:
    """Yield the variables by which Slurm's commands find it; its node is idle then."""
    for program in _DAEMONS:
        if shutil.which(program) is None:
            lacking(f"no {program}: apt install slurmctld slurmd slurm-client munge, as root")
    host, ports = socket.gethostname().partition(".")[0], free_ports()
    text = _CONFIGURATION.format(host=host, ports=ports, folder=folder, cpus=cpus)
    configuration, key = folder / "slurm.conf", folder / "munge.key"
    configuration.write_text(text)
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    variables = {**os.environ, "SLURM_CONF": str(configuration)}
    files = {name: f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")}
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    processes: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        for words in ([*munged, *files.values()], ["slurmctld", "-D"], ["slurmd", "-D"]):
            output = folder / f"{words[0]}.said"
            with output.open("w") as said:
                process = subprocess.Popen(words, env=variables, stdout=said, stderr=said)
            processes[output] = process
            if words[0] == "munged":
                until((folder / "munge.socket").exists, "munged listens")
        state = ["sinfo", "--noheader", "--format=%T"]

        def idle() -> bool:
            for said, process in processes.items():
                assert process.poll() is None, said.read_text()
            done = subprocess.run(state, env=variables, capture_output=True, text=True, check=False)
            return done.stdout.strip() == "idle"

        until(idle, "Slurm's node is idle")
        yield variables
    finally:
        for process in reversed(processes.values()):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, slurm(Path(scratch)) as variables:
        sys.exit(subprocess.run(sys.argv[1:], env=variables, check=False).returncode)
