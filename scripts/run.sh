#!/usr/bin/env bash
# The quick start: installs what is needed into .venv, then trains and evaluates the embedded model.
#
#     scripts/run.sh [overrides]        e.g. scripts/run.sh domain=calendar
#
# Running it again installs nothing and starts a new run. PYTHON and PIP_EXTRA: see scripts/dev.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/dev" setup run
cd "$here/.."
exec .venv/bin/robustops train experiment=quickstart "$@"
