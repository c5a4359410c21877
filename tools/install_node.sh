#!/usr/bin/env bash
# The Nodes in which `client.js` is tested, and the package `ws` for those that have no WebSocket of their own.
#
#   tools/install_node.sh PYTHON      prints their folder as its last line: 18/node … 24/node, node_modules/ws
#
# They come from wheels and one npm package, pinned in tests/node, and are kept under $MEDIAWORKER_CACHE (default
# ~/.cache/mediaworker): 400 MB. Delete that folder to have them installed again.
set -euo pipefail
PYTHON=$(realpath --no-symlinks "$(command -v "${1:?usage: tools/install_node.sh PYTHON}")")
cd "$(dirname "$0")/../tests/node"
CACHE=${MEDIAWORKER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mediaworker}
store=$CACHE/node-$(cat ./*.txt package-lock.json | sha256sum | cut -c1-12)

say() { echo "node: $*" >&2; }

mkdir -p "$CACHE"
# Two checkouts at once share one result.
exec 8>"$CACHE/node.lock"
flock 8
if [ ! -e "$store/complete" ]; then
  rm -rf "$store"
  mkdir "$store"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  for requirement in *.txt; do
    version=${requirement%.txt}
    say "installing Node $version"
    "$PYTHON" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --target "$work/$version" -r "$requirement"
    mkdir "$store/$version"
    # Of 200 MB each, npm and the headers, only the program is of use.
    cp "$work/$version"/nodejs*/bin/node "$store/$version/node"
  done
  cp package.json package-lock.json "$store"
  npm=$(ls "$work"/24/nodejs*/lib/node_modules/npm/bin/npm-cli.js)
  PATH=$store/24:$PATH node "$npm" ci --prefix "$store" --no-audit --no-fund --ignore-scripts --silent >&2
  touch "$store/complete"
fi
echo "$store"
