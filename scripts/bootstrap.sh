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

# ca-certificates, git: a minimal image has neither. The -dev packages build PJSIP, and their libraries run it.
packages=(ca-certificates build-essential pkg-config swig python3-dev python3-venv libssl-dev libsrtp2-dev libopus-dev uuid-dev
  libsamplerate0-dev)
if [ "$kind" = dev ]; then
  # SIPp is the SIP peer of the tests; the prompts are recorded human speech, 8 kHz and wideband, with their words.
  packages+=(sip-tester asterisk-core-sounds-en asterisk-core-sounds-en-wav asterisk-core-sounds-en-g722)
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { say "this needs apt; install these packages' equivalents by hand: ${missing[*]}"; exit 1; }
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  say "installing ${missing[*]}"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "Python 3.11 or newer is needed, $PYTHON is older: set PYTHON=/path/to/python"; exit 1; }

lock=requirements/$kind.lock
stamp=$VENV/.stamp-$kind
want=$(cat "$lock" pyproject.toml scripts/build_pjsip.sh scripts/bootstrap.sh | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
  say "installing Python packages into $VENV"
  [ -x $VENV/bin/python ] || "$PYTHON" -m venv $VENV
  # --no-deps: the lock names every package, and leaves out torch, which silero-vad's metadata asks for.
  $VENV/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r "$lock"
  wheel=$(scripts/build_pjsip.sh "$PWD/$VENV/bin/python" | tail -n1)
  $VENV/bin/python -m pip install -q --disable-pip-version-check --no-deps "$wheel"
  $VENV/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
  $VENV/bin/python -c 'import pjsua2'
  echo "$want" >"$stamp"
fi
