"""What a real Triton that polls the bucket itself makes of a half upload, a release, a rollback."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import Look, Order, Outcome, Signing
from tests.bucket import ADMIN, S3, juicefs
from tests.by_hand import triton
from tests.kit import until
from tests.synced import House, make_house
from tests.unit.deploy.publishing.store import KilledError, after, die

PREFIX = "polled"
MODEL = "nugraph3"
QUIET = Console("quiet")
START_S = 120
# Twice the interval at which the servers look, and the time that a look takes.
TWO_LOOKS_S = 4.0


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return make_house(tmp_path_factory.mktemp("house"))


def polling(service: S3, house: House, folder: Path) -> AbstractContextManager[str]:
    """Return what runs a Triton that polls the bucket, as a reader, and yields its URL."""
    folder.mkdir()
    keys, place = service.variables(service.reader), service.destination(PREFIX)
    return triton(
        house.distribution, place, folder / "log", libpython=house.environment.libpython,
        variables={**keys, "TRITON_AWS_MOUNT_DIRECTORY": str(folder)},
    )  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A service that is published to, and what is published."""

    service: S3
    house: House

    def place(self) -> BucketPlace:
        return BucketPlace(parse_destination(self.service.destination(PREFIX)))

    def publish(self, version: int, at: BucketPlace | None = None) -> Outcome:
        own = {MODEL: self.house.versions[version] / MODEL}
        deployment = Deployment(models=(MODEL,), instances=1, checkpoints=own)
        return (at or self.place()).publish(Order(Resolved(deployment), with_code=True), QUIET)

    def await_served(self, server: str) -> None:
        until(
            lambda: not self.place().listing(Look(server=server)).problems,
            "what serves is served",
        )

    def assert_served(self, *servers: str) -> None:
        for server in servers:
            assert not self.place().listing(Look(server=server)).problems


@pytest.fixture(autouse=True)
def _publisher(house, monkeypatch):
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ADMIN, strict=True):
        monkeypatch.setenv(name, value)
    # In an image it is where the configurations say.
    monkeypatch.setattr("deploy.publishing.models.IMAGE_PREFIX", str(house.environment.folder))


def test_a_half_upload_harms_no_server_and_a_release_and_a_rollback_reach_all(
    bucket, house, tmp_path
):
    site = Site(bucket, house)
    assert site.publish(1).facts["models"] == {MODEL: 1}
    with polling(bucket, house, tmp_path / "running") as running:
        site.await_served(running)

        broken = site.place()
        pull_the_plug = after(2, die)
        events = broken._store.client.meta.events
        events.register("before-send.s3.PutObject", lambda **_: pull_the_plug())
        with pytest.raises(KilledError):
            site.publish(2, broken)
        half = {key for key in bucket.contents(PREFIX) if key.startswith(f"{MODEL}/2/")}
        assert len(half) == 2

        with polling(bucket, house, tmp_path / "fresh") as fresh:
            site.await_served(fresh)
            time.sleep(TWO_LOOKS_S)
            site.assert_served(running, fresh)

            done = site.publish(2)
            assert (done.facts["models"], done.facts["uploaded"]) == ({MODEL: 2}, 3)
            said = site.place().listing(Look(server=running)).problems
            assert not said or f"{MODEL} serves version 1, release 2 has 2" in said[0]
            for server in (running, fresh):
                site.await_served(server)

            site.place().rollback(None, Signing(), dry_run=False)
            # Waits until both have taken it.
            pruned = site.place().prune((running, fresh), Signing(), QUIET, dry_run=False)
            assert (pruned.facts["kept"], pruned.facts["removed"]) == ([1], 5)
            site.assert_served(running)
            time.sleep(TWO_LOOKS_S)
            site.assert_served(running, fresh)
    assert not any(key.startswith(f"{MODEL}/2/") for key in bucket.contents(PREFIX))


def test_a_gateway_without_etags_and_conditional_writes_serves_releases(house, tmp_path):
    with juicefs(tmp_path / "volume") as service:
        site = Site(service, house)
        site.publish(1)
        with polling(service, house, tmp_path / "server") as server:
            site.await_served(server)
            assert site.publish(2).facts["models"] == {MODEL: 2}
            site.await_served(server)
            site.place().rollback(None, Signing(), dry_run=False)
            site.await_served(server)
