#!/usr/bin/env bash
# The user that the worker runs as, and the folder its events live in.
#
#   tools/create_user.sh [USER] [DATA_DIR]
set -euo pipefail
user=${1:-mediaworker}
data=${2:-/var/lib/mediaworker}
# Fixed numbers, so that a volume belongs to the same user in every image.
getent group "$user" >/dev/null || groupadd --system --gid 10001 "$user"
getent passwd "$user" >/dev/null ||
  useradd --system --uid 10001 --gid "$user" --home-dir "$data" --no-create-home --shell /usr/sbin/nologin "$user"
install -d -m 0700 -o "$user" -g "$user" "$data"
install -d -m 0755 /etc/mediaworker
