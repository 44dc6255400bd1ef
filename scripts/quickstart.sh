#!/usr/bin/env bash
# Install ragen-bench into .venv, play the board "smoke" with three agents, and print
# their table.  Run it again: what is installed or played already is not done twice.
#
#   bash scripts/quickstart.sh
#
# PYTHON names the interpreter (python3), TORCH_SPEC the torch to install
# (torch==2.13.0).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "quickstart: $("$python" --version) is too old; name 3.11 or newer: PYTHON=..." >&2
    exit 2
fi
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
install() {
    echo "quickstart: installing $* into .venv" >&2
    .venv/bin/python -m pip install -qq --disable-pip-version-check "$@"
}
has() {
    .venv/bin/python -P -c "import $1" 2>/dev/null
}
# Torch comes first and exactly, so that a CPU build found by pip is taken.
has torch || install "${TORCH_SPEC:-torch==2.13.0}"
has 'ragen_bench, transformers' || install --editable '.[hf]'

bench=.venv/bin/ragen-bench
# Each run prints a table of its own; one table over all three is enough here.
"$bench" run --board smoke --agent random --out runs/smoke-random >/dev/null
"$bench" run --board smoke --agent oracle --out runs/smoke-oracle >/dev/null
"$bench" run --board smoke --model tiny --out runs/smoke-tiny >/dev/null
"$bench" score runs/smoke-random runs/smoke-oracle runs/smoke-tiny
