"""A fitted monitor of a small data set."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")

from robustops.bench.evaluation.fitting import fit_on
from robustops.bench.evaluation.protocol import partitions
from robustops.bench.evaluation.runs import Runs
from robustops.errors import DatasetError
from tests.bench.evaluation.small import small_dataset


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs.read(small_dataset(tmp_path_factory.mktemp("fitting")))


@pytest.mark.slow
def test_visible_faults_are_graver_and_named_and_it_can_be_sent(runs):
    (partition,) = partitions(runs.dataset.splits.to_pylist(), runs.labels, 1)
    fold = partition.folds[0]
    found = pickle.loads(pickle.dumps(fit_on(runs, partition, fold.train)))
    easy = [name for name in fold.test if runs.labels[name].difficulty == "easy"]
    severities = [found.severity(runs.panel(name, 40, "P+I")) for name in easy]
    healthy = [found.severity(runs.panel(name, 40, "P+I")) for name in fold.healthy]
    assert severities and np.median(healthy) < min(severities)
    verdicts = [found.judge(runs.panel(name, 40, "P+I"), growing=True) for name in easy]
    assert np.mean([runs.labels[n].fault in v.labels for n, v in zip(easy, verdicts, strict=True)]) > 0.5
    assert found.level == pytest.approx(1 / (1 + len(partition.calibration)))


def test_without_faulty_runs_it_says_how_to_make_them(runs):
    (partition,) = partitions(runs.dataset.splits.to_pylist(), runs.labels, 1)
    with pytest.raises(DatasetError, match="stage=campaign"):
        fit_on(runs, partition, ())
