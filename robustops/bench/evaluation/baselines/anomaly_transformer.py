"""Anomaly Transformer (Xu et al., ICLR 2022), small: width 32, two layers of two heads.

pyod has one of full width, for one long series: it would draw windows across the borders of our many short
runs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustops.bench.evaluation.baselines.windows import WIDTH, WINDOW, WindowDetector, adam, update

_HEADS, _LAYERS, _LAMBDA = 2, 2, 3.0
_Associations = list[tuple[Tensor, Tensor]]


class _Attention(nn.Module):
    """Self-attention (series association) beside a Gaussian of the distance in steps (prior association),
    whose width each step and head sets for itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.width = nn.Linear(WIDTH, _HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)
        place = torch.arange(WINDOW, dtype=torch.float32)
        self.register_buffer("distance", (place[:, None] - place).abs(), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, L, W). Returns the output (B, L, W), series and prior association (B, H, L, L)."""
        batch, length, _ = x.shape
        parts = self.project(x).view(batch, length, 3, _HEADS, WIDTH // _HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        series = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), dim=-1)
        sigma = functional.softplus(self.width(x)).transpose(1, 2)[..., None] + 1e-3
        distance = self.get_buffer("distance")[:length, :length]
        prior = torch.softmax(-(distance**2) / (2 * sigma**2), dim=-1)
        mixed = (series @ value).transpose(1, 2).reshape(batch, length, WIDTH)
        return self.out(mixed), series, prior


class _Network(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.embed = nn.Linear(columns, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, WIDTH))
        self.attention = nn.ModuleList(_Attention() for _ in range(_LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * _LAYERS))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(_LAYERS)
        )
        self.out = nn.Linear(WIDTH, columns)

    def forward(self, x: Tensor) -> tuple[Tensor, _Associations]:
        """x: (B, L, columns). Returns the reconstruction and (series, prior) of each layer."""
        hidden, found = self.embed(x) + self.places, []
        for layer in range(_LAYERS):
            mixed, series, prior = self.attention[layer](hidden)
            hidden = self.norms[2 * layer](hidden + mixed)
            hidden = self.norms[2 * layer + 1](hidden + self.feed[layer](hidden))
            found.append((series, prior))
        return self.out(hidden), found


def discrepancy(associations: _Associations) -> Tensor:
    """(B, L) symmetric Kullback-Leibler divergence of prior and series association, mean over layers and
    heads: equation 3 of the paper.
    """
    parts = []
    for series, prior in associations:
        log_ratio = (prior + 1e-8).log() - (series + 1e-8).log()
        parts.append(((prior - series) * log_ratio).sum(-1).mean(1))
    return torch.stack(parts).mean(0)


class AnomalyTransformer(WindowDetector):
    """Reconstruction error, weighted by how much a step attends to its neighbours alone."""

    name = "anomaly_transformer"

    def _build(self, columns: int) -> None:
        self._network = _Network(columns)
        self._optimiser = adam(self._network)

    def _train(self, batch: Tensor, epoch: int) -> None:
        rebuilt, found = self._network(batch)
        error = functional.mse_loss(rebuilt, batch)
        # Minimax: the prior follows the series, then the series leaves the prior.
        near = discrepancy([(series.detach(), prior) for series, prior in found]).mean()
        far = discrepancy([(series, prior.detach()) for series, prior in found]).mean()
        update(self._optimiser, error + _LAMBDA * near - _LAMBDA * far)

    def _errors(self, windows: Tensor) -> Tensor:
        rebuilt, found = self._network(windows)
        weight = torch.softmax(-discrepancy(found), dim=-1)
        errors: Tensor = ((rebuilt - windows)[:, -1] ** 2).mean(-1)
        return WINDOW * weight[:, -1] * errors
