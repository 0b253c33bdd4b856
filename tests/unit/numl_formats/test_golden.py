"""Comparing answers, and the files that hold the expected ones."""

import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from numl_formats.errors import FormatError, NewerFormatError
from numl_formats.golden import (
    GoldenEvent,
    difference,
    disagreements,
    one_by_one,
    read_golden,
    tensor_names,
    write_golden,
)

DATA = Path(__file__).parent / "data"
WANT: dict[str, np.ndarray] = {"x": np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)}


def golden(**outputs: np.ndarray) -> GoldenEvent:
    return GoldenEvent({}, outputs)


SMALL = np.float32([[100.0, 0.1], [200.0, 0.2]])
NEAR = np.float32([[1.0, 1.00001]])
CLASSES = np.uint8([7, 7])


def words(*each: bytes) -> np.ndarray:
    """Return texts as Triton answers them; a file has them as an array of bytes."""
    return np.array(each, object)


@pytest.mark.parametrize(
    ("want", "answer", "said"),
    [
        (WANT["x"], WANT["x"] + np.float32(3e-4), None),
        (SMALL, SMALL + np.float32([1e-2, 0]), None),
        (SMALL, SMALL + np.float32([0, 1e-2]), "is off by 0.01 at a scale of 0.2"),
        (WANT["x"], np.float32([[1, 2], [4, 3.1]]), "is off by 0.1 at a scale of 3"),
        (WANT["x"], np.float32([[2, 1], [4, 3]]), "is off by 1 at a scale of 3"),
        (NEAR, NEAR[:, ::-1], None),
        (WANT["x"], np.empty((0, 2)), "has shape [0, 2], expected [2, 2]"),
        (np.empty((0, 5), np.float32), np.empty((0, 5), np.float32), None),
        (WANT["x"], np.ones((2, 2), np.int64), "is int64, expected float32"),
        (WANT["x"], np.float32([[1, 2], [4, np.nan]]), "is not finite"),
        (WANT["x"], np.float32([[1, np.inf], [4, 3]]), "is not finite"),
        (CLASSES, CLASSES.copy(), None),
        (CLASSES, np.uint8([7, 8]), "differs"),
        (np.int64([10**9]), np.int64([10**9]), None),
        (np.int64([10**9]), np.int64([10**9 + 1]), "differs"),
        (np.array([True, False]), np.array([True, False]), None),
        (np.array([True, False]), np.array([True, True]), "differs"),
        (np.array([b"cat", b"ibex"]), words(b"cat", b"ibex"), None),
        (np.array([b"cat", b"ibex"]), words(b"cat", b"dog"), "differs"),
        (words(b"a\0"), words(b"a\0"), None),
        (words(b"a\0"), words(b"a"), "differs"),
        (np.array([b"a"]), words(b"a\0"), None),  # a file cannot say how many zeros there were
        (np.array([b"a"]), words(b"\0a"), "differs"),
        (np.array([b"7"]), np.array([7]), "differs"),
        (np.array([b"\1\2"], "V2"), np.array([b"\1\2"], "V2"), None),
        (np.array([b"\1\2"], "V2"), np.zeros(1, "V2"), "differs"),
        (np.array([b"\1\2"], "V2"), np.zeros(1, "V3"), "differs"),
    ],
)
def test_an_answer_is_right_or_described(want, answer, said):
    wanted = None if said is None else f"output x {said}"
    assert difference(golden(x=want), {"x": answer}) == wanted


def test_an_output_that_is_missing_or_not_expected_is_named():
    assert difference(golden(**WANT), {}) == "output x is missing"
    assert difference(golden(**WANT), WANT | {"y": WANT["x"]}) == "output y is not expected"
    # Of many, three.
    assert difference(golden(**dict.fromkeys("abcde", np.zeros(1))), {}) == (
        "output a is missing; output b is missing; output c is missing; and 2 more"
    )


