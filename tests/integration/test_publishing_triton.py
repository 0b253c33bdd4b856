"""What a real Triton that polls the bucket itself makes of a half upload, a release, a rollback."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.destination import Bucket, parse_destination
from deploy.publishing.place import Order, Outcome
from deploy.triton.command import server_arguments, server_environment
from tests.bucket import ADMIN, READER, S3, bucket  # noqa: F401
from tests.kit import free_ports, until
from tests.synced import House, make_house

PREFIX = "polled"
MODEL = "nugraph3"
QUIET = Console("quiet")
START_S = 120
# Twice the interval at which the servers look, and the time that a look takes.
TWO_LOOKS_S = 4.0


class PulledPlugError(BaseException):
    """The publish ends here."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return make_house(tmp_path_factory.mktemp("house"))


@contextmanager
def polling(service: S3, house: House, folder: Path) -> Iterator[str]:
    """Run a Triton that polls the bucket, as a reader; yield its URL."""
    folder.mkdir()
    ports = free_ports()
    command = server_arguments(
        distribution=house.distribution,
        repository=Path("REPOSITORY"),
        listen="127.0.0.1",
        ports=ports,
        shm_prefix=f"numlkit-test-polled-{ports.http}-",
        identity="polled",
    )
    # Without the two slashes of a URL it is no path.
    command = tuple(word.replace("REPOSITORY", service.destination(PREFIX)) for word in command)
    variables = server_environment(
        distribution=house.distribution, threads=1, inherited=os.environ, devices={}
    )
    variables |= {**service.variables(READER), "TRITON_AWS_MOUNT_DIRECTORY": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{ports.http}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_half_upload_harms_no_server_and_a_release_and_a_rollback_reach_all(
    bucket: S3,  # noqa: F811
    house: House,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bucket.variables(ADMIN).items():
        monkeypatch.setenv(name, value)
    # In an image it is where the configurations say.
    monkeypatch.setattr("deploy.publishing.models.IMAGE_PREFIX", str(house.environment.folder))
    destination = parse_destination(bucket.destination(PREFIX))
    assert isinstance(destination, Bucket)

    def place() -> BucketPlace:
        return BucketPlace(destination)

    def publish(version: int, at: BucketPlace) -> Outcome:
        own = {MODEL: house.versions[version] / MODEL}
        deployment = Deployment(models=(MODEL,), instances=1, checkpoints=own)
        return at.publish(Order(Resolved(deployment)), QUIET)

    def serves(server: str) -> bool:
        return not place().listing(server).problems

    assert publish(1, place()).facts["models"] == {MODEL: 1}
    with polling(bucket, house, tmp_path / "running") as running:
        until(lambda: serves(running), START_S, "the running server serves release 1")

        broken = place()
        puts = iter(range(10))

        def pull_the_plug(**_: Any) -> None:
            if next(puts) == 2:
                raise PulledPlugError

        broken._store.client.meta.events.register("before-send.s3.PutObject", pull_the_plug)
        with pytest.raises(PulledPlugError):
            publish(2, broken)
        half = {key for key in bucket.contents(PREFIX) if key.startswith(f"{MODEL}/2/")}
        assert len(half) == 2

        with polling(bucket, house, tmp_path / "fresh") as fresh:
            until(lambda: serves(fresh), START_S, "a fresh server serves release 1")
            time.sleep(TWO_LOOKS_S)
            assert serves(running)
            assert serves(fresh)

            done = publish(2, place())
            assert (done.facts["models"], done.facts["uploaded"]) == ({MODEL: 2}, 2)
            said = place().listing(running).problems
            assert not said or f"{MODEL} serves version 1, release 2 has 2" in said[0]
            for server in (running, fresh):
                until(lambda server=server: serves(server), 60, "release 2 is served")  # type: ignore[misc]

            place().rollback(None, dry_run=False)
            # Waits until both have taken it.
            pruned = place().prune((running, fresh), QUIET, dry_run=False)
            assert (pruned.facts["kept"], pruned.facts["removed"]) == ([1], 4)
            assert serves(running)
            time.sleep(TWO_LOOKS_S)
            assert serves(running)
            assert serves(fresh)
    assert not any(key.startswith(f"{MODEL}/2/") for key in bucket.contents(PREFIX))
