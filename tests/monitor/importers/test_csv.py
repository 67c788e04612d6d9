import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers import load


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_delimited_columns_with_cells_that_were_not_observed(delimiter, tmp_path):
    path = tmp_path / "log.csv"
    rows = [
        ("step", "reward", "kl"),
        ("1", "0.5", "0.01"),
        ("2", "", "0.02"),
        ("3", "0.7", "nan"),
        ("4", "0"),
    ]
    path.write_text("\n".join(delimiter.join(row) for row in rows))
    found = load(path)
    assert (found.format, found.names, found.panel.steps.tolist()) == ("csv", "trl", [1, 2, 3])
    np.testing.assert_array_equal(found.panel["reward_mean"], [0.5, np.nan, 0.7])
    assert found.panel["nan_count"][2] == 1
    assert found.notes == ("line 5, the last, is torn or still being written: passed over",)


def test_quoted_cells_and_a_bad_line(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text('step,reward,kl,text\n1,0.5,0.1,"a, b"\n2,0.5\n3,0.5,0.1,c\n')
    found = load(path)
    assert found.panel.steps.tolist() == [1, 3]
    assert "1 lines have not the header's 4 cells, the first is line 3" in found.notes[0]


def test_the_rows_of_lightnings_logger_are_joined_by_step(tmp_path):
    header = "epoch,step,grpo/reward_mean,grpo/entropy,sft/entropy\n"
    text = header + "0,1,,,0.9\n0,1,0.5,,\n0,1,,1.5,\n0,2,0.6,1.4,\n"
    (tmp_path / "metrics.csv").write_text(text)
    found = load(tmp_path)
    assert (found.format, found.names, found.panel.steps.tolist()) == ("csv", "ours", [1, 2])
    assert found.panel["entropy"].tolist() == [1.5, 1.4] and "sft/entropy" in found.unmapped


@pytest.mark.parametrize(
    "text",
    [
        "Step  loss  reward_mean  clipped_ratio\n1  0  0.5  1.0\n...\n10  0  0.5  1.0\n",
        "| Step | loss | reward_mean | clipped_ratio |\n|---|---|---|---|\n| 1 | 0 | 0.5 | 1.0 |\n"
        "| ... | ... | ... | ... |\n| 10 | 0 | 0.5 | 1.0 |\n",
    ],
    ids=["blanks", "bars"],
)
def test_tables_with_elided_rows(text, tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(text)
    found = load(path)
    assert found.panel.steps.tolist() == [1, 10] and found.panel["trunc_frac"].tolist() == [1.0, 1.0]
    assert found.notes[0] == "rows are left out of the table in 1 places: nothing is filled in"


def test_without_a_column_of_steps_rows_are_numbered(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("reward,kl\n0.5,0.1\n0.6,0.1\n")
    found = load(path)
    assert found.panel.steps.tolist() == [1, 2]
    assert any("no column names the step" in note for note in found.notes)


@pytest.mark.parametrize("text", ["", "one line\n", "a,b\n", "some words here\nother words there\n"])
def test_what_is_no_table_is_no_log(text, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no log that is known"):
        load(path)
