"""TranAD (Tuli et al., VLDB 2022), small: one transformer encoder of width 32 and two decoders.

The window's last row is reconstructed twice, the second time with the first error as focus; the decoders
learn against each other with weights that shift from the first to the second reconstruction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustops.bench.evaluation.baselines.windows import WIDTH, WINDOW, WindowDetector, adam, update

#: Base of the weight of the first reconstruction, base ** -epoch.
_BASE = 1.2


class _Encoder(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.embed = nn.Linear(2 * columns, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)

    def forward(self, window: Tensor, focus: Tensor) -> Tensor:
        """window: (B, L, columns); focus: (B, columns). Returns (B, W) at the last row."""
        spread = focus[:, None].expand_as(window)
        encoded: Tensor = self.layer(self.embed(torch.cat([window, spread], dim=-1)) + self.places)
        return encoded[:, -1]


def _decoder(columns: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, columns))


class TranAD(WindowDetector):
    """Mean error of the first reconstruction and of the focused one."""

    name = "tranad"

    def _build(self, columns: int) -> None:
        self._encoder = _Encoder(columns)
        self._first, self._second = _decoder(columns), _decoder(columns)
        self._main = adam(self._encoder, self._first)
        self._adversary = adam(self._second)

    def _train(self, batch: Tensor, epoch: int) -> None:
        weight = _BASE**-epoch
        first, _, focused = self._error_parts(batch)
        update(self._main, (weight * first + (1 - weight) * focused).mean())
        _, second, focused = self._error_parts(batch)
        update(self._adversary, (weight * second - (1 - weight) * focused).mean())

    def _errors(self, windows: Tensor) -> Tensor:
        first, _, focused = self._error_parts(windows)
        return (first + focused) / 2

    def _error_parts(self, windows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B,) squared errors at the last row: of both decoders without focus, and of the second with it."""
        last = windows[:, -1]
        hidden = self._encoder(windows, torch.zeros_like(last))
        first = (self._first(hidden) - last) ** 2
        second = (self._second(hidden) - last) ** 2
        # The adversary raises the focused error: what it gains is cut, or it would never stop growing.
        focused = (self._second(self._encoder(windows, first.detach())) - last) ** 2
        return first.mean(-1), second.mean(-1), focused.clamp(max=100.0).mean(-1)
