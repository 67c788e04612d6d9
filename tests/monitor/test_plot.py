import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.judge import judge
from robustops.monitor.plot import MOST, draw, shown
from tests.monitor.runs import healthy_panel, step_to

pyplot = pytest.importorskip("matplotlib.pyplot")


def test_columns_of_the_evidence_come_first():
    panel = healthy_panel(40, trunc_frac=step_to(40, 20, 0.0, 1.0))
    names = shown(panel, judge(panel))
    assert names[0] == "trunc_frac" and len(names) == len(set(names)) <= MOST
    assert "success_mean" not in names  # never observed


def test_the_picture_marks_onset_evidence_and_bound(tmp_path, monkeypatch):
    panel = healthy_panel(40, kl_ref_k3=step_to(40, 20, 0.01, 20.0), grad_norm=np.full(40, np.nan))
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    verdict = judge(panel)
    draw(panel, verdict, tmp_path / "run.png", "run")
    monkeypatch.undo()
    (figure,) = kept
    first = figure.axes[0]
    assert first.get_title(loc="left") == "kl_ref_k3" and first.get_yscale() == "log"
    upright = [line.get_xdata() for line in first.get_lines() if list(line.get_ydata()) == [0, 1]]
    assert [list(places) for places in upright] == [[verdict.onset, verdict.onset]]
    rings = [line for line in first.get_lines() if line.get_marker() == "o"]
    assert {(ring.get_xdata()[0], ring.get_ydata()[0]) for ring in rings} == {(21, 20.0)}
    bounds = [line.get_ydata()[0] for line in first.get_lines() if len(set(line.get_ydata())) == 1]
    assert 10.0 in bounds
    assert figure.get_suptitle() == "run - anomalous from step 21: optimisation / kl_explosion"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    pyplot.close(figure)


def test_a_healthy_run_and_one_of_a_single_row_can_be_drawn(tmp_path):
    for rows in (1, 40):
        panel = healthy_panel(rows)
        draw(panel, judge(panel), tmp_path / "run.svg")
        assert (tmp_path / "run.svg").read_text().startswith("<?xml")


def test_where_it_cannot_be_written_is_said_before_it_is_drawn(tmp_path):
    panel = healthy_panel(2)
    with pytest.raises(ConfigError, match=r"write a file that ends in \.png, \.svg, \.pdf"):
        draw(panel, judge(panel), tmp_path / "run.txt")
    with pytest.raises(ConfigError, match="there is no folder"):
        draw(panel, judge(panel), tmp_path / "nix" / "run.png")
