"""Publishing models to a real S3 service, and what a real Triton then serves."""

import json
import os
import shutil
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.host.errors import PublishError
from deploy.host.paths import CHECKOUT
from deploy.publishing.destination import parse_destination
from deploy.publishing.place import Look
from deploy.publishing.places import place_at
from tests.bucket import ADMIN, READER, S3
from tests.commands import run_command


def run(
    service: S3, command: str, *words: str, identity: tuple[str, str] = ADMIN, **more: str
) -> dict[str, Any]:
    """Run a command as a person with these credentials does; return its JSON and its status."""
    variables = {**os.environ, **service.variables(identity), **more}
    done = run_command([command, *words, "--json"], variables, timeout=120)
    return {**json.loads(done.stdout), "status": done.returncode, "stderr": done.stderr}


def test_what_is_published_is_there_whole_and_a_rollback_brings_the_old_back(bucket):
    place = bucket.destination("first")
    shown = run(bucket, "publish", place, "--models", "nugraph3", "--dry-run")
    assert (shown["status"], shown["changed"]) == (0, False), shown
    assert bucket.contents("first") == {}
    done = run(bucket, "publish", place, "--models", "nugraph3")
    assert (done["status"], done["release"], done["models"]) == (0, "1", {"nugraph3": 1}), done
    there = bucket.contents("first")
    files = ("golden.npz", "model.json", "weights.safetensors")
    assert set(there) == {
        "published.json",
        *(f"nugraph3/1/{name}" for name in files),
    }
    for name in files:
        path = CHECKOUT / "model_repository" / "nugraph3" / "1" / name
        assert there[f"nugraph3/1/{name}"] == path.read_bytes()
    again = run(bucket, "publish", place, "--models", "nugraph3")
    assert (again["status"], again["changed"], again["bytes"]) == (0, False, 0), again
    assert bucket.contents("first") == there
    words = ("--models", "nugraph3", "--with-code", "--instances", "1")
    second = run(bucket, "publish", place, *words)
    assert (second["release"], second["models"]) == ("2", {"nugraph3": 2})
    code = {"nugraph3/config.pbtxt", "nugraph3/2/config.pbtxt", "nugraph3/2/model.py"}
    assert code <= set(bucket.contents("first"))
    back = run(bucket, "rollback", place)
    assert (back["status"], back["serving"], back["before"]) == (0, 1, 2), back
    assert run(bucket, "published", place, "--check")["status"] == 0
    weights = "first/nugraph3/1/weights.safetensors"
    length = len(there["nugraph3/1/weights.safetensors"])
    bucket.client().put_object(Bucket="models", Key=weights, Body=bytes(length))
    damaged = run(bucket, "published", place)
    assert damaged["status"] == 1
    assert [entry["damaged"] for entry in damaged["releases"]] == [True, False]
    forward = run(bucket, "rollback", place, "--to", "2")
    assert (forward["status"], forward["serving"]) == (0, 2), forward
    refused = run(bucket, "rollback", place)
    assert refused["status"] == 1
    assert refused["error"].startswith("release 1 is damaged: ")
    listed = run(bucket, "published", place)
    assert [(e["release"], e["serving"]) for e in listed["releases"]] == [("1", False), ("2", True)]


def test_who_may_only_read_can_list_and_is_told_that_the_service_denies_the_rest(bucket):
    place = bucket.destination("reader")
    assert run(bucket, "published", place, identity=READER)["status"] == 0
    denied = run(bucket, "publish", place, "--models", "nugraph3", identity=READER)
    assert denied["status"] == 1
    assert "the service denies it" in denied["error"]
    assert READER[1] not in str(denied)
    assert bucket.contents("reader") == {}


def test_a_private_authority_is_trusted_by_its_path(bucket, tmp_path):
    place = bucket.destination("tls").replace(bucket.url, str(bucket.https))
    trusted = run(bucket, "published", place, AWS_CA_BUNDLE=str(bucket.ca))
    assert (trusted["status"], trusted["releases"]) == (0, []), trusted
    refused = run(bucket, "published", place)
    assert refused["status"] == 1
    assert "is not trusted: unable to get local issuer certificate" in refused["error"]
    assert refused["remedy"].startswith("AWS_CA_BUNDLE=FILE")
    (tmp_path / "empty.pem").write_text("")
    for file, why in (
        ("none.pem", "No such file or directory"),
        ("empty.pem", "no certificate or crl found"),
        ("", "Is a directory"),
    ):
        misread = run(bucket, "published", place, AWS_CA_BUNDLE=str(tmp_path / file))
        assert misread["error"].endswith(f" names cannot be read: {why}")
        assert misread["remedy"] == "correct it: a file of certificates (PEM)"


