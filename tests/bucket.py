"""Real S3 services on loopback: SeaweedFS, with an identity that may write and one that may not.

Any test can have it as a fixture: ``from tests.bucket import bucket  # noqa: F401``.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.certificates import Authority, Pair
from tests.kit import free_port

BUCKET = "models"
ADMIN = ("kit-admin", "kit-admin-secret")
READER = ("kit-reader", "kit-reader-secret")
_START_S = 120.0
# SeaweedFS takes the port of each of its servers and, for gRPC, that plus 10000.
_GRPC = 10_000


@dataclass(frozen=True)
class S3:
    """A service that runs.

    Attributes:
        url: Its endpoint.
        process: The server; killed, not stopped: a graceful stop takes a minute.
        https: Its endpoint with TLS, if it has one.
        ca: The authority that signed its certificate, if it is one of ours.
        reader: Who may read only; of a service with one identity, that one.
    """

    url: str
    process: subprocess.Popen[bytes]
    https: str | None = None
    ca: Path | None = None
    reader: tuple[str, str] = READER

    def destination(self, prefix: str) -> str:
        return f"s3://{self.url}/{BUCKET}/{prefix}"

    def variables(self, identity: tuple[str, str] = ADMIN) -> dict[str, str]:
        """Return what boto3 and Triton take credentials from."""
        return {
            "AWS_ACCESS_KEY_ID": identity[0],
            "AWS_SECRET_ACCESS_KEY": identity[1],
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self, identity: tuple[str, str] = ADMIN) -> Any:
        return _client(self.url, identity)

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Return all objects below a prefix."""
        client = self.client()
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", ())
        keys = [entry["Key"] for entry in listed]
        return {
            key.removeprefix(f"{prefix}/"): client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            for key in keys
        }


@contextmanager
def seaweedfs(folder: Path, *, s3_port: int | None = None, tls: Pair | None = None) -> Iterator[S3]:
    """Run SeaweedFS with its data in ``folder``; started there again, it has them still.

    Args:
        s3_port: Where it answers; None: any free port.
        tls: The certificate with which it answers at a second port.
    """
    folder.mkdir(parents=True, exist_ok=True)
    master, volume, filer, https_port = (free_port(_GRPC) for _ in range(4))
    s3 = free_port(_GRPC) if s3_port is None else s3_port
    identities = [
        _identity("admin", ADMIN, ["Admin", "Read", "Write", "List", "Tagging"]),
        _identity("reader", READER, ["Read", "List"]),
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir(exist_ok=True)
    words = [
        *(str(Path(sys.executable).with_name("weed")), "-logtostderr"),
        *("server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
        *("-filer", "-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
        *("-volume.max=20", "-master.volumeSizeLimitMB=64"),
    ]
    https = None
    if tls is not None:
        https = f"https://127.0.0.1:{https_port}"
        words += [f"-s3.port.https={https_port}"]
        words += [f"-s3.cert.file={tls.cert}", f"-s3.key.file={tls.key}"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    service = S3(f"http://127.0.0.1:{s3}", process, https)
    try:
        _await(service, folder / "log")
        yield service
    finally:
        process.kill()
        process.wait()
        for port in (master, volume, filer, s3):
            for socket in Path("/tmp").glob(f"seaweedfs-*[!0-9]{port}.sock"):
                socket.unlink()
            for socket in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + _GRPC}.sock"):
                socket.unlink()


@contextmanager
def juicefs(folder: Path) -> Iterator[S3]:
    """Run JuiceFS's gateway, a MinIO: it knows no conditional writes, no metadata and no ETags."""
    program, database = (
        str(Path(sys.executable).with_name("juicefs")),
        f"sqlite3://{folder}/volume.db",
    )
    (folder / "data").mkdir(parents=True)
    port = free_port()
    storage = ["--storage", "file", "--bucket", f"{folder}/data/"]
    gateway = ["gateway", "--multi-buckets", "--no-usage-report", database, f"127.0.0.1:{port}"]
    keys = {"MINIO_ROOT_USER": ADMIN[0], "MINIO_ROOT_PASSWORD": ADMIN[1]}
    with (folder / "log").open("wb") as log:
        words = [program, "format", *storage, database, "models"]
        subprocess.run(words, stdout=log, stderr=log, check=True)
        process = subprocess.Popen(
            [program, *gateway], env={**os.environ, **keys}, cwd=folder, stdout=log, stderr=log
        )
    service = S3(f"http://127.0.0.1:{port}", process, reader=ADMIN)
    try:
        _await(service, folder / "log")
        yield service
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    """A service with a bucket, of this test session; TLS under an authority of its own."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    authority = Authority(folder, "site")
    with seaweedfs(folder, tls=authority.issue("127.0.0.1")) as service:
        yield replace(service, ca=authority.file)


@cache
def _client(url: str, identity: tuple[str, str]) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=identity[0],
        aws_secret_access_key=identity[1],
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )


def _identity(name: str, keys: tuple[str, str], actions: list[str]) -> Mapping[str, Any]:
    credentials = [{"accessKey": keys[0], "secretKey": keys[1]}]
    return {"name": name, "credentials": credentials, "actions": actions}


def _await(service: S3, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    client = service.client()
    while True:
        try:
            there = [entry["Name"] for entry in client.list_buckets()["Buckets"]]
            if BUCKET not in there:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
            return
        except (BotoCoreError, ClientError):
            assert service.process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
