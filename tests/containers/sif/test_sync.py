"""A server and its sync agent from one .sif, by a user who has nothing but Apptainer."""

import os
import subprocess
from contextlib import ExitStack

from deploy.host.paths import CHECKOUT
from tests.bucket import ADMIN, READER
from tests.containers.conftest import HEALTH, STOPS
from tests.kit import NUMLKIT, free_ports, open_to_all, until

START_S = 180
MODEL = "nugraph3"


def test_a_bucket_under_a_private_authority_is_served(ordinary_user, sif, bucket, tmp_path):
    host, url = ordinary_user, f"s3://{bucket.https}/models/sif"
    publish = [NUMLKIT, "publish", url, "--models", MODEL, "--quiet"]
    trusted = {"AWS_CA_BUNDLE": str(bucket.ca)}
    subprocess.run(publish, cwd=CHECKOUT, env={**os.environ, **trusted, **bucket.variables(ADMIN)},
                   check=True)  # fmt: skip
    authority, models = tmp_path / "ca.pem", tmp_path / "models"
    authority.write_bytes(bucket.ca.read_bytes())
    served = models / "repository"
    served.mkdir(parents=True)
    open_to_all(tmp_path)
    for folder in (models, served):
        folder.chmod(0o777)
    ports = [f"NUML_{use.upper()}_PORT={port}" for use, port in free_ports().model_dump().items()]
    repository = "NUML_MODELS=/models/repository"
    keys = [f"{name}={value}" for name, value in bucket.variables(READER).items()]
    reads = ("--containall", "--bind", f"{served}:/models/repository:ro")
    writes = ("--containall", "--bind", f"{models}:/models,{authority}:/ca.pem")
    log = tmp_path / "log"

    def start(
        action: str, mounts: tuple[str, ...], variables: list[str], *words: str
    ) -> subprocess.Popen[bytes]:
        environment = ("--env", ",".join([*ports, *variables]))
        command = host.words("apptainer", action, *mounts, *environment, sif, *words)
        with log.open("ab") as stream:
            return stack.enter_context(
                subprocess.Popen(command, cwd="/", stdout=stream, stderr=stream)
            )

    with ExitStack() as stack:
        server = start("run", reads, [repository], "--cpu", STOPS)
        stack.callback(server.kill)
        words = ("/opt/numl/bin/sync", url, "/models", "--poll=1")
        agent = start("exec", writes, [*keys, "AWS_CA_BUNDLE=/ca.pem"], *words)
        stack.callback(agent.kill)
        serves = f"sync: release 1 serves: {MODEL} version 1\n"
        until(lambda: serves in log.read_text(errors="replace"), "release 1 serves")
        environment = ("--env", ",".join([*ports, repository]))
        health = host.run("apptainer", "exec", *reads, *environment, sif, HEALTH)
        assert health.stdout == f"healthy: {MODEL} gave their golden answers\n", health.stderr
        for process in (agent, server):
            process.terminate()
            assert process.wait(timeout=60) == 0
