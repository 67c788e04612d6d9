#!/usr/bin/env bash
# Installs what the tests need into .venv (vLLM for CPU too), then linters, type checker and all tests.
#
#     scripts/test.sh [pytest arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/dev" setup dev
"$here/dev" lint
"$here/dev" test "$@"
