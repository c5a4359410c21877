#!/usr/bin/env bash
# Unpack Debian's Kamailio into a folder, and print the folder as the last line.
#
#   tools/install_kamailio.sh
#
# It is unpacked and not installed: an installed one is started, at the port where a worker's SIP wants to be. What it
# needs besides is installed. The folder is kept in $MEDIAWORKER_CACHE (default ~/.cache/mediaworker).
set -euo pipefail

CACHE=${MEDIAWORKER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mediaworker}

say() { echo "setup: $*" >&2; }

root=()
[ "$(id -u)" = 0 ] || root=(sudo)
candidate() { apt-cache policy kamailio | awk '/Candidate:/ && $2 != "(none)" { print $2 }'; }

version=$(candidate)
if [ -z "$version" ]; then
  "${root[@]}" apt-get update -qq
  version=$(candidate)
fi
[ -n "$version" ] || { say "apt knows no package kamailio"; exit 1; }
folder="$CACHE/kamailio-${version//[^0-9A-Za-z.+~-]/_}-$(uname -m)"
mkdir -p "$CACHE"
exec 9>"$CACHE/kamailio.lock"
flock 9
if [ -x "$folder/usr/sbin/kamailio" ]; then echo "$folder"; exit 0; fi

say "unpacking Kamailio $version"
part=$(mktemp -d "$CACHE/kamailio.XXXXXX")
trap 'rm -rf "$part"' EXIT
chmod 755 "$part"
(cd "$part" && apt-get -qq -o APT::Sandbox::User=root download kamailio kamailio-tls-modules)
# Names alone: their versions are those of the same release.
needed=$(for package in "$part"/*.deb; do dpkg-deb -f "$package" Depends Pre-Depends; done |
  sed 's/^[A-Za-z-]*: //' | tr ',' '\n' | sed 's/([^)]*)//; s/|.*//; s/ //g' | sort -u | grep -v -e '^$' -e '^kamailio')
missing=()
for package in $needed; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
for package in "$part"/*.deb; do dpkg-deb -x "$package" "$part"; rm "$package"; done
trap - EXIT
mv -T "$part" "$folder"
echo "$folder"
