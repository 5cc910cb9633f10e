#!/bin/sh
# The first API key of a fresh installation: made here, handed to the service as a secret, shown once.
#
#   docker/first-key.sh compose             writes PIPEPLAN_FIRST_KEY into .env beside compose.yaml
#   docker/first-key.sh kubernetes          makes the secret pipeplan-first-key in the namespace pipeplan
#
# The service takes the key only into a store that never had one. Rotate it when the team is there:
#   pipeplan keys create --tenant NAME, then pipeplan keys revoke ID
set -eu
random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
key="pp_$(random 6)_$(random 24)"
case "${1:-}" in
compose)
    file="${2:-$(dirname "$0")/.env}"
    if [ -f "$file" ] && grep -q '^PIPEPLAN_FIRST_KEY=' "$file"; then
        echo "$file has a first key already" >&2
        exit 2
    fi
    umask 077
    printf 'PIPEPLAN_FIRST_KEY=%s\n' "$key" >> "$file"
    ;;
kubernetes)
    printf '%s' "$key" | kubectl --namespace pipeplan create secret generic pipeplan-first-key --from-file=key=/dev/stdin >&2
    ;;
*)
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
printf '%s\n' "$key"
