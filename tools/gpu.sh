#!/usr/bin/env bash
# Everything about the engine that only a GPU can show, in at most ten minutes: JSON and a page. See docs/measurements/gpu.md.
#
#   tools/gpu.sh [--rehearse] [--out FOLDER] [--parts NAME,…]
#
# Takes the machine's own torch and transformers, and leaves them alone: what else is missing is installed from wheels,
# without a network, into a folder of its own. PYTHON says which Python, WHEELS where tools/gpu_wheels.sh put the wheels.
set -euo pipefail
given=${OUT:-}
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-python3} WHEELS=${WHEELS:-build/wheels} OUT=$given
# In a checkout of a developer torch is in its environment.
"$PYTHON" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' ||
  { [ ! -x .venv/bin/python ] || PYTHON=$PWD/.venv/bin/python; }

has() { "$PYTHON" -c 'import hypothesis, msgspec, prometheus_client, pytest, pytest_asyncio, pytest_timeout, structlog' 2>/dev/null; }

if ! has; then
  site=$PWD/build/site-$("$PYTHON" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  if ! has; then
    compgen -G "$WHEELS/*.whl" >/dev/null ||
      { echo "gpu: there are no wheels in $WHEELS: run tools/gpu_wheels.sh where there is a network, and copy that folder" >&2; exit 2; }
    rm -rf "$site"
    "$PYTHON" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --find-links "$WHEELS" \
      --target "$site" -r requirements/gpu.txt
    has || { echo "gpu: what was installed from $WHEELS cannot be imported by $PYTHON" >&2; exit 2; }
  fi
fi
exec "$PYTHON" -m tools.gpu "$@"
