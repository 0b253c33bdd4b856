"""What a launch without a container prepares. Its GPUs are made up, and nothing is installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.deployment import Deployment
from deploy.engines import local
from deploy.engines.local import LocalEngine
from deploy.environment.compiled import Compiled
from deploy.hardware.gpu import Gpu
from deploy.hardware.plan import ON_CPU, DevicePlan
from deploy.paths import MODEL_REPOSITORY

GPUS = tuple(
    Gpu(number, f"GPU-{number}", "NVIDIA", capability, None)
    for number, capability in enumerate([(9, 0), (9, 0), (8, 0)])
)
WEIGHTS = {name: MODEL_REPOSITORY / name / "1" for name in ("nugraph2", "nugraph2_cpu", "nugraph3")}


@pytest.mark.parametrize(
    ("flavour", "devices", "expected"),
    [
        ("cpu", ON_CPU, [(None, [*WEIGHTS.values()])]),
        (
            "gpu",
            DevicePlan(GPUS),
            [
                (None, [*WEIGHTS.values()]),
                (GPUS[0], [WEIGHTS["nugraph2"], WEIGHTS["nugraph3"]]),
                (GPUS[2], [WEIGHTS["nugraph2"], WEIGHTS["nugraph3"]]),
            ],
        ),
    ],
)
def test_networks_are_compiled_for_the_processor_and_once_for_each_kind_of_gpu(
    flavour: str,
    devices: DevicePlan,
    expected: list[tuple[Gpu | None, list[Path]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Gpu | None, list[Path]]] = []

    def ensure_compiled(
        _environment: Any, models: list[Path], *_more: Any, gpu: Gpu | None = None
    ) -> Compiled:
        asked.append((gpu, models))
        return Compiled()

    standard = SimpleNamespace(
        environment="environment", lock=SimpleNamespace(python="3.11"), ensure=lambda _say: None
    )
    monkeypatch.setattr(local, "standard_environment", lambda _flavour: standard)
    monkeypatch.setattr(local, "choose_devices", lambda _deployment: devices)
    monkeypatch.setattr(local, "ensure_compiled", ensure_compiled)
    monkeypatch.setattr(LocalEngine, "models", lambda _self, **_more: ())
    monkeypatch.setattr(LocalEngine, "_runtime", lambda _self, _deployment: None)
    for made_elsewhere in (
        "ensure_distribution", "check_site", "check_stub_fits", "ensure_own_weights",
        "check_models_answer",
    ):  # fmt: skip
        monkeypatch.setattr(local, made_elsewhere, lambda *_given, **_more: None)
    deployment = Deployment.model_validate({"flavour": flavour})
    LocalEngine().prepare(deployment=deployment, say=print)
    assert asked == expected
