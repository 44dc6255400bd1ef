#!/usr/bin/env bash
# Run all tests: style, types, the bare wheel, and the wheel with torch and transformers.
#
#   bash scripts/test.sh              all lanes of tox.ini
#   bash scripts/test.sh -e lint      one of them
#
# PYTHON names the interpreter (python3), TORCH_SPEC the torch to install
# (torch==2.13.0).  tox is installed into .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "test.sh: $("$python" --version) is too old; name 3.11 or newer: PYTHON=..." >&2
    exit 2
fi
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
if ! .venv/bin/python -c 'import tox' 2>/dev/null; then
    echo "test.sh: installing tox into .venv" >&2
    .venv/bin/python -m pip install -qq --disable-pip-version-check 'tox>=4.20'
fi
exec .venv/bin/python -m tox run "$@"
