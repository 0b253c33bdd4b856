"""What is compiled for: the processor's instructions and the GPU's kind. There is no GPU here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from numl_serving.target import LEVELS, Target, levels, targets_of

V3 = "fpu sse2 avx avx2 bmi1 bmi2 f16c fma abm movbe"
AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (V3, ("x86-64-v3",)),
        (f"{V3} {AVX512} avx512_vnni", ("x86-64-v4", "x86-64-v3")),
        (f"{V3} {AVX512}", ("x86-64-v3",)),
        (f"{V3} avx512f", ("x86-64-v3",)),
    ],
)
def test_a_processor_has_the_levels_whose_instructions_it_has(
    flags: str, found: tuple[str, ...], tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: X\nflags\t\t: {flags}\n\n")
    assert levels(cpuinfo) == found


def test_another_kind_of_processor_has_a_level_of_its_own(tmp_path: Path) -> None:
    names = set()
    for features in ("fp asimd", "fp asimd sve", "sve asimd fp"):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {features}\n")
        names.add(levels(tmp_path / "cpuinfo"))
    assert len(names) == 2
    assert not {name for (name,) in names} & set(LEVELS)


def test_a_processor_is_told_by_its_levels() -> None:
    device = torch.device("cpu")
    assert targets_of(device) == tuple(Target(device, level) for level in levels())
    assert Target(device, "x86-64-v4").facts == {
        "processor": "x86-64-v4",
        "gpu": None,
        "cuda": None,
    }


def test_gpus_are_told_by_their_compute_capability_not_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capabilities = {"cuda:0": (9, 0), "cuda:1": (8, 6), "cuda:2": (9, 0)}
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: capabilities[str(device)]
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    first, second, third = (targets_of(torch.device(name))[0] for name in capabilities)
    assert first == Target(torch.device("cuda:0"), levels()[0], "sm_90", "13.0")
    assert first.facts == {"processor": levels()[0], "gpu": "sm_90", "cuda": "13.0"}
    assert second.facts == first.facts | {"gpu": "sm_86"}
    assert third.facts == first.facts
