#!/usr/bin/env bash
# Everything the project needs on a fresh Debian machine, into this checkout's .venv; does nothing when all is there.
#
#   scripts/bootstrap.sh run|dev       run: what the worker needs; dev: what the tests and the demo need as well
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?usage: scripts/bootstrap.sh run|dev}
PYTHON=${PYTHON:-python3}
VENV=.venv

say() { echo "setup: $*" >&2; }

if [ "$kind" = dev ]; then scripts/install_packages.sh dev; else scripts/install_packages.sh build; fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "Python 3.11 or newer is needed, $PYTHON is older: set PYTHON=/path/to/python"; exit 1; }

lock=requirements/$kind.lock
stamp=$VENV/.stamp-$kind
want=$(cat "$lock" requirements/torch.txt pyproject.toml scripts/build_pjsip.sh scripts/pjsip/*.patch scripts/bootstrap.sh \
  scripts/install_packages.sh scripts/install_node.sh tests/node/*.txt | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
  say "installing Python packages into $VENV"
  [ -x $VENV/bin/python ] || "$PYTHON" -m venv $VENV
  # --no-deps: the lock names every package, and leaves out rich, which structlog would load if it were there.
  $VENV/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r "$lock"
  # A CPU build is enough for the tests. Where pip's own choice is another one, TORCH_INDEX names an index that has it.
  [ "$kind" != dev ] || $VENV/bin/python -m pip install -q --disable-pip-version-check --no-deps \
    ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r requirements/torch.txt
  wheel=$(scripts/build_pjsip.sh "$PWD/$VENV/bin/python" | tail -n1)
  $VENV/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel" # its version does not tell patches
  $VENV/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
  $VENV/bin/python -c 'import pjsua2'
  [ "$kind" != dev ] || scripts/install_node.sh $VENV/bin/python >/dev/null ||
    say "Node could not be installed: tests/test_node_client.py will fail, and the rest goes on"
  echo "$want" >"$stamp"
fi
