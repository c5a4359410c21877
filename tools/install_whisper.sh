#!/usr/bin/env bash
# The engine Whisper's packages and weights, where the packages can be installed; elsewhere a sentence that says so.
#
#   tools/install_whisper.sh PYTHON                     packages into the environment of PYTHON, weights into the cache
#   tools/install_whisper.sh PYTHON --packages
#   tools/install_whisper.sh PYTHON --weights FOLDER    downloaded, or copied from the cache
#
# With ENGINE=moonshine it does nothing.
set -euo pipefail
PYTHON=$(realpath --no-symlinks "$(command -v "${1:?usage: tools/install_whisper.sh PYTHON [--packages | --weights FOLDER]}")")
what=${2:-both}
if [ "$what" = --weights ]; then
  folder=$(realpath -sm "${3:?--weights needs a folder}")
  mkdir -p "$(dirname "$folder")" # an image copies it, whether anything is in it or not
fi
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }

case $what in both | --packages | --weights) ;; *) say "--packages or --weights, not $what"; exit 2 ;; esac
[ "${ENGINE:-auto}" != moonshine ] || exit 0

# What the wheels of requirements/whisper.txt are built for; asked beforehand, as tools/install_moonshine.sh does.
"$PYTHON" - <<'PY' || { say "the packages of Whisper cannot be installed here (they need Linux with glibc 2.27 or newer, on x86-64 or 64-bit ARM); the setup goes on without this engine"; exit 0; }
import platform, sys

library, version = platform.libc_ver()
fits = library == "glibc" and tuple(map(int, version.split("."))) >= (2, 27)
sys.exit(not (fits and platform.machine() in ("x86_64", "aarch64")))
PY
[ "$what" = --weights ] ||
  "$PYTHON" -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/whisper.txt
# -P: the folder of that file is no place from which to import.
[ "$what" = --packages ] || "$PYTHON" -P asr/engines/whisper/base.py ${folder:+"$folder"} >/dev/null
