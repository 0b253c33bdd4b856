"""A bucket in memory: the requests that publishing makes, as services of different kinds answer."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tritonclient.grpc import model_config_pb2

from deploy.artefacts.labels import Source
from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.console import Console
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.destination import Bucket
from deploy.publishing.models import LocalModel
from deploy.publishing.place import Order, Outcome, Signing
from numl_formats.published import File

MODELS = ("one", "two")
QUIET = Console("quiet")
SERVERS = ("http://127.0.0.1:1",)


class Body(io.BytesIO):
    def iter_chunks(self, size: int) -> Iterator[bytes]:
        while block := self.read(size):
            yield block


@dataclass
class Service:
    """A service, as a client of boto3's.

    Attributes:
        conditional: Whether it knows conditional writes; else it refuses them with NotImplemented.
        tags: Whether it gives ETags.
        marks: Whether it keeps metadata.
        step: Called before and after each request.
        spoil: Changes what is stored.
    """

    conditional: bool = True
    tags: bool = True
    marks: bool = True
    step: Callable[[], None] = lambda: None
    spoil: Callable[[str, bytes], bytes] = lambda _, content: content
    objects: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)

    def get_object(self, **named: str) -> dict[str, Any]:
        content = self._there(named["Key"], "GetObject")
        return {**self._said(named["Key"]), "Body": Body(content)}

    def head_object(self, **named: str) -> dict[str, Any]:
        self._there(named["Key"], "HeadObject")
        return self._said(named["Key"])

    def put_object(self, **named: Any) -> dict[str, Any]:
        self.step()
        key, content = named["Key"], named["Body"]
        if_match, if_none = named.get("IfMatch"), named.get("IfNoneMatch")
        if (if_match or if_none) and not self.conditional:
            raise _error("NotImplemented", "PutObject")
        if (if_none and key in self.objects) or (if_match and if_match != self._tag(key)):
            raise _error("PreconditionFailed", "PutObject")
        self.objects[key] = self.spoil(key, content)
        self.metadata[key] = dict(named.get("Metadata", {})) if self.marks else {}
        self.step()
        return {}

    def delete_object(self, **named: str) -> dict[str, Any]:
        self.step()
        self.objects.pop(named["Key"], None)
        self.step()
        return {}

    def get_paginator(self, name: str) -> Service:
        assert name == "list_objects_v2"
        return self

    def paginate(self, **named: str) -> Iterator[dict[str, Any]]:
        self.step()
        yield {
            "Contents": [
                {
                    "Key": key,
                    "Size": len(content),
                    **({"ETag": self._tag(key)} if self.tags else {}),
                }
                for key, content in self.objects.items()
                if key.startswith(named["Prefix"])
            ]
        }

    def _there(self, key: str, operation: str) -> bytes:
        self.step()
        if key not in self.objects:
            raise _error("NoSuchKey", operation)
        return self.objects[key]

    def _said(self, key: str) -> dict[str, Any]:
        said: dict[str, Any] = {"Metadata": self.metadata.get(key, {})}
        return {**said, "ETag": self._tag(key)} if self.tags else said

    def _tag(self, key: str) -> str:
        content = self.objects.get(key, b"")
        return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def bucket_place(service: Service) -> BucketPlace:
    """Return a bucket of this service."""
    place = BucketPlace(Bucket("http://127.0.0.1:9", "models", "prod"))
    place._store.__dict__["client"] = service
    return place


def _error(code: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, operation)


@cache
def local_models(folder: Path, content: str, *, code: bool) -> dict[str, LocalModel]:
    """Two models whose weights hold ``content``."""
    models = {}
    for name in MODELS:
        where = folder / content / name
        where.mkdir(parents=True, exist_ok=True)
        texts = {"model.json": "card", "weights.safetensors": f"{content} of {name}"}
        texts |= {"model.py": "run"}
        files = {}
        for path, text in texts.items():
            (where / path).write_text(text)
            files[path] = File(hashlib.sha256(text.encode()).hexdigest(), len(text))
        run = {"model.py": files.pop("model.py")}
        config = model_config_pb2.ModelConfig(backend="python")
        models[name] = LocalModel(config, where, files, run if code else None)
    return models


def small_models(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Publish small files, which hold a deployment's name; take every server's word."""

    @contextmanager
    def verified(
        resolved: Resolved, _: object, *, with_code: bool
    ) -> Iterator[dict[str, LocalModel]]:
        made = local_models(folder, resolved.deployment.name, code=with_code)
        yield {name: made[name] for name in resolved.deployment.models}

    where = "deploy.publishing.bucket"
    patch.setattr(f"{where}.verified_models", verified)
    # git is asked four times for each.
    patch.setattr(f"{where}.find_source", lambda _: Source("abc", 0, ""))
    for name in ("read_goldens", "await_release"):
        patch.setattr(f"{where}.{name}", lambda *_: {})


def publish(service: Service, content: str, models: Sequence[str] = MODELS, **more: Any) -> Outcome:
    order = Order(Resolved(Deployment(name=content, models=models)), **more)
    return bucket_place(service).publish(order, QUIET)


def rollback(service: Service, signing: Signing, to: str | None = None) -> Outcome:
    return bucket_place(service).rollback(to, signing, dry_run=False)


def prune(service: Service, signing: Signing) -> Outcome:
    return bucket_place(service).prune(SERVERS, signing, QUIET, dry_run=False)


class KilledError(BaseException):
    """The process ends here."""


def after(requests: int, act: Callable[[], None]) -> Callable[[], None]:
    steps = itertools.count()

    def step() -> None:
        if next(steps) == requests:
            act()

    return step


def die() -> None:
    raise KilledError
