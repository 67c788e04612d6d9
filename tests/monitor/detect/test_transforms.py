import numpy as np
import pytest

from robustops.monitor import schema
from robustops.monitor.detect.transforms import transform_of

EXAMPLES = {
    "log": [0.0, 1e-6, 0.3, 25.0],
    "signed": [-2.0, -1e-4, 0.0, 0.01, 3.0],
    "logit": [0.0, 1 / 64, 0.5, 1.0],
    "atanh": [-0.99, 0.0, 0.5, 0.999],
    "identity": [-3.0, 0.0, 41.0],
}


@pytest.mark.parametrize("column", schema.names())
def test_a_transform_rises_and_has_an_inverse(column: str) -> None:
    transform = transform_of(column)
    values = np.array(EXAMPLES[transform.name])
    even = transform.forward(values)
    assert (np.diff(even) > 0).all()
    assert np.allclose(transform.back(even), values, rtol=1e-6, atol=1e-8)
    assert np.isnan(transform.forward(np.array([np.nan]))).all()


def test_scales_are_those_of_the_unit() -> None:
    assert transform_of("kl_ref_k3").name == transform_of("grad_norm").name == "log"
    assert transform_of("kl_ref_k1").name == "signed"
    assert transform_of("trunc_frac").name == "logit"
    assert transform_of("reward_success_corr").name == "atanh"
    assert transform_of("reward_mean").name == transform_of("rewards.style.mean").name == "identity"


def test_a_perfect_correlation_and_a_wrong_fraction_are_finite() -> None:
    assert np.isfinite(transform_of("adv_reward_corr").forward(np.array([-1.0, 1.0]))).all()
    assert np.isfinite(transform_of("trunc_frac").forward(np.array([-0.5, 2.0]))).all()
