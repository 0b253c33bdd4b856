"""Checkpoints are read without running what they name, and refused in one line."""

import contextlib
import io
import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numl_serving.checkpoint import read_checkpoint
from numl_serving.errors import CheckpointError


class Settings(dict[str, Any]):
    """A dictionary-like class that no reader has."""


def save(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def state() -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.arange(12.0).view(3, 4)}


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


def test_tensors_come_out_as_they_went_in(tmp_path):
    shared = torch.randn(4, 6)
    tensors = {
        "plain": shared,
        "view": shared[1:3, ::2],
        "transposed": shared.t(),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "half": torch.randn(3).half(),
        "bfloat16": torch.randn(3).bfloat16(),
        "double": torch.randn(3).double(),
        "integer": torch.arange(5),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(0.5),
        "empty": torch.empty(0, 7),
    }
    path = save({"state_dict": tensors}, tmp_path / "model.ckpt")
    read = read_checkpoint(path).state
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        # numpy has no bfloat16.
        expected = tensor.detach().float() if name == "bfloat16" else tensor.detach()
        assert read[name].dtype == expected.numpy().dtype
        assert read[name].shape == expected.shape
        assert np.array_equal(read[name], expected.numpy()), name
        assert read[name].flags.c_contiguous
        assert read[name].flags.writeable


def test_a_bare_state_dict_of_a_module_is_read(tmp_path):
    module = torch.nn.Linear(3, 2)
    path = save(module.state_dict(), tmp_path / "model.pt")
    assert np.array_equal(read_checkpoint(path).state["weight"], module.weight.detach().numpy())


def test_hyper_parameters_are_reduced_to_plain_values(tmp_path):
    hyper_parameters = {
        "planes": ("u", "v", "y"),
        "num_iters": 5,
        "lr": 1e-3,
        "nested": Settings(width=3),
        "norm": torch.tensor([[1.0, 2.0]]),
        "path": Path("/somewhere"),
        "number": np.float64(2.5),
        "too long for JSON": 10**5000,
        "no line": "a\nb",
    }
    content = {"state_dict": state(), "hyper_parameters": hyper_parameters, "epoch": 3}
    checkpoint = read_checkpoint(save(content, tmp_path / "model.ckpt"))
    assert checkpoint.hyper_parameters == {
        "planes": ["u", "v", "y"],
        "num_iters": 5,
        "lr": 1e-3,
        "nested": {"width": 3},
        "norm": [[1.0, 2.0]],
        "path": None,
        "number": None,
        "too long for JSON": None,
        "no line": None,
    }
    assert checkpoint.facts == {"epoch": 3}
    assert "pathlib.PosixPath" in checkpoint.ignored_globals


def test_hyper_parameters_that_contain_themselves_come_to_an_end(tmp_path):
    endless: list[Any] = []
    endless.append(endless)
    content = {"state_dict": state(), "hyper_parameters": {"endless": endless}}
    assert "endless" in read_checkpoint(save(content, tmp_path / "a.ckpt")).hyper_parameters
    layers: list[Any] = [0]
    for _ in range(14):
        layers = [layers] * 10
    content = {"state_dict": state(), "hyper_parameters": {"bomb": layers}}
    assert "too many values" in refusal(save(content, tmp_path / "b.ckpt"))


ATTACKS = {
    "system": "cos\nsystem\n(Vtouch {marker}\ntR",
    "system by INST": "(Vtouch {marker}\nios\nsystem\n",
    "system by OBJ": "(cos\nsystem\nVtouch {marker}\no",
    "eval": "cbuiltins\neval\n(Vopen('{marker}', 'w').close()\ntR",
    "exec": "cbuiltins\nexec\n(Vopen('{marker}', 'w').close()\ntR",
    "open": "cbuiltins\nopen\n(V{marker}\nVw\ntR",
    "getattr": "cbuiltins\ngetattr\n(cpathlib\nPath\n(V{marker}\ntRVtouch\ntR)R",
    "import": "cbuiltins\ngetattr\n(cbuiltins\n__import__\n(Vos\ntRVsystem\ntR(Vtouch {marker}\ntR",
    "old getattr": "c__builtin__\ngetattr\n(c__builtin__\n__import__\n(Vos\ntRVsystem\ntR"
    "(Vtouch {marker}\ntR",
}
PLACEHOLDER = "PLACEHOLDER"


