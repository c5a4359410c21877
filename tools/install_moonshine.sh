#!/usr/bin/env bash
# The weights of the engine Moonshine, where their wheel can be installed; elsewhere a sentence that says so.
#
#   tools/install_moonshine.sh PYTHON
set -euo pipefail
PYTHON=$(realpath --no-symlinks "$(command -v "${1:?usage: tools/install_moonshine.sh PYTHON}")")
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }

# What the wheels of requirements/moonshine.txt are built for. Asked beforehand: an installation that fails for another
# reason, such as the network, ends the setup and is tried again by the next one.
"$PYTHON" - <<'PY' || { say "the weights of Moonshine cannot be installed here (they need Linux with glibc 2.34 or newer, on x86-64 or 64-bit ARM); the setup goes on without this engine"; exit 0; }
import platform, sys

library, version = platform.libc_ver()
fits = library == "glibc" and tuple(map(int, version.split("."))) >= (2, 34)
sys.exit(not (fits and platform.machine() in ("x86_64", "aarch64")))
PY
"$PYTHON" -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/moonshine.txt
