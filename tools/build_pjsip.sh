#!/usr/bin/env bash
# Build PJSIP and its Python binding (pjsua2) once, and keep the wheel outside the checkout.
#
#   tools/build_pjsip.sh PYTHON      prints the wheel's path as its last line
#
# The wheel is cached under $MEDIAWORKER_CACHE (default ~/.cache/mediaworker), keyed by PJSIP version, build options,
# patches, our addition in C, Python and machine; delete that folder to build again. There is no wheel on PyPI, and its
# sdist does not build alone.
#
# Source: $PJSIP_TARBALL when set (GitHub's archive of the release), else the Xpjproject component of Debian's `asterisk`
# source package from sid, fetched through apt, which verifies Debian's signature. A tarball with another SHA-256 than the
# two named below ends the build; who has verified another one by other means sets PJSIP_SHA256 to its sum.
#
# PJSIP_SANITIZE=address builds with AddressSanitizer instead of the usual hardening, to a wheel of its own, for
# `make fuzz-asan`. A process that loads it needs libasan and libstdc++ in LD_PRELOAD.
set -euo pipefail

PYTHON=$(realpath --no-symlinks "$(command -v "${1:?usage: tools/build_pjsip.sh PYTHON}")")
VERSION=2.17
# Debian's repacked tarball, without the bundled third-party code, and GitHub's archive of the tag 2.17.
KNOWN_SHA256=(6860c2f7604b4eee75f38151a9ef69774eb3f0c5286fc1d14bc1db2dc5a9e8aa
  065fe06c06788d97c35f563796d59f00ce52fe9558a52d7b490a042a966facce)
# Everything that pip installs for the build. It has no dependencies.
BUILD_TOOLS='setuptools==84.2.1 --hash=sha256:ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2'
CACHE=${MEDIAWORKER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mediaworker}

CONFIGURE=(--disable-video --disable-sound --disable-v4l2 --disable-ffmpeg --disable-libwebrtc --disable-libwebrtc-aec3
  --disable-libyuv --disable-speex-aec --disable-sdl --disable-upnp --enable-epoll --disable-gsm-codec --disable-ilbc-codec
  --disable-speex-codec --disable-g7221-codec --with-external-srtp --enable-libsamplerate)

# PJSIP reads what strangers send: an overflow that is still in it is to end in an abort, and not in somebody else's code.
case ${PJSIP_SANITIZE:-} in
  '')
    FLAGS='-O2 -g0 -fPIC -DNDEBUG -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2'
    LINK_FLAGS='-Wl,-z,relro,-z,now'
    ;;
  address)
    FLAGS='-O1 -g -fPIC -DNDEBUG -fno-omit-frame-pointer -fsanitize=address -U_FORTIFY_SOURCE'
    LINK_FLAGS='-fsanitize=address'
    ;;
  *) echo "pjsip: PJSIP_SANITIZE is 'address' or unset, not '$PJSIP_SANITIZE'" >&2; exit 2 ;;
esac

# PJ_IOQUEUE_MAX_HANDLES needs epoll. PKT_LEN: a SIPREC INVITE carries two bodies, and over UDP it may be as long as a
# datagram. SDP_BUF_LEN, SDP_ATTR: of a longer description we would get nothing, or lose its end, and many an offer has
# more than the usual 1024 bytes and 68 attributes. TCP_TRANSPORT_BACKLOG, PJ_SOMAXCONN (for TLS): connections that may
# wait to be accepted; while somebody connects all the time, the usual five would leave no room for anybody else.
config_site() {
  cat <<'H'
#define PJMEDIA_HAS_VIDEO 0
#define PJSUA_MAX_CALLS 1024
#define PJSUA_MAX_ACC 64
#define PJSUA_MAX_CONF_PORTS 2048
#define PJ_IOQUEUE_MAX_HANDLES 4096
#define PJSIP_MAX_TSX_COUNT 8191
#define PJSIP_MAX_DIALOG_COUNT 8191
#define PJSIP_MAX_PKT_LEN 65536
#define PJSIP_TCP_TRANSPORT_BACKLOG 1024
#define PJ_SOMAXCONN 1024
#define PJ_HAS_IPV6 1
#define PJSUA2_MAX_SDP_BUF_LEN 32768
#define PJMEDIA_MAX_SDP_ATTR 256
#define PJSUA_HAS_SIPREC 1
H
}

say() { echo "pjsip: $*" >&2; }
die() { say "$*"; exit 1; }

