"""Scales on which a column's healthy values vary evenly: what changes by factors, on a logarithm.

    log      positive quantities that change by factors: k3 KL, gradient, norm, ratio, loss of a value head
    signed   the same of either sign: k1 KL, KL to the old policy
    logit    fractions
    atanh    correlations
    identity all others

A transform is increasing and has an inverse, so that bounds can be told in the column's own unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from robustops.monitor import schema
from robustops.monitor.panel import Series

#: Added to a fraction and to its rest: about half an episode of 64, so that 0 and 1 are finite.
FRACTION = 0.01
#: Below this a quantity on a logarithm is as good as 0. Sampler gaps of float32 are about 1e-7.
LEAST = 1e-9
#: Where a signed logarithm changes from linear to logarithmic, in nats a token.
BEND = 1e-3
#: A correlation nearer to 1 than this is 1.
PERFECT = 1e-6
_SIGNED = {"kl_ref_k1", "kl_old"}
_LOG = {
    "kl_ref_k3",
    "grad_norm",
    "update_norm_rel",
    "samp_logp_absdiff_mean",
    "samp_logp_absdiff_max",
    "ratio_mean",
    "ratio_max",
    "ratio_p99",
    "is_ratio_mean",
    "is_ratio_min",
    "is_ratio_max",
    "vf_loss",
    "lr",
    "kl_coef",
}


@dataclass(frozen=True)
class Transform:
    """name; forward: values to the even scale, back: the inverse; floor: on the even scale, the deviation
    below which healthy values are not expected to stay, however few of them have been seen.
    """

    name: str
    forward: Callable[[Series], Series]
    back: Callable[[Series], Series]
    floor: float


def _logit(values: Series) -> Series:
    inside = np.clip(values, 0.0, 1.0)
    return np.log((inside + FRACTION) / (1.0 - inside + FRACTION))


def _fraction(values: Series) -> Series:
    odds = np.exp(values)
    return np.clip((odds * (1.0 + FRACTION) - FRACTION) / (1.0 + odds), 0.0, 1.0)


IDENTITY = Transform("identity", lambda values: values, lambda values: values, 1e-3)
LOG = Transform("log", lambda v: np.log(np.maximum(v, 0.0) + LEAST), lambda v: np.exp(v) - LEAST, 2e-2)
SIGNED = Transform("signed", lambda v: np.arcsinh(v / BEND), lambda v: np.sinh(v) * BEND, 5e-2)
#: The floor is a quarter of what a single episode of 64 changes at 0: one is a note, several are news.
LOGIT = Transform("logit", _logit, _fraction, 0.25)
ATANH = Transform(
    "atanh", lambda v: np.arctanh(np.clip(v, PERFECT - 1.0, 1.0 - PERFECT)), lambda v: np.tanh(v), 2e-2
)
_BY_UNIT = {"frac": LOGIT, "corr": ATANH}


@cache
def transform_of(column: str) -> Transform:
    """Of a column of the schema; identity for any other name (further reward parts)."""
    if column in _SIGNED:
        return SIGNED
    if column in _LOG:
        return LOG
    known = column in schema.names()
    return _BY_UNIT.get(schema.quantity(column).unit, IDENTITY) if known else IDENTITY