@pytest.mark.parametrize(
    ("place", "change", "cause", "remedy"),
    [
        ("{url}/models", {"AWS_SECRET_ACCESS_KEY": "no"}, "the secret key is wrong", "AWS_SECRET"),
        ("{url}/models", {"AWS_ACCESS_KEY_ID": "no"}, "does not know the access key", "AWS_ACCESS"),
        ("{url}/another", {}, "there is no such bucket", "correct the name"),
        ("http://127.0.0.1:9/models", {}, "http://127.0.0.1:9 does not answer", "check host, port"),
        ("https://{address}/models", {}, "no TLS with https://127.0.0.1", "s3://http://"),
        ("http://{tls}/models", {}, "does not answer", "http or https"),
    ],
)
def test_what_cannot_be_reached_or_is_refused_is_said_in_a_line_without_keys(
    place, change, cause, remedy, bucket, monkeypatch
):
    for name, value in {**bucket.variables(), **change}.items():
        monkeypatch.setenv(name, value)
    address, tls = (str(url).partition("//")[2] for url in (bucket.url, bucket.https))
    url = place.format(url=bucket.url, address=address, tls=tls)
    destination = parse_destination(f"s3://{url}")
    with pytest.raises(PublishError) as raised:
        place_at(destination).listing(Look())
    assert cause in raised.value.cause
    assert remedy in (raised.value.remedy or "")
    assert "\n" not in raised.value.cause
    assert not any(key in str(raised.value) for key in (*ADMIN, *change.values()) if key != "no")


def test_what_is_published_can_be_named_by_a_site_file(bucket):
    site = "deploy/sites/cpu-node.toml"
    shown = run(bucket, "publish", bucket.destination("site"), site, "--dry-run")
    assert (shown["status"], shown["changed"]) == (0, False), shown
    assert bucket.contents("site") == {}


def test_a_configuration_names_its_version_the_images_environment_and_where_it_runs(bucket):
    place = bucket.destination("gpu")
    models = ["--models", "nugraph3,nugraph2_cpu"]
    done = run(bucket, "publish", place, "--gpu", "--with-code", "--instances", "3", *models)
    assert (done["status"], done["models"]) == (0, {"nugraph2_cpu": 1, "nugraph3": 1}), done
    there = bucket.contents("gpu")
    on_gpu, on_cpu = (
        text_format.Parse(there[f"{name}/config.pbtxt"].decode(), model_config_pb2.ModelConfig())
        for name in ("nugraph3", "nugraph2_cpu")
    )
    for config in (on_gpu, on_cpu):
        assert list(config.version_policy.specific.versions) == [1]
        assert config.parameters["EXECUTION_ENV_PATH"].string_value == "/opt/numl/env"
        assert "environment_digest" not in config.parameters
        assert [group.count for group in config.instance_group] == [3]
    kinds = model_config_pb2.ModelInstanceGroup
    assert on_gpu.instance_group[0].kind == kinds.KIND_GPU
    assert on_cpu.instance_group[0].kind == kinds.KIND_CPU


def test_a_model_that_does_not_give_its_reference_output_is_not_published(bucket, tmp_path):
    wrong = tmp_path / "wrong"
    shutil.copytree(CHECKOUT / "model_repository" / "nugraph3" / "1", wrong)
    with np.load(wrong / "golden.npz") as arrays:
        changed = dict(arrays)
    changed["output/x_semantic_u"] = changed["output/x_semantic_u"] + 1
    np.savez(wrong / "golden.npz", **changed)
    words = ["--models", "nugraph3", "--checkpoint", f"nugraph3={wrong}"]
    refused = run(bucket, "publish", bucket.destination("wrong"), *words)
    assert refused["status"] == 1
    assert "x_semantic_u" in refused["error"]
    assert bucket.contents("wrong") == {}