tag=$("$PYTHON" -c 'import sys, platform; print(f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}")')
OURS=$(dirname "$(readlink -f "$0")")/pjsip
PATCHES=("$OURS"/*.patch)
ADDITION=$OURS/mediaworker.c # compiled into the binding
key=$( { echo "$VERSION" "${CONFIGURE[@]}" "$FLAGS" "$LINK_FLAGS" "${PJSIP_SHA256:-}"; config_site; cat "${PATCHES[@]}" "$ADDITION"; } | sha256sum | cut -c1-12)
store="$CACHE/pjsip-$VERSION-$key-$tag"
mkdir -p "$CACHE"

# Two builds at once (two checkouts, CI beside a developer) share one result.
exec 9>"$CACHE/pjsip.lock"
flock 9
if wheel=$(ls "$store"/*.whl 2>/dev/null | head -n1) && [ -n "$wheel" ]; then
  say "using $wheel"; echo "$wheel"; exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch_from_debian() {
  # The mirror is the one this machine already uses.
  local mirror
  mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $2 !~ /security/ { print $3; exit }')
  [ -n "$mirror" ] || die "no Debian mirror known to apt; run 'apt-get update', or set PJSIP_TARBALL to a PJSIP $VERSION release tarball"
  mkdir -p "$work/lists/partial" "$work/archives/partial"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources.list"
  local options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::Lists=$work/lists"
    -o "Dir::Cache=$work" -o APT::Sandbox::User=root -o Acquire::Retries=3
    # A mirror that lags is good enough for a tarball that is compared with a known hash.
    -o Acquire::Check-Valid-Until=false)
  (cd "$work" && apt-get "${options[@]}" -qq update && apt-get "${options[@]}" -qq source --download-only asterisk) >&2
  ls "$work"/asterisk_*Xpjproject.tar.* | head -n1
}

if [ -n "${PJSIP_TARBALL:-}" ]; then
  tarball=$PJSIP_TARBALL
  [ -r "$tarball" ] || die "PJSIP_TARBALL names $tarball, which cannot be read"
else
  say "fetching the source of PJSIP $VERSION"
  tarball=$(fetch_from_debian)
fi
sum=$(sha256sum "$tarball" | cut -d' ' -f1)
if [[ " ${PJSIP_SHA256:-${KNOWN_SHA256[*]}} " != *" $sum "* ]]; then
  die "$(basename "$tarball") has the SHA-256 $sum, which is not ${PJSIP_SHA256:-one that this script knows}: it is damaged, or another source than the one that was tried. If you have verified it by other means, set PJSIP_SHA256=$sum"
fi
mkdir "$work/src"
tar xf "$tarball" -C "$work/src" --strip-components=1
cd "$work/src"

found=$(awk '/^export PJ_VERSION_MAJOR/ { major = $NF } /^export PJ_VERSION_MINOR/ { minor = $NF } END { print major "." minor }' version.mak)
[ "$found" = "$VERSION" ] || die "expected PJSIP $VERSION but the source is $found: set PJSIP_TARBALL to GitHub's archive of the tag $VERSION, or change VERSION in tools/build_pjsip.sh and run 'make test'"

say "building (about 3 minutes on two cores)"
config_site >pjlib/include/pj/config_site.h
for each in "${PATCHES[@]}"; do
  patch -p1 --quiet <"$each" || die "$(basename "$each") does not fit this source"
done
sed -i 's/bdimad_dev\.o//' pjmedia/build/Makefile # its source is not in Debian's tree
cp "$ADDITION" pjsip-apps/src/swig/python/
sed -i 's/\["pjsua2_wrap\.cpp"\]/["pjsua2_wrap.cpp", "mediaworker.c"]/' pjsip-apps/src/swig/python/setup.py
grep -q mediaworker.c pjsip-apps/src/swig/python/setup.py || die "the setup.py of the binding is not the one that was tried"
jobs=$(nproc)
log=$work/build.log
{
  ./configure "${CONFIGURE[@]}" CFLAGS="$FLAGS" CXXFLAGS="$FLAGS" LDFLAGS="$LINK_FLAGS"
  make dep
  make -j"$jobs" lib
  cd pjsip-apps/src/swig/python
  "$PYTHON" -m venv "$work/venv"
  echo "$BUILD_TOOLS" >"$work/build-tools.txt"
  "$work/venv/bin/pip" install -q --disable-pip-version-check --require-hashes --no-deps -r "$work/build-tools.txt"
  make PYTHON_EXE="$work/venv/bin/python" wheel
} >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "the build failed; the lines above are the end of its log"; }

wheel=$(find "$work/src/pjsip-apps/src/swig/python" -name '*.whl' | head -n1)
[ -n "$wheel" ] || { tail -n 40 "$log" >&2; die "the build made no wheel"; }
mkdir -p "$store.part"
cp "$wheel" "$store.part/"
mv -T "$store.part" "$store"
say "built $(basename "$wheel")"
ls "$store"/*.whl