@pytest.mark.parametrize("place", ["beside", "hyper_parameters", "weight", "state_dict"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_a_hostile_pickle_names_is_run(tmp_path, attack, place):
    marker = tmp_path / "executed"
    hostile = ATTACKS[attack].format(marker=marker).encode()
    content: dict[str, Any] = {"state_dict": state(), "hyper_parameters": {"num_iters": 5}}
    if place == "beside":
        content["callbacks"] = PLACEHOLDER
    elif place == "hyper_parameters":
        content["hyper_parameters"]["planes"] = PLACEHOLDER
    elif place == "weight":
        content["state_dict"]["evil"] = PLACEHOLDER
    else:
        content["state_dict"] = PLACEHOLDER
    path = save(content, tmp_path / "hostile.ckpt")
    innocent = b"X" + len(PLACEHOLDER).to_bytes(4, "little") + PLACEHOLDER.encode()
    program = program_of(path)
    assert program.count(innocent) == 1
    rewrite(path, "data.pkl", program.replace(innocent, hostile))

    if place == "state_dict":
        assert "state_dict" in refusal(path)
    else:
        checkpoint = read_checkpoint(path)
        assert list(checkpoint.state) == ["layer.weight"]
        assert np.array_equal(checkpoint.state["layer.weight"], state()["layer.weight"].numpy())
        assert checkpoint.ignored_globals
    assert not marker.exists()

    # The control: an ordinary unpickler does run it.
    with contextlib.suppress(Exception):
        pickle.loads(b"\x80\x02" + hostile + b".")
    assert marker.exists()


def program_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl")))


def rewrite(path: Path, entry: str, content: bytes) -> Path:
    """Replace an entry of a checkpoint, or add it."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(iter(entries)).split("/")[0]
    entries[f"{root}/{entry}"] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in entries.items():
            archive.writestr(name, value)
    return path


@given(st.binary(max_size=60))
def test_any_pickle_program_is_read_or_refused(program):
    with tempfile.TemporaryDirectory() as directory:
        path = rewrite(save(state(), Path(directory) / "a.ckpt"), "data.pkl", program)
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


SHARED = b")" + 60 * b"2\x86"  # each tuple holds the one before twice
PICKLES = [
    (b"\x80\x02cos\nsystem\n(S'true'\ntR.", "no state_dict with tensors"),
    (b"\x80\x02]q\x00.", "holds a list"),
    (b"\x80\x02}q\x00", "cannot be read"),
    (b"\x80\x02X\xff\xff\xff\x7f", "cannot be read"),
    (b"\x80\x02(K\x01K\x02tQ.", "other than a tensor storage"),
    (b"\x80\x02\x82\x01.", "cannot be read"),
    (b"cnumpy\x00\nx\n.", "holds a type"),
    (b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".", "cannot be read"),
    # These would take much memory, or hours: large numbers, deep nesting, what is shared often.
    (b"\x80\x02}r\x00\xe1\xf5\x05.", "no state_dict with tensors"),
    (b"\x80\x02}p100000000\n.", "no state_dict with tensors"),
    (b"\x80\x02})" + 500_000 * b"\x85" + b"K\x01s.", "no state_dict with tensors"),
    (b"\x80\x02}" + SHARED + b"Ns.", "no state_dict with tensors"),
    (b"\x80\x04\x8f(" + 2 * SHARED + b"\x90.", "holds a set"),
    (b"\x80\x04(" + (5 << 20) * b"\x8f" + b"l.", "has 5242885 bytes, at most 4194304 are read"),
]


@pytest.mark.parametrize(("program", "what"), PICKLES, ids=[what for _, what in PICKLES])
def test_damaged_and_endless_pickles_are_refused_with_a_reason(tmp_path, program, what):
    assert what in refusal(rewrite(save(state(), tmp_path / "a.ckpt"), "data.pkl", program))


def test_a_name_that_patterns_would_take_hours_for_is_refused(tmp_path):
    name = ".convs.a" + 100_000 * "__plane__b"
    path = save({**state(), name: torch.zeros(1)}, tmp_path / "a.ckpt")
    assert "a tensor with a name of 1000008 characters" in refusal(path)


@pytest.mark.parametrize(
    ("size", "stride", "what"),
    [
        ((3, 5), (1, 2), "outside its storage"),
        ((900,), (0,), "outside its storage"),
        ((2, 2, 2, 2), (1, 2, 3, 4), "outside its storage"),
        ((10**12,), (0,), "more numbers than the file has bytes"),
        ((0, 10**30), (1, 1), "impossible shape"),
        ((1,) * 80, (1,) * 80, "impossible shape"),
    ],
)
def test_a_tensor_that_its_storage_does_not_hold_is_refused(tmp_path, size, stride, what):
    path = save({"w": torch.zeros(12)}, tmp_path / "a.ckpt")
    assert what in refusal(rewrite(path, "data.pkl", pickle_of_tensor(size, stride)))


def test_tensors_that_share_a_storage_thousands_of_times_are_refused(tmp_path):
    shared = torch.zeros(100_000)
    path = save({f"w{i}": shared for i in range(3)}, tmp_path / "a.ckpt")
    assert len(read_checkpoint(path).state) == 3
    path = save({f"w{i}": shared for i in range(3000)}, tmp_path / "a.ckpt")
    assert "more numbers than the file has bytes" in refusal(path)


def test_the_stride_of_a_single_element_does_not_matter(tmp_path):
    path = save({"w": torch.arange(12.0)}, tmp_path / "a.ckpt")
    rewrite(path, "data.pkl", pickle_of_tensor((1, 12), (10**30, 1)))
    assert np.array_equal(read_checkpoint(path).state["w"], np.arange(12)[None])


def pickle_of_tensor(size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    class Storage:
        pass

    class Rebuild:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_tensor_v2
            return rebuild, (Storage(), 0, size, stride, False, None)

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, Storage):
                return ("storage", torch.FloatStorage, "0", "cpu", 12)
            return None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"w": Rebuild()})
    return buffer.getvalue()


def test_files_that_are_no_checkpoints_are_refused_with_what_they_are(tmp_path):
    good = save({"state_dict": state()}, tmp_path / "good.ckpt").read_bytes()

    def written(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    assert "truncated or damaged" in refusal(written("short.ckpt", good[: len(good) // 2]))
    assert "not a PyTorch checkpoint" in refusal(written("text.ckpt", b"epoch 7"))
    assert "not a PyTorch checkpoint" in refusal(written("empty.ckpt", b""))
    assert "cannot be read" in refusal(tmp_path / "absent.ckpt")
    assert "cannot be read" in refusal(tmp_path)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    assert "no data.pkl" in refusal(tmp_path / "other.zip")
    torch.save(state(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "before PyTorch 1.6" in refusal(tmp_path / "old.pt")


def test_damage_within_a_storage_is_noticed(tmp_path):
    path = save({"state_dict": {"w": torch.zeros(4000)}}, tmp_path / "a.ckpt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    ("header", "place", "content"),
    [
        (b"PK\x01\x02", 6, b"\xff\x00"),  # a version to come
        (b"PK\x01\x02", 8, b"\x01\x00"),  # encrypted
        (b"PK\x01\x02", 8, b"\x20\x00"),  # a patch
        (b"PK\x01\x02", 46, b"\xff"),  # a name in UTF-8 that is none
        (b"PK\x03\x04", 30, b"\xff"),
    ],
)
def test_damage_of_the_archive_itself_is_refused(tmp_path, header, place, content):
    path = save(state(), tmp_path / "a.ckpt")
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(header) + 7 + (header == b"PK\x01\x02") * 2] |= 8  # names in UTF-8
    at = damaged.index(header) + place
    damaged[at : at + len(content)] = content
    path.write_bytes(damaged)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    ("opcode", "change"),
    [
        (b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x00x\x85b"),  # of a dtype
        (b"K\x00K\x0c\x85", b"(X\x01\x00\x00\x000K\x07Ntb"),  # of a storage
        (b"s.", b"(NNNNNtb"),  # of a tensor
        # As their own classes would restore them, with values that could be right:
        (b"X\x01\x00\x00\x000", b"]X\x07\x00\x00\x00float16ab"),  # of a dtype
        (b"X\x01\x00\x00\x000", b"N}X\x04\x00\x00\x00nameX\x07\x00\x00\x00float16s\x86b"),
        (b"K\x00K\x0c\x85", b"](X\x01\x00\x00\x000X\x07\x00\x00\x00float32K\x07eb"),  # of a storage
        (b"s.", b"N}X\x06\x00\x00\x00offsetJ\xff\xff\xff\xffs\x86b"),  # of a tensor
        (b"s.", b"}X\x06\x00\x00\x00offsetK\x01sb"),
        (b"((X\x07", b"N}X\x09\x00\x00\x00_functionNs\x86b"),  # of a function
        (b"((X\x07", b"N}X\x08\x00\x00\x00functionNs\x86b"),
    ],
)
def test_objects_that_a_pickle_changes_once_they_are_checked_are_refused(tmp_path, opcode, change):
    program = (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x0ctQ"
        b"K\x00K\x0c\x85K\x01\x85\x89NtRs."
    )
    path = rewrite(save({"w": torch.zeros(12)}, tmp_path / "a.ckpt"), "data.pkl", program)
    assert list(read_checkpoint(path).state) == ["w"]
    changed = rewrite(path, "data.pkl", program.replace(opcode, change + opcode))
    assert "its pickle cannot be read" in refusal(changed)


def test_a_compressed_entry_is_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}." * 100)
    assert "compressed" in refusal(path)


@pytest.mark.parametrize("content", [{"state_dict": {}}, {"state_dict": {"a": 1}}, {"x": "y"}])
def test_a_checkpoint_without_weights_is_refused(tmp_path, content):
    assert "no state_dict with tensors" in refusal(save(content, tmp_path / "a.ckpt"))


@pytest.mark.parametrize("special", [Path("/dev/zero"), Path("/dev/null"), "pipe"])
def test_what_is_no_regular_file_is_refused_without_reading_it(tmp_path, special):
    path = special if isinstance(special, Path) else tmp_path / special
    if not path.exists():
        os.mkfifo(path)
    assert "not a regular file" in refusal(path)
