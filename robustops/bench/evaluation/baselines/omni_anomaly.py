"""OmniAnomaly (Su et al., KDD 2019), small: a recurrent variational autoencoder with connected latents.

GRU of width 32; latent of 8, each conditioned on the one before; two planar flows on the posterior; a
linear Gaussian transition as prior. A step's score is the negative log-likelihood of its row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustops.bench.evaluation.baselines.windows import WIDTH, WindowDetector, adam, update

_LATENT, _FLOWS = 8, 2
_LOG_2PI = math.log(2 * math.pi)


def log_normal(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of independent normals, summed over the last axis."""
    return -(0.5 * ((x - mean) * (-log_std).exp()) ** 2 + log_std + 0.5 * _LOG_2PI).sum(-1)


class PlanarFlow(nn.Module):
    """z + u tanh(w z + b), with u bent so that it can be inverted (Rezende and Mohamed 2015)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.u = nn.Parameter(0.1 * torch.randn(size))
        self.w = nn.Parameter(0.1 * torch.randn(size))
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z: (..., size). Returns the image and the (...,) log-determinant of the map."""
        product = self.w @ self.u
        bent = self.u + (functional.softplus(product) - 1 - product) * self.w / (self.w @ self.w + 1e-8)
        slope = torch.tanh(z @ self.w + self.b)
        return z + bent * slope[..., None], torch.log1p((1 - slope**2) * (self.w @ bent)).nan_to_num()


class _Network(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.encode = nn.GRU(columns, WIDTH, batch_first=True)
        self.posterior = nn.Linear(WIDTH + _LATENT, 2 * _LATENT)
        self.flows = nn.ModuleList(PlanarFlow(_LATENT) for _ in range(_FLOWS))
        self.transition = nn.Linear(_LATENT, 2 * _LATENT)
        self.decode = nn.GRU(_LATENT, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, 2 * columns)

    def forward(self, x: Tensor, noise: bool) -> tuple[Tensor, Tensor]:
        """x: (B, L, columns). Returns (B, L) log-likelihood of each row and divergence from the prior."""
        hidden, _ = self.encode(x)
        last = x.new_zeros(len(x), _LATENT)
        latents, divergence = [], []
        for step in range(x.shape[1]):
            mean, spread = self.posterior(torch.cat([hidden[:, step], last], dim=-1)).chunk(2, dim=-1)
            spread = spread.clamp(-5.0, 2.0)
            z = mean + spread.exp() * torch.randn_like(mean) if noise else mean
            log_q = log_normal(z, mean, spread)
            for flow in self.flows:
                z, change = flow(z)
                log_q = log_q - change
            prior_mean, prior_spread = self.transition(last).chunk(2, dim=-1)
            divergence.append(log_q - log_normal(z, prior_mean, prior_spread.clamp(-5.0, 2.0)))
            latents.append(z)
            last = z
        decoded, _ = self.decode(torch.stack(latents, dim=1))
        mean, spread = self.out(decoded).chunk(2, dim=-1)
        return log_normal(x, mean, spread.clamp(-3.0, 3.0)), torch.stack(divergence, dim=1)


class OmniAnomaly(WindowDetector):
    """Negative log-likelihood of a row a column, with the latents at their mean."""

    name = "omni_anomaly"

    def _build(self, columns: int) -> None:
        self._network = _Network(columns)
        self._optimiser = adam(self._network)

    def _train(self, batch: Tensor, epoch: int) -> None:
        likelihood, divergence = self._network(batch, noise=True)
        update(self._optimiser, (divergence - likelihood).mean())

    def _errors(self, windows: Tensor) -> Tensor:
        likelihood: Tensor = self._network(windows, noise=False)[0]
        return -likelihood[:, -1] / windows.shape[-1]
