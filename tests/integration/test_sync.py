"""A published bucket at a real service, the agent, and a real Triton that polls its folder."""

import os
import re
import shutil
import signal
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from urllib.parse import urlsplit

import pytest

from numl_formats.repository import DATA_FILES
from tests.bucket import seaweedfs
from tests.certificates import Authority
from tests.commands import run_command
from tests.keys import new_key, write_key
from tests.kit import until
from tests.proxy import Proxy
from tests.synced import MODELS, House, Publisher, make_house
from tests.syncing import POLL_S, Load, Polling, Sync

OUTAGE_S = 5 * POLL_S
# A later release serves no later than in so many times what the first one took, on a server that
# had nothing else to do; one to two are usual.
SERVES = 5


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return make_house(tmp_path_factory.mktemp("versions"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"), "private")


@pytest.fixture(scope="module")
def s3(tmp_path_factory, authority):
    pair = authority.issue("127.0.0.1")
    with seaweedfs(tmp_path_factory.mktemp("s3"), tls=pair) as service:
        yield service


@pytest.fixture
def publisher(house, s3, request):
    return Publisher(house, s3, re.sub(r"\W", "-", request.node.name))


@pytest.fixture
def sync(house, publisher, tmp_path):
    agent = Sync(house, tmp_path / "mirror", publisher.url)
    yield agent
    if agent.process is not None:
        agent.kill()


def expected(house: House, version: int) -> dict[str, bytes]:
    """Return a mirror's files, without those of the image."""
    return {
        f"{model}/{version}/{name}": (house.versions[version] / model / name).read_bytes()
        for model in MODELS
        for name in DATA_FILES
    }


def files(sync: Sync) -> dict[str, bytes]:
    image = ("/config.pbtxt", "/model.py")
    return {path: content for path, content in sync.tree().items() if not path.endswith(image)}


def failures(sync: Sync) -> float:
    """Return how often the bucket could not be asked; 0 before the agent tells."""
    try:
        return sync.metrics().get('numl_sync_failures_total{reason="bucket"}', 0)
    except OSError:
        return 0


def test_releases_come_and_go_under_load_and_a_bucket_that_is_away_harms_nobody(house, tmp_path):
    server = Polling(house, tmp_path / "mirror" / "repository", tmp_path / "server.log")
    server.start()
    with seaweedfs(tmp_path / "s3") as s3:
        publisher = Publisher(house, s3, "prod")
        sync = Sync(house, tmp_path / "mirror", publisher.url, server.url)
        sync.start()
        assert server.health() == f"unhealthy: {server.repository} has no models yet\n"
        begun = publisher.publish(1, 1)
        until(lambda: server.health().startswith("healthy: "), "the first release serves")
        first = time.monotonic() - begun
        load = Load(server)
        took = []

        def put_again(number: int, _version: int) -> float:
            return publisher.serve(number)

        try:
            with load.running():
                steps = ((2, 2, publisher.publish), (1, 1, put_again), (2, 2, put_again))
                for number, version, put in steps:
                    at = put(number, version)
                    served = partial(load.first, version, at)
                    until(lambda served=served: served() is not None, "it serves")
                    took.append((served() or at) - at)
                    wanted = expected(house, version)
                    until(lambda wanted=wanted: files(sync) == wanted, "the old one is gone")
                s3.process.kill()
                s3.process.wait()
                time.sleep(OUTAGE_S)
                sync.kill()
                sync.start()  # without a bucket
                until(lambda: failures(sync) > 2, "it asks again and again")
                assert sync.metrics()["numl_sync_release"] == 2
            server.stop()
            server.start()
            until(lambda: server.health().startswith("healthy: "), "started without a bucket")
            again = Load(server)
            with seaweedfs(tmp_path / "s3", s3_port=urlsplit(s3.url).port) as back, load.running():
                publisher.s3 = back
                with again.running():
                    put = publisher.publish(3, 1)
                    until(lambda: again.first(1, put) is not None, "the bucket is used again")
                    # What was asked for before it served may still be answered.
                    so_far = len(again.versions)
                    until(lambda: len(again.versions) > so_far + 100, "100 further answers")
            last = again.versions[-len(MODELS) :]
        finally:
            sync.kill()
            server.stop()
    assert load.wrong + again.wrong == []
    assert max(took) < SERVES * first, (first, took)
    assert {version for _, _, version in last} == {1}
    print(
        f"\n{len(load.versions + again.versions)} right answers; new versions after {took}, {first}"
    )


def test_what_the_kit_publishes_is_mirrored(publisher, sync):
    def run(command: str, *flags: str) -> None:
        words = [command, publisher.url, *flags, "--quiet"]
        variables = {**os.environ, **publisher.s3.variables()}
        assert run_command(words, variables, timeout=120).returncode == 0
        sync.once()

    run("publish", "--models", ",".join(MODELS))
    assert files(sync) == expected(sync.house, 1)


def test_an_agent_that_is_killed_at_any_byte_goes_on_and_shows_only_whole_versions(
    publisher, sync, tmp_path
):
    publisher.publish(1, 1)
    sync.once()
    publisher.publish(2, 2)
    whole = sum(map(len, expected(sync.house, 2).values()))
    proxy = Proxy(urlsplit(publisher.s3.url).port or 0)
    sync.url = publisher.url.replace(publisher.s3.url, f"http://127.0.0.1:{proxy.port}")
    for step in range(4):
        proxy.most = (step + 1) * whole // 4
        sync.start()
        until(
            lambda: proxy.sent >= proxy.most or files(sync) != expected(sync.house, 1),
            "so many bytes",
        )
        sync.kill()
        assert files(sync) == expected(sync.house, 1)
    proxy.most = None
    sync.once()
    assert files(sync) == expected(sync.house, 1) | expected(sync.house, 2)
    # What had come was not fetched again: four starts cost some buffers each, not the whole.
    assert proxy.sent < 2 * whole, proxy.sent / whole
    proxy.close()


def test_a_release_that_gives_other_answers_is_refused(publisher, sync, tmp_path):
    publisher.publish(1, 1)
    sync.once()
    versions = dict(publisher.house.versions)
    wrong = shutil.copytree(versions[2], tmp_path / "wrong")
    shutil.copy(versions[1] / "nugraph3" / "golden.npz", wrong / "nugraph3" / "golden.npz")
    publisher.house = replace(publisher.house, versions={**versions, 2: wrong})
    publisher.publish(2, 2)
    refused = "refused: release 2: nugraph3-2 does not give its golden answer here: wrong answer: "
    assert refused in sync.once(status=1)
    assert files(sync) == expected(sync.house, 1)
    fresh = Sync(sync.house, tmp_path / "fresh", publisher.url)
    assert "; falling back to release 1\nsync: release 1 is in " in fresh.once(status=1)
    assert files(fresh) == expected(sync.house, 1)


def test_an_attacker_with_the_bucket_s_keys_changes_nothing(publisher, sync, tmp_path):
    publisher.key = new_key()
    publisher.expires = datetime.now(timezone.utc) + timedelta(days=1)
    sync.variables = {"NUML_VERIFY_KEY": str(write_key(publisher.key, tmp_path / "cosign.pub"))}
    publisher.publish(1, 1)
    sync.once()
    served = sync.tree()
    assert files(sync) == expected(sync.house, 1)
    publisher.key = new_key()
    for model in MODELS:
        for path in ("2/model.py", "config.pbtxt"):
            publisher.put(f"{model}/{path}", b"raise SystemExit('of the attacker')")
    publisher.publish(2, 2)
    said = sync.once(status=1)
    assert "not signed with the key that is trusted" in said
    assert said.endswith("; going on with release 1\n")
    assert sync.tree() == served


def test_what_a_bucket_says_that_cannot_be_read_is_one_line(publisher, sync):
    cases = {
        "has no published.json: numlkit publish writes it": {},
        "cannot be read with these credentials: ": {"AWS_SECRET_ACCESS_KEY": "wrong"},
        "no credentials: set AWS_ACCESS_KEY_ID": {
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "AWS_EC2_METADATA_DISABLED": "true",
        },
    }
    for reason, variables in cases.items():
        sync.variables = variables
        said = sync.once(status=1)
        assert said.count("\n") == 2
        assert reason in said
        assert said.endswith("; no release yet\n")


def test_a_service_of_a_private_authority_is_named_by_a_path(publisher, sync, authority, tmp_path):
    publisher.publish(1, 1)
    sync.url = publisher.url.replace(publisher.s3.url, str(publisher.s3.https))
    for variables, reason in (
        (
            {},
            ": its certificate is rejected: unable to get local issuer certificate; AWS_CA_BUNDLE ",
        ),
        ({"AWS_CA_BUNDLE": str(tmp_path / "none.pem")}, "/none.pem: no such file; no release yet"),
    ):
        sync.variables = variables
        said = sync.once(status=1)
        assert said.count("\n") == 2
        assert reason in said
    sync.variables = {"AWS_CA_BUNDLE": str(authority.file)}
    sync.once()
    assert files(sync) == expected(sync.house, 1)


def test_a_stop_is_at_once_and_a_second_agent_is_refused(publisher, sync):
    publisher.publish(1, 1)
    sync.poll = 3600
    sync.start()
    until(lambda: files(sync) == expected(sync.house, 1), "the release is here")
    assert sync.once(status=2).endswith(": another sync agent is using it\n")
    assert sync.kill(signal.SIGTERM) == 0, "long before the next poll"
