#!/usr/bin/env bash
# Debian packages, where they are missing.
#
#   tools/install_packages.sh build|run|demo [LANGUAGE]|dev|words LANGUAGE…|interop
#
# build: what PJSIP and the worker are built with; run: what they run with when they were built elsewhere; demo: build, and
# the recordings of the demo in English or another language; dev: build, and what the tests need as well; words: the
# recordings of these languages with their texts, for `make words`; interop: what makes and asks the system in which
# Asterisk is, beside dev.
set -euo pipefail
kind=${1:?usage: tools/install_packages.sh build|run|demo [LANGUAGE]|dev|words LANGUAGE…|interop}
shift

say() { echo "setup: $*" >&2; }

case $kind in
  # ca-certificates, git: a minimal image has neither. The -dev packages build PJSIP, and their libraries run it.
  build | demo | dev)
    packages=(ca-certificates build-essential patch pkg-config swig python3-dev python3-venv libssl-dev libsrtp2-dev libopus-dev
      uuid-dev libsamplerate0-dev libseccomp2)
    ;;
  run) packages=(ca-certificates python3 libssl3 libsrtp2-1 libopus0 libuuid1 libsamplerate0 libseccomp2) ;;
  words) packages=() ;;
  interop) packages=(debootstrap curl) ;;
  *) say "build, run, demo, dev, words or interop, not $kind"; exit 2 ;;
esac
# Recorded human speech, 8 kHz and wideband.
if [ "$kind" = demo ]; then
  case ${1:-en} in en | es | fr | it | ru) ;; *) say "recordings are in en, es, fr, it and ru, not in $1"; exit 2 ;; esac
  sounds=asterisk-core-sounds-${1:-en}
  packages+=("$sounds-wav" "$sounds-g722")
fi
if [ "$kind" = words ]; then
  for language in "$@"; do
    case $language in
      en | es | fr | it | ru)
        sounds=asterisk-core-sounds-$language
        packages+=("$sounds" "$sounds-wav" "$sounds-g722")
        ;;
      *) packages+=(espeak-ng) ;; # there is nobody's voice in Debian: it is synthesised
    esac
  done
fi
if [ "$kind" = dev ]; then
  # SIPp is the SIP peer of the tests; the prompts are recorded human speech, 8 kHz and wideband, with their words, some
  # in Spanish, and hold music is what must come out without any; espeak-ng speaks what the tiny model is trained on, and for the bot of
  # the examples; ffmpeg makes media files, and reads subtitles for a check; the page is tested in Chromium; stunnel gives
  # SIPp TLS; coturn is a STUN server; nginx and HAProxy stand before a worker, configured as they come;
  # NATS stands between several, each of which is on a machine that ip makes.
  packages+=(openssl sip-tester asterisk-core-sounds-en asterisk-core-sounds-en-wav asterisk-core-sounds-en-g722
    asterisk-core-sounds-es-g722
    asterisk-moh-opsound-wav libespeak-ng1 espeak-ng-data espeak-ng ffmpeg chromium stunnel4 coturn nginx-light haproxy
    nats-server iproute2)
fi

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || { say "this needs apt; install these packages' equivalents by hand: ${missing[*]}"; exit 1; }
root=()
[ "$(id -u)" = 0 ] || root=(sudo)
say "installing ${missing[*]}"
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
if [ "$kind" = run ]; then # an image keeps nothing it does not need
  "${root[@]}" apt-get clean
  "${root[@]}" rm -rf /var/lib/apt/lists
  "${root[@]}" mkdir -p /var/lib/apt/lists/partial
fi
