import math

import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers.log import Source, number, row_of, step_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (0.25, 0.25),
        ("0.25", 0.25),
        (" -1e-05 ", -1e-5),
        ("np.float64(-0.5)", -0.5),
        ("numpy.float32(2)", 2.0),
        ("tensor(0.75, device='cuda:0')", 0.75),
        ("tensor(1.)", 1.0),
        ("inf", math.inf),
        (None, None),
        (True, None),
        ("5/3766", None),
        ("18h 37m", None),
        ([1.0], None),
    ],
)
def test_numbers_are_read_from_what_trainers_print(value: object, expected: float | None):
    assert number(value) == expected


def test_nan_stays_nan_and_null_is_nothing():
    assert math.isnan(number("nan") or 0)
    row = row_of({"kl": float("nan"), "reward": None, "loss": 0.5, "name": "x", "global_step": 7})
    assert (row.step, set(row.values)) == (7, {"kl", "loss"})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"step": 3}, 3),
        ({"step": 3.0}, 3),
        ({"Step": "4"}, 4),
        ({"global_step/max_steps": "5/3766"}, 5),
        ({"_step": 90, "train/global_step": 9}, 9),
        ({"_step": 90}, 90),
        ({"step": 2.5}, None),
        ({"step": float("inf")}, None),
        ({"step": "first"}, None),
        ({}, None),
    ],
)
def test_steps(body: dict[str, object], expected: int | None):
    assert step_of(body) == expected


def test_lines_end_at_carriage_returns_too_as_progress_bars_use_them(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\r\n\n  2%|# | 1/9\rtwo\xff\n")
    assert list(Source(path).lines()) == [(1, "one"), (3, "  2%|# | 1/9"), (4, "two\ufffd")]


def test_an_unreadable_source_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*; name a readable log"):
        _ = Source(tmp_path / "nix").text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_in_the_encodings_that_shells_write(encoding, tmp_path):
    path = tmp_path / "log"
    path.write_bytes("zwölf\n".encode(encoding))
    assert Source(path).text == "zwölf\n"


def test_a_binary_file_has_no_text(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"reward\0" * 10)
    assert Source(path).text == ""
