"""Builds of the image: what is kept, what is refused, and NVIDIA's base."""

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from deploy.artefacts.context import triton_layer
from deploy.artefacts.image import BaseImage
from deploy.host.errors import BuildError
from deploy.triton.distribution import ensure_distribution
from tests.containers.conftest import RELEASE
from tests.environments import ignore

MB = 1_000_000


@pytest.fixture
def changed_context(context):
    """A copy of the context; a file in it is replaced, never written to."""
    with tempfile.TemporaryDirectory(dir=context.parent) as folder:
        copy = Path(folder) / "context"
        shutil.copytree(context, copy, copy_function=os.link)
        yield copy


def replace(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def layers(engine: docker.DockerClient, image: str) -> list[str]:
    found: list[str] = engine.images.get(image).attrs["RootFS"]["Layers"]
    return found


def test_the_packages_are_kept_when_our_python_changes(
    engine, build_from, image, context, changed_context, tags
):
    for name in ("models/cpu/nugraph3/1/model.py", "bin/health"):
        replace(changed_context / name, (context / name).read_bytes() + b"# changed\n")
    serving = changed_context / "serving.tar"
    serving.unlink()
    with tarfile.open(context / "serving.tar") as old, tarfile.open(serving, "w") as new:
        for member in old:
            member.mtime += 1
            new.addfile(member, old.extractfile(member))
    tag = tags("changed")
    build_from(changed_context, tag)
    of_base = layers(engine, build_from.ingredients.base.reference)
    before, after = layers(engine, image.tag), layers(engine, tag)
    kept = len(of_base) + 3  # packages, Triton, the sync agent
    assert before[:kept] == after[:kept]
    assert before[kept] != after[kept]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("1/weights.safetensors", b"not weights", r"nugraph3/1: .*weights"),
        ("1/model.py", b"import no_such_package\n", r"nugraph3: not ready: .*no_such_package"),
    ],
)
def test_a_build_with_a_model_that_cannot_answer_fails_in_a_line_and_gives_no_name(
    engine, build_from, changed_context, tags, name, content, cause
):
    replace(changed_context / "models" / "cpu" / "nugraph3" / name, content)
    tag = tags("broken")
    with pytest.raises(BuildError, match=cause) as caught:
        build_from(changed_context, tag)
    assert "\n" not in caught.value.cause
    with pytest.raises(ImageNotFound):
        engine.images.get(tag)


def test_an_interrupted_build_gives_no_name(engine, build_from, context, tags):
    def interrupt(text: str) -> None:
        if "COPY models" in text:
            raise KeyboardInterrupt

    tag = tags("interrupted")
    with pytest.raises(KeyboardInterrupt):
        build_from(context, tag, say=interrupt)
    with pytest.raises(ImageNotFound):
        engine.images.get(tag)


def test_on_nvidia_s_layout_the_stub_for_its_python_is_added(
    engine, build_from, changed_context, tags, tmp_path
):
    """NVIDIA's registry cannot be reached from where these tests run everywhere.

    A stand-in has the layout of its image: the same server with the stub for Python 3.10,
    in the same folders, on a small Debian instead of Ubuntu with CUDA.
    """
    nvidias = ensure_distribution(RELEASE, "3.10", ignore)
    ours = ensure_distribution(RELEASE, "3.11", ignore)
    triton_layer(nvidias, tmp_path / "triton.tar", base="slim", say=ignore)
    recipe = f"FROM {build_from.ingredients.base.reference}\nADD triton.tar /\n"
    (tmp_path / "Dockerfile").write_text(recipe)
    stand_in = tags("nvidia")
    engine.images.build(path=str(tmp_path), tag=stand_in, rm=True)
    (changed_context / "triton.tar").unlink()
    triton_layer(ours, changed_context / "triton.tar", base="ngc", say=ignore)
    assert (changed_context / "triton.tar").stat().st_size < 10 * MB
    # The build itself starts the server and asks every model.
    base = BaseImage(reference=stand_in, name=stand_in, digest="sha256:none")
    build_from(changed_context, tags("ngc"), base=base)
