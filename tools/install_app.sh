#!/usr/bin/env bash
# The worker into a virtual environment of its own, as the lock file says: for a service, or for an image.
#
#   tools/install_app.sh FOLDER [cpu|cuda] [--dependencies|--no-weights]
#
# --dependencies leaves the worker's own packages out, so that an image does not repeat the rest for every change. Both
# leave out the weights of Whisper, which have a layer of their own there; otherwise they are copied from the cache into
# FOLDER, or downloaded. ENGINE=moonshine in the environment leaves out all of Whisper. cuda adds what the engine Qwen3-ASR
# needs, with CUDA's own libraries: some 3 GB, for Linux on x86-64 and Python 3.11.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -sm "${1:?usage: tools/install_app.sh FOLDER [cpu|cuda] [--dependencies|--no-weights]}")
variant=${2:-cpu}
PYTHON=${PYTHON:-python3}

say() { echo "setup: $*" >&2; }

case $variant in cpu | cuda) ;; *) say "cpu or cuda, not $variant"; exit 2 ;; esac
case ${3:-} in '' | --dependencies | --no-weights) ;; *) say "--dependencies or --no-weights, not $3"; exit 2 ;; esac
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "Python 3.11 or newer is needed: set PYTHON"; exit 1; }
[ -x "$target/bin/python" ] || "$PYTHON" -m venv "$target"
export PIP_NO_CACHE_DIR=1
pip=("$target/bin/python" -m pip install -q --disable-pip-version-check --no-deps)
# --no-deps: the lock names every package, and leaves out rich, which structlog would load if it were there.
"${pip[@]}" --require-hashes -r requirements/run.lock
tools/install_moonshine.sh "$target/bin/python"
tools/install_whisper.sh "$target/bin/python" --packages
if [ "$variant" = cuda ]; then
  "${pip[@]}" --require-hashes -r requirements/cuda.lock
fi
wheel=$(tools/build_pjsip.sh "$target/bin/python" | tail -n1)
"${pip[@]}" --force-reinstall "$wheel" # its version does not tell patches
"$target/bin/python" -c 'import pjsua2'
[ -n "${3:-}" ] || tools/install_whisper.sh "$target/bin/python" --weights "$target/share/mediaworker/whisper-base"
if [ "${3:-}" != --dependencies ]; then
  # A build writes into its source tree, which may be somebody's checkout, or read-only.
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cp -r pyproject.toml README.md LICENSE config audio sip asr mediaworker "$work"
  "${pip[@]}" --force-reinstall "$work"
  (cd "$work" && "$target/bin/mediaworker" config >/dev/null) # without a configuration: the defaults
  say "installed $("$target/bin/python" -c 'from importlib.metadata import version; print("mediaworker", version("mediaworker"))') into $target"
fi
