#!/usr/bin/env bash
# Make a folder with a Debian sid system that has Asterisk, Kamailio, rtpengine and baresip, and keep it outside the checkout.
#
#   tools/interop/asterisk.sh        prints the folder as its last line; needs root
#
# It is cached under $MEDIAWORKER_CACHE (default ~/.cache/mediaworker), keyed by the list of packages and the machine;
# delete the folder to have what sid has today. Stable has no Asterisk, and its baresip is old.
set -euo pipefail

PACKAGES=(asterisk baresip-core kamailio kamailio-tls-modules rtpengine-daemon)
CACHE=${MEDIAWORKER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mediaworker}

say() { echo "interop: $*" >&2; }
die() { say "$*"; exit 1; }

[ "$(id -u)" = 0 ] || die "this needs root, for chroot"
key=$(echo "${PACKAGES[@]}" | sha256sum | cut -c1-12)
root="$CACHE/asterisk-sid-$key-$(uname -m)"
mkdir -p "$CACHE"

exec 9>"$CACHE/asterisk.lock"
flock 9
if [ -x "$root/usr/sbin/asterisk" ]; then echo "$root"; exit 0; fi

# The mirror is the one this machine already uses, or $DEBIAN_MIRROR.
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
  awk '$1 == "Debian" && $2 !~ /security/ { print $3; exit }')}
[ -n "$mirror" ] || die "no Debian mirror known to apt; run 'apt-get update', or set DEBIAN_MIRROR"
case $mirror in
  # The new system needs no certificates of its own for a mirror whose packages are signed anyway.
  http://*) ;;
  *) die "apt's mirror is not http, which the new system could not read: set DEBIAN_MIRROR" ;;
esac

log=$(mktemp)
part="$root.part"
rm -rf --one-file-system "$part"
trap 'rm -f "$log"; rm -rf --one-file-system "$part"' EXIT

build() {
  debootstrap --variant=minbase sid "$part" "$mirror"
  # Nothing is started here, and nothing is kept of documentation.
  printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"
  chmod +x "$part/usr/sbin/policy-rc.d"
  printf 'path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\n' >"$part/etc/dpkg/dpkg.cfg.d/small"
  cp /etc/resolv.conf "$part/etc/resolv.conf"
  cat /etc/hosts >"$part/etc/hosts"
  local inside=(chroot "$part" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -qq)
  local options=(-o Acquire::Retries=3 -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
  "${inside[@]}" "${options[@]}" update
  "${inside[@]}" "${options[@]}" install -y --no-install-recommends "${PACKAGES[@]}"
  "${inside[@]}" clean
  rm -rf "$part"/var/lib/apt/lists/*
}

say "making a Debian sid system with ${PACKAGES[*]} (minutes)"
(set -e; build) >"$log" 2>&1 || { tail -n 30 "$log" >&2; die "that failed; the lines above are the end of its log"; }
chroot "$part" asterisk -V >&2
mv -T "$part" "$root"
echo "$root"
