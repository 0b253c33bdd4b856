"""Published models: a bucket as ``numlkit publish`` leaves it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from deploy.environment.agent import agent_folder
from deploy.environment.environment import Environment, plan_environment
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.config import LaunchSettings
from deploy.triton.distribution import TritonDistribution, ensure_distribution
from deploy.triton.golden import read_golden
from deploy.triton.release import find_release
from deploy.triton.stage import plan_models, write_templates
from numl_formats.golden import GoldenEvent
from numl_formats.published import File, Model, Published, Release, published_release, rolled_back
from numl_formats.repository import DATA_FILES
from numl_formats.statement import statement
from numl_formats.trust import signature_path
from tests.bucket import BUCKET, S3
from tests.environments import ignore
from tests.keys import sign

MODELS = ("nugraph2_cpu", "nugraph3")

# Other weights of the same network, with the answers that belong to them.
_ALTER = """
import hashlib, json, sys
from pathlib import Path
import numpy as np
from numl_formats.golden import GoldenEvent, read_golden, write_golden
from numl_serving.event import Event
from numl_serving.runtime import Runtime
folder = Path(sys.argv[1])
weights = folder / "weights.safetensors"
content = weights.read_bytes()
begin = 8 + int.from_bytes(content[:8], "little")
changed = content[:begin] + (np.frombuffer(content[begin:], np.float32) * np.float32(0.9)).tobytes()
weights.write_bytes(changed)
card = json.loads((folder / "model.json").read_text())
card["weights"]["sha256"] = hashlib.sha256(changed).hexdigest()
(folder / "model.json").write_text(json.dumps(card))
inputs = read_golden(folder / "golden.npz").inputs
answer = Runtime.load(folder).infer(Event.from_tensors(inputs))
write_golden(folder / "golden.npz", GoldenEvent(inputs, answer))
"""


@dataclass(frozen=True)
class House:
    """What servers and agents are made of on this host: the same as in the image."""

    environment: Environment
    distribution: TritonDistribution
    agent: Path
    templates: Path
    versions: Mapping[int, Path]

    def golden(self, model: str, version: int) -> GoldenEvent:
        return read_golden(self.versions[version] / model / "golden.npz")


def make_house(folder: Path) -> House:
    """Make two versions of all models in a folder; 1 is the one in this repository."""
    environment = plan_environment("serving").make(ignore)
    release = find_release("24.10")
    distribution = ensure_distribution(release, environment.interpreter.short_version, ignore)
    versions = {number: folder / f"version-{number}" for number in (1, 2)}
    for number, place in versions.items():
        for model in MODELS:
            shutil.copytree(
                MODEL_REPOSITORY / model / "1", place / model,
                ignore=shutil.ignore_patterns("__pycache__"),
            )  # fmt: skip
            if number == 2:
                command = [environment.python, "-IBc", _ALTER, place / model]
                subprocess.run(command, check=True)
    settings = LaunchSettings(environment.folder, {}, 1)
    templates = folder / "templates"
    write_templates(plan_models(MODEL_REPOSITORY, MODELS, settings, {}), templates)
    return House(environment, distribution, agent_folder(environment, ignore), templates, versions)


@dataclass
class Publisher:
    """Writes what ``numlkit publish`` writes, in the same order.

    Attributes:
        key: What statements are signed with; None: they are not.
    """

    house: House
    s3: S3
    prefix: str
    key: EllipticCurvePrivateKey | None = None
    expires: datetime | None = None
    published: Published | None = None

    @property
    def url(self) -> str:
        return self.s3.destination(self.prefix)

    def put(self, path: str, content: bytes) -> None:
        key = f"{self.prefix}/{path}"
        self.s3.client().put_object(Bucket=BUCKET, Key=key, Body=content)

    def publish(self, number: int, version: int) -> float:
        """Publish a version of all models; return when its last PUT was answered."""
        models = {}
        for model in MODELS:
            files = {}
            for name in DATA_FILES:
                content = (self.house.versions[version] / model / name).read_bytes()
                files[name] = File(hashlib.sha256(content).hexdigest(), len(content))
                self.put(f"{model}/{version}/{name}", content)
            models[model] = Model(version, files)
        now = datetime.now(timezone.utc)
        new = Release(number, now, "0123abc", models)
        return self.state(published_release(self.published, new, created=now, expires=self.expires))

    def serve(self, number: int) -> float:
        """Have a release serve; return when the last PUT was answered."""
        assert self.published is not None
        now = datetime.now(timezone.utc)
        return self.state(rolled_back(self.published, number, created=now, expires=self.expires))

    def state(self, published: Published) -> float:
        """Put a statement, with its signature before it."""
        self.published, content = published, statement(published)
        if self.key is not None:
            self.put(signature_path(content), sign(self.key, content))
        self.put("published.json", content)
        return time.monotonic()
