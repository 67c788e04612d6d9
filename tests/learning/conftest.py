from __future__ import annotations

import pytest

from robustops.learning.pipeline import run_training
from tests.learning.small_run import CONFIG, memorised_policy, train_settings


@pytest.fixture(scope="session")
def base_model(tmp_path_factory):
    """A folder with a model that half knows three training cases of itsm; see `small_run`."""
    folder = tmp_path_factory.mktemp("model")
    memorised_policy().save(folder)
    return folder


@pytest.fixture(scope="session")
def finished(base_model, tmp_path_factory):
    """The folder of a run that nothing disturbed, and what `run_training` returned."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run_training(train_settings(base_model), folder, CONFIG)
