#!/usr/bin/env bash
# Everything the project needs on a fresh Debian machine, into this checkout's .venv; does nothing when all is there.
#
#   tools/bootstrap.sh run|demo [LANGUAGE]|dev
#
# run: what the worker needs; demo: the same, and the recordings of the demo in English or another language; dev: what the
# tests need as well, PyTorch included. What dev has installed serves for the others, too. ENGINE=moonshine in the
# environment leaves Whisper out; the next setup without it adds it.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?usage: tools/bootstrap.sh run|demo [LANGUAGE]|dev}
PYTHON=${PYTHON:-python3}
VENV=.venv

say() { echo "setup: $*" >&2; }

case $kind in
  run) tools/install_packages.sh build ;;
  demo | dev) tools/install_packages.sh "$@" ;;
  *) say "run, demo or dev, not $kind"; exit 2 ;;
esac
[ "$kind" = dev ] || kind=run # the demo's Python packages are the worker's

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "Python 3.11 or newer is needed, $PYTHON is older: set PYTHON=/path/to/python"; exit 1; }

# What a stamp holds when its kind is installed as this checkout wants it.
sum() {
  local more=()
  [ "$1" != dev ] || more=(requirements/torch.txt tools/install_node.sh tests/node/*.txt)
  cat "requirements/$1.lock" requirements/moonshine.txt pyproject.toml tools/build_pjsip.sh tools/pjsip/* \
    tools/bootstrap.sh tools/install_packages.sh tools/install_moonshine.sh ${more[@]+"${more[@]}"} | sha256sum
}

is_installed() {
  local stamp
  for stamp in "$kind" dev; do
    [ "$(cat "$VENV/.stamp-$stamp" 2>/dev/null || true)" != "$(sum "$stamp")" ] || return 0
  done
  return 1
}

if ! is_installed; then
  say "installing Python packages into $VENV"
  [ -x $VENV/bin/python ] || "$PYTHON" -m venv $VENV
  # --no-deps: the lock names every package, and leaves out rich, which structlog would load if it were there.
  pip=("$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps)
  "${pip[@]}" --require-hashes -r "requirements/$kind.lock"
  tools/install_moonshine.sh $VENV/bin/python
  # A CPU build is enough for the tests. Where pip's own choice is another one, TORCH_INDEX names an index that has it.
  [ "$kind" != dev ] || "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r requirements/torch.txt
  wheel=$(tools/build_pjsip.sh "$PWD/$VENV/bin/python" | tail -n1)
  "${pip[@]}" --force-reinstall "$wheel" # its version does not tell patches
  "${pip[@]}" -e .
  $VENV/bin/python -c 'import pjsua2'
  [ "$kind" != dev ] || tools/install_node.sh $VENV/bin/python >/dev/null ||
    say "Node could not be installed: tests/web/test_node_client.py will fail, and the rest goes on"
  sum "$kind" >"$VENV/.stamp-$kind"
fi

# Whisper has a stamp of its own. A cache that was emptied is filled again.
CACHE=${MEDIAWORKER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mediaworker}
whisper=$(cat requirements/whisper.txt tools/install_whisper.sh asr/engines/whisper/base.py | sha256sum)
is_whisper_here() {
  [ "$(cat "$VENV/.stamp-whisper" 2>/dev/null || true)" = "$whisper" ] || return 1
  ! compgen -G "$VENV/lib/python3*/site-packages/ctranslate2" >/dev/null || compgen -G "$CACHE/whisper-base-*/model.bin" >/dev/null
}

if [ "${ENGINE:-auto}" != moonshine ] && ! is_whisper_here; then
  if tools/install_whisper.sh $VENV/bin/python; then
    echo "$whisper" >"$VENV/.stamp-whisper"
  else
    say "Whisper could not be installed; the setup goes on without this engine, and the next one tries it again"
  fi
fi