@pytest.mark.parametrize(
    ("kind", "texts"),
    [(object, ["M\u00fcon", b"\xff\xfe"]), (str, ["M\u00fcon", ""]), (bytes, ["a"])],
)
def test_texts_are_kept_as_utf_8(tmp_path, kind, texts):
    event = {"x": np.array(texts, kind).reshape(1, -1)}
    write_golden(tmp_path / "golden.npz", GoldenEvent(event, event))
    found = read_golden(tmp_path / "golden.npz")
    kept = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert found.inputs["x"].tolist() == [kept]
    assert difference(found, {"x": np.array([kept], object)}) is None


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([b"PK\0\0"], object), "a text in it ends with a zero byte, which numpy drops"),
        (np.array(["a\0"], object), "a text in it ends with a zero byte, which numpy drops"),
        (np.zeros(2, "V2"), "void16 is no type of numpy's"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_by_the_name_of_the_tensor(tmp_path, array, why):
    path = tmp_path / "golden.npz"
    for side, event in (
        ("input", GoldenEvent({"file": array}, WANT)),
        ("output", GoldenEvent(WANT, {"file": array})),
    ):
        with pytest.raises(FormatError) as caught:
            write_golden(path, event)
        assert str(caught.value) == f"golden.npz cannot hold {side} file: {why}"
    assert not any(tmp_path.iterdir())


ONE, TWO = np.zeros(1), np.zeros(2)


@pytest.mark.parametrize(
    ("inputs", "outputs", "sequence", "decoupled"),
    [
        ({"x": ONE}, {"y": ONE}, False, False),
        ({"input/x:0": ONE}, {"/head/Relu_output_0": ONE}, False, False),
        ({"0/x": ONE, "1/x": TWO}, {"0/y": ONE, "1/y": TWO}, True, False),
        ({"0/input/x:0": ONE, "1/input/x:0": TWO}, {"0//y": ONE, "1//y": TWO}, True, False),
        ({"input/x:0": ONE}, {"0//head/y": ONE, "11//head/y": TWO}, False, True),
        ({"0/x": ONE, "x": ONE}, {"y": ONE}, False, False),
    ],
)
def test_only_numbers_before_all_names_make_requests_or_responses(
    inputs, outputs, sequence, decoupled
):
    event = GoldenEvent(inputs, outputs)
    assert (event.is_sequence, event.is_decoupled) == (sequence, decoupled)


def test_only_the_number_is_taken_from_the_name_of_a_tensor():
    assert tensor_names({"input/x:0", "0/x"}) == {"input/x:0": "input/x:0", "0/x": "0/x"}
    assert tensor_names({"0/input/x:0", "1/x"}) == {"0/input/x:0": "input/x:0", "1/x": "x"}
    assert one_by_one({"1/a/b": TWO, "0/a/b": ONE}) == [{"a/b": ONE}, {"a/b": TWO}]


def labels(*planes: list[int]) -> dict[str, np.ndarray]:
    return {f"i_{n}": np.array(each, np.int32) for n, each in zip("uv", planes, strict=True)}


def test_clusters_are_compared_by_their_hits_over_all_planes_and_not_by_their_numbers():
    expected, clusters = labels([0, 0, -1], [1, 0]), ("i_u", "i_v")
    assert disagreements(expected, labels([7, 7, -1], [2, 7]), clusters) == []
    assert disagreements(expected, labels([7, 7, -1], [2, 7])) != [], "numbers of another kind"
    for other in (
        labels([7, 7, -1], [2, 2]),  # the one of v is another
        labels([0, 0, 0], [1, 0]),  # one more
        labels([0, 0, -1], [0, 0]),  # two in one
        labels([-1, -1, 0], [1, -1]),  # none in one
    ):
        assert disagreements(expected, other, clusters) == [
            "outputs i_u, i_v cluster the hits differently"
        ]
    assert disagreements(labels([], []), labels([], []), clusters) == []


def test_a_golden_file_gives_back_what_was_written(tmp_path):
    paths = [tmp_path / "golden.npz", tmp_path / "again.npz"]
    for path in paths:
        write_golden(path, GoldenEvent({"a": np.arange(3)}, WANT))
    found = read_golden(paths[0])
    assert found.inputs["a"].tolist() == [0, 1, 2]
    assert (found.outputs["x"] == WANT["x"]).all()
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_golden_file_without_a_number_is_read():
    found = read_golden(DATA / "golden-format-1.npz")
    assert (len(found.inputs), len(found.outputs)) == (10, 8)
    assert difference(found, found.outputs) is None


def test_a_golden_file_of_a_newer_format_is_refused_in_one_line(tmp_path):
    path = tmp_path / "golden.npz"
    np.savez(path, format=np.int64(2), **{"event/a": np.zeros(1)})
    with pytest.raises(NewerFormatError) as caught:
        read_golden(path)
    assert str(caught.value) == (
        f"{path}: format 2, but this release of the kit reads format 1: "
        "use one that is as new as what wrote it"
    )


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04cut", b"\x93NUMPY"])
def test_a_file_that_is_no_golden_event_is_named(tmp_path, content):
    path = tmp_path / "golden.npz"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"golden\.npz: not a reference event"):
        read_golden(path)


@pytest.mark.filterwarnings("ignore")
def test_whatever_is_damaged_in_a_golden_file_it_is_read_or_named(tmp_path):
    content, chance = (DATA / "golden-format-1.npz").read_bytes(), random.Random(1)
    path, refused = tmp_path / "golden.npz", 0
    with zipfile.ZipFile(DATA / "golden-format-1.npz") as file:
        places = [*range(30), *range(file.start_dir, file.start_dir + 46)]
    places += [*range(len(content) - 22, len(content)), *chance.sample(range(len(content)), 40)]
    for place in places:  # the first file's two headers, the end of the list, and anywhere
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            read_golden(path)
        except FormatError:
            refused += 1
    assert refused > 66


@pytest.mark.parametrize("shape", ["(5000", "(5000,), 5", "(10**99,)", "(99999999999999,)"])
def test_an_array_that_cannot_be_is_named(tmp_path, shape):
    path, header = tmp_path / "golden.npz", b"{'descr': '<f4', 'fortran_order': False, 'shape': "
    header = (header + shape.encode() + b"}").ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("input/x.npy", b"\x93NUMPY\1\0v\0" + header + bytes(20_000))
    with pytest.raises(FormatError, match=r"golden\.npz: not a reference event"):
        read_golden(path)


def test_a_golden_event_that_is_missing_or_lacks_outputs_or_holds_objects_is_refused(tmp_path):
    path = tmp_path / "golden.npz"
    with pytest.raises(FormatError, match="no such file"):
        read_golden(path)
    np.savez(path, **{"input/a": np.zeros(3)})
    with pytest.raises(FormatError, match="lacks inputs or outputs"):
        read_golden(path)
    np.savez(path, **{"input/a": np.array([{}]), "output/a": np.zeros(3)}, allow_pickle=True)
    with pytest.raises(FormatError, match="not a reference event"):
        read_golden(path)


def test_the_card_beside_it_says_which_outputs_are_clusters(tmp_path):
    shutil.copyfile(DATA / "golden-format-1.npz", tmp_path / "golden.npz")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(FormatError, match=r"model\.json: not a model card"):
        read_golden(tmp_path / "golden.npz")
