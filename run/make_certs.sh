#!/usr/bin/env bash
# Certificates for a trial of backend DAPPER_GRPC: an authority, the server's, and one for each silo; valid for 90 days.
#   bash run/make_certs.sh FOLDER NUM_SILOS [--edge RANK ...] [HOST ...]
# HOST: the names and IP addresses under which silos dial the server or an edge; localhost and 127.0.0.1 when none is given.
# Give each machine ca.pem and its own NAME.pem and NAME.key, and nobody ca.key. See docs/security.md.
set -euo pipefail
if [[ $# -lt 2 || ! $2 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: bash run/make_certs.sh FOLDER NUM_SILOS [--edge RANK ...] [HOST ...]" >&2
    exit 2
fi
folder=$1 silos=$2
shift 2
edges=()
while [[ ${1:-} == --edge && ${2:-} =~ ^[1-9][0-9]*$ ]]; do
    edges+=("$2")
    shift 2
done
[[ $# -gt 0 ]] || set -- localhost 127.0.0.1
if ! command -v openssl >/dev/null; then
    echo "run/make_certs.sh: no openssl on this machine; on Debian: apt-get install openssl" >&2
    exit 2
fi
if [[ -e $folder/ca.key ]]; then
    echo "run/make_certs.sh: $folder holds an authority already; take another folder, or remove it first" >&2
    exit 2
fi
days=90

names=
for host in "$@"; do
    if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then names+=,IP:$host; else names+=,DNS:$host; fi
done

log=$(mktemp)
trap 'status=$?; [[ $status -eq 0 ]] || cat "$log" >&2; rm -f "$log"' EXIT
umask 077 # keys are for their owner alone
mkdir -p "$folder"
cd "$folder"

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${new_key[@]}" -keyout ca.key -out ca.pem -days "$days" -subj "/CN=fedml_dapper trial authority" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>>"$log"

certify() { # NAME EXTENSION ...
    local name=$1
    shift
    openssl req "${new_key[@]}" -keyout "$name.key" -subj "/CN=$name" 2>>"$log" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -set_serial "0x00$(openssl rand -hex 16)" -days "$days" -out "$name.pem" \
            -extfile <(printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature "$@") 2>>"$log"
}

certify server extendedKeyUsage=serverAuth "subjectAltName=${names#,}"
for rank in $(seq 1 "$silos"); do
    certify "silo-$rank" extendedKeyUsage=clientAuth
done
for rank in ${edges[@]+"${edges[@]}"}; do
    certify "edge-$rank" extendedKeyUsage=serverAuth,clientAuth "subjectAltName=${names#,}"
done
chmod 644 ./*.pem
echo "Certificates of a server ($*), $silos silos and ${#edges[@]} edges are in $folder."
