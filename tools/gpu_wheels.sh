#!/usr/bin/env bash
# What `make gpu` needs beside torch and transformers, as wheels for a machine without a network: run it where there is
# one, then copy the checkout with the folder to the machine with the GPU.
#
#   tools/gpu_wheels.sh [FOLDER]        (default: build/wheels, where tools/gpu.sh looks)
#
# Wheels for Linux on x86-64 with Python 3.11 to 3.13; PYTHONS="312" for one version, PLATFORM=aarch64 for Linux on ARM.
set -euo pipefail
folder=${1:-$(dirname "$0")/../build/wheels}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
platforms=()
for tag in manylinux_2_28 manylinux_2_17 manylinux2014; do platforms+=(--platform "${tag}_${PLATFORM:-x86_64}"); done
for version in ${PYTHONS:-311 312 313}; do
  "${PYTHON:-python3}" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" \
    --implementation cp --python-version "$version" --abi "cp$version" --abi abi3 --abi none "${platforms[@]}" \
    -r requirements/gpu.txt
done
git describe --always --dirty --abbrev=12 >"$folder/COMMIT" 2>/dev/null || rm -f "$folder/COMMIT"
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sm "$folder" | cut -f1) MB: $folder"
