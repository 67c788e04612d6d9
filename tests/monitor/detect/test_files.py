import pytest

from robustops.errors import ConfigError
from robustops.monitor.detect.files import read_versioned, write_versioned


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path) -> None:
    path = tmp_path / "folder" / "a.json"
    write_versioned(path, "thing", 1, {"values": [1.5]})
    write_versioned(path, "thing", 1, {"values": [2.5]})
    assert read_versioned(path, "thing", 1)["values"] == [2.5]
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_other_files_are_refused_in_words(tmp_path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ConfigError, match="cannot read thing"):
        read_versioned(path, "thing", 1)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_versioned(path, "thing", 1)
    write_versioned(path, "thing", 2, {})
    with pytest.raises(ConfigError, match="version 2, this program reads 1"):
        read_versioned(path, "thing", 1)
    with pytest.raises(ConfigError, match="is no other"):
        read_versioned(path, "other", 2)


def test_a_failed_write_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "a.json"
    write_versioned(path, "thing", 1, {"values": 1})
    with pytest.raises(TypeError):
        write_versioned(path, "thing", 1, {"values": object()})
    assert read_versioned(path, "thing", 1)["values"] == 1
    assert len(list(tmp_path.iterdir())) == 1
