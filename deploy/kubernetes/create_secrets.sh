#!/usr/bin/env bash
# Certificates, API keys, and the configurations with the keys in them: what kustomization.yaml makes Secrets of.
#
#   deploy/kubernetes/create_secrets.sh
#
# It writes into secrets/ beside it, which git ignores. What is there is kept, so run it again whenever workers.toml or
# engines.toml has changed, or after you have removed a certificate or a key that shall be replaced. In these files
# @name@ stands for the content of secrets/name.secret: put other passwords there before.
#
# secrets/authority.key signs certificates that let anybody into the cluster: keep it where no pod and no guest is.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

certificate() { # NAME DAYS [OPTION...]
  [ -e "secrets/$1.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
    -subj "/CN=$1" -days "$2" -keyout "secrets/$1.key" -out "secrets/$1.crt" "${@:3}" 2>/dev/null
}

issue() { # NAME ALTERNATIVE-NAMES USES
  certificate "$1" 365 -CA secrets/authority.crt -CAkey secrets/authority.key \
    -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=$2" -addext "extendedKeyUsage=$3"
}

certificate authority 3650
# Workers serve HTTPS with theirs as well, and NATS servers are clients of each other. An engine server is nobody's client.
issue workers DNS:workers.mediaworker.svc serverAuth,clientAuth
issue engines DNS:engines.mediaworker.svc serverAuth
issue nats 'DNS:nats.mediaworker.svc,DNS:*.nats.mediaworker.svc' serverAuth,clientAuth

for name in prometheus client; do
  [ -e "secrets/$name.secret" ] || openssl rand -hex 24 | tr -d '\n' > "secrets/$name.secret"
done

for name in workers engines; do
  text=$(< "$name.toml")
  for file in secrets/*.secret; do
    word=$(basename "$file" .secret)
    text=${text//"@$word@"/"$(< "$file")"}
  done
  if [[ $text =~ @[a-z_]+@ ]]; then
    echo "$name.toml: there is no secrets/${BASH_REMATCH//@/}.secret" >&2
    exit 1
  fi
  printf '%s\n' "$text" > "secrets/$name.toml"
done
