import json
import math
import os

import pytest

from robustops import files
from robustops.errors import ConfigError


def test_json_goes_out_and_comes_back_with_nan_and_infinity(tmp_path):
    value = {"a": [1, 2.5, None], "é": "ü", "nan": math.nan, "low": -math.inf}
    path = files.atomic_write_json(tmp_path / "new" / "folder" / "x.json", value)
    back = files.read_json(path)
    assert math.isnan(back.pop("nan"))
    del value["nan"]
    assert back == value
    assert os.listdir(path.parent) == ["x.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = files.atomic_write_text(tmp_path / "x.txt", "old")

    def broken(*_):
        raise OSError("disk is full")

    monkeypatch.setattr(files.os, "fsync", broken)
    with pytest.raises(OSError, match="disk is full"):
        files.atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_the_new_name_appears_only_after_the_data_is_on_disk(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (order.append("fsync"), fsync(handle)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    files.atomic_write_bytes(path, b"\x00\xff")
    assert order[:2] == ["fsync", "replace"]
    assert path.read_bytes() == b"\x00\xff"


def test_a_value_that_is_no_json_touches_nothing(tmp_path):
    path = files.atomic_write_json(tmp_path / "x.json", 1)
    with pytest.raises(TypeError):
        files.atomic_write_json(path, object())
    assert files.read_json(path) == 1


def test_mode_of_the_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = files.atomic_write_text(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_append_line_mends_a_line_that_a_crash_cut_short(tmp_path):
    path = tmp_path / "log" / "telemetry.jsonl"
    files.append_line(path, '{"step": 1}')
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    files.append_line(path, '{"step": 2}')
    lines = path.read_text().splitlines()
    assert lines == ['{"step": 1}', '{"step": 2, "lo', '{"step": 2}']
    assert json.loads(lines[2]) == {"step": 2}
    with pytest.raises(ValueError, match="one line"):
        files.append_line(path, "a\nb")


def test_read_json_says_which_file_and_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match=r"summary .*nope\.json does not exist"):
        files.read_json(tmp_path / "nope.json", what="summary")
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": 1,\n oops}')
    with pytest.raises(ConfigError, match=r"broken\.json is not valid JSON .*line 2 column 2"):
        files.read_json(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid JSON"):
        files.read_json(broken)
    with pytest.raises(ConfigError, match="cannot be read"):
        files.read_json(tmp_path)
