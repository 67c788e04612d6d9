"""Sequence models of healthy telemetry: windows of ten steps, trained on the healthy profile alone.

A step's score is the error of the model at the last row of the window that ends there, so that it depends on
no later row; a window that would begin before the run repeats its first row. A run's score is the mean of
the highest fifth of its step scores: the paper aggregates step scores and does not say how.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from robustops.bench.evaluation.baselines.features import observed_columns
from robustops.monitor.panel import Panel, Series
from robustops.seeding import child_seed

WINDOW, TOP = 10, 0.2
WIDTH = 32
#: Standardised values are cut here, or one exploded column would be the whole error.
_CLIP = 10.0
_BATCH, _UPDATES, _RATE = 256, 160, 3e-3


def top_mean(scores: Series, share: float = TOP) -> float:
    """Mean of the highest share of the finite scores (one at least); -inf without any."""
    finite = np.sort(scores[np.isfinite(scores)])
    count = max(1, math.ceil(share * len(finite)))
    return float(finite[-count:].mean()) if len(finite) else float("-inf")


class WindowDetector:
    """Base of the models: standardisation, windows, the training loop and the scores."""

    name = ""
    updates = _UPDATES

    def __init__(self, seed: int = 0) -> None:
        self.seed = child_seed(seed, self.name)
        #: The newest run and its step scores: they are asked for once more, for the run's own score.
        self._last: tuple[Panel, Series] | None = None

    def fit(self, profile: Sequence[Panel]) -> None:
        self._columns, self._last = observed_columns(profile), None
        rows = np.concatenate([panel.matrix(self._columns) for panel in profile])
        rows = np.where(np.isfinite(rows), rows, np.nan)
        self._mean = np.nanmean(rows, axis=0)
        deviation = np.nanstd(rows, axis=0)
        self._scale = np.where(deviation > 1e-12, deviation, 1.0)
        windows = torch.cat([self._windows(panel) for panel in profile])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._build(len(self._columns))
            # So many updates whatever the number of windows: 12 epochs of 80 runs of 40 steps.
            for epoch in range(math.ceil(self.updates * _BATCH / len(windows))):
                for picked in torch.split(torch.randperm(len(windows)), _BATCH):
                    self._train(windows[picked], epoch)

    def score(self, panel: Panel) -> float:
        return top_mean(self.step_scores(panel))

    def step_scores(self, panel: Panel) -> Series:
        if self._last is None or self._last[0] is not panel:
            self._last = panel, self._step_scores(panel)
        return self._last[1]

    def _step_scores(self, panel: Panel) -> Series:
        if not any(panel.observed(name) for name in self._columns):
            return np.full(len(panel), -np.inf)
        with torch.no_grad():
            errors = self._errors(self._windows(panel))
        return np.asarray(errors.double().numpy(), dtype=np.float64)

    def _windows(self, panel: Panel) -> Tensor:
        """(T, WINDOW, columns) standardised windows, one ending at each step. What a step does not observe
        is the healthy mean.
        """
        # An infinite value is as far out as one can be.
        values = (np.clip(panel.matrix(self._columns), -1e12, 1e12) - self._mean) / self._scale
        values = np.nan_to_num(np.clip(values, -_CLIP, _CLIP), nan=0.0)
        padded = np.concatenate([np.repeat(values[:1], WINDOW - 1, axis=0), values])
        views = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=0)
        return torch.tensor(views.transpose(0, 2, 1).copy(), dtype=torch.float32)

    def _build(self, columns: int) -> None:
        """Make network and optimisers."""
        raise NotImplementedError

    def _train(self, batch: Tensor, epoch: int) -> None:
        """One update on (B, WINDOW, columns)."""
        raise NotImplementedError

    def _errors(self, windows: Tensor) -> Tensor:
        """(B,) errors at the last row of each window."""
        raise NotImplementedError


def adam(*modules: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of all models."""
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=_RATE)


def update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down a loss, with the gradient's norm cut at 1."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], 1.0)
    optimiser.step()
