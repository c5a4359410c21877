#!/usr/bin/env bash
# Run a command in the system that asterisk.sh has made, with one folder of the outside at /mnt.
#
#   tools/interop/inside.sh ROOT FOLDER COMMAND…
#
# The mounts are in a namespace of their own and end with the command. It keeps the network, and has this process's
# id.
set -euo pipefail
root=$1 folder=$2
shift 2
# shellcheck disable=SC2016
exec unshare --mount --propagation private sh -c '
  mount --bind "$2" "$1/mnt"
  mount -t proc proc "$1/proc"
  root=$1
  shift 2
  exec chroot "$root" "$@"' inside "$root" "$folder" "$@"
