#!/usr/bin/env bash
# Certificates for backend DAPPER_GRPC: an authority, valid for two years, the server's, one for each silo, and the operator's,
# for 90 days; and a startup kit for each, in FOLDER/kits: certificate, key, authority, address, and start.sh.
#   bash run/make_certs.sh FOLDER NUM_SILOS [--edge RANK ...] [--port PORT] [--experiment FILE] [HOST ...]
#   bash run/make_certs.sh FOLDER --renew NAME ... [HOST ...]     (new ones for these, by the same authority)
# HOST: the names and IP addresses under which silos dial the server or an edge; localhost and 127.0.0.1 when none is given.
# NUM_SILOS is 0 where all silos join by codes, with keys of their own. Give each machine its kit, and nobody ca.key. See
# docs/security.md and docs/operations.md.
set -euo pipefail
usage() {
    echo "usage: bash run/make_certs.sh FOLDER NUM_SILOS [--edge RANK ...] [--port PORT] [--experiment FILE] [HOST ...]" >&2
    echo "       bash run/make_certs.sh FOLDER --renew NAME ... [HOST ...]" >&2
    exit 2
}
fail() {
    echo "run/make_certs.sh: $1" >&2
    exit 2
}
[[ $# -ge 2 ]] || usage
folder=$1 silos=
shift
edges=() renewed=() port=8890 experiment=
if [[ $1 =~ ^(0|[1-9][0-9]*)$ ]]; then
    silos=$1
    shift
elif [[ $1 != --renew ]]; then
    usage
fi
while [[ ${1:-} == --* ]]; do
    option=$1 value=${2:-}
    case $option in
    --edge) [[ $value =~ ^[1-9][0-9]*$ ]] || usage && edges+=("$value") ;;
    --renew) [[ $value =~ ^(server|admin|(silo|edge)-[1-9][0-9]*)$ ]] || usage && renewed+=("$value") ;;
    --port) [[ $value =~ ^[1-9][0-9]{0,4}$ ]] || usage && port=$value ;;
    --experiment) [[ -f $value ]] || fail "no file $value" && experiment=$(realpath "$value") ;;
    *) usage ;;
    esac
    shift 2
done
[[ -z $silos || ${#renewed[@]} -eq 0 ]] || usage
hosts=("$@")
command -v openssl >/dev/null || fail "no openssl on this machine; on Debian: apt-get install openssl"
if [[ -n $silos && -e $folder/ca.key ]]; then
    fail "$folder holds an authority already; take another folder, or remove it first; --renew NAME makes single certificates"
elif [[ -z $silos && ! -e $folder/ca.key ]]; then
    fail "$folder holds no ca.key, by which new certificates could be made"
fi
days=90 days_of_authority=730

log=$(mktemp)
trap 'status=$?; [[ $status -eq 0 ]] || cat "$log" >&2; rm -f "$log"' EXIT
umask 077 # keys are for their owner alone
mkdir -p "$folder"
cd "$folder"

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

certify() { # NAME EXTENSION ...
    local name=$1
    shift
    openssl req "${new_key[@]}" -keyout "$name.key.new" -subj "/CN=$name" 2>>"$log" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -set_serial "0x00$(openssl rand -hex 16)" -days "$days" -out "$name.pem.new" \
            -extfile <(printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature "$@") 2>>"$log"
    chmod 644 "$name.pem.new"
    mv "$name.key.new" "$name.key"
    mv "$name.pem.new" "$name.pem"
}

names_of_hosts() { # NAME: what the certificate of a server has to name; as before where no HOST is given
    local host names=
    if [[ ${#hosts[@]} -eq 0 && -e $1.pem ]]; then
        openssl x509 -in "$1.pem" -noout -ext subjectAltName 2>>"$log" | sed -n 's/ //g; s/IPAddress:/IP:/g; 2p'
        return
    fi
    for host in ${hosts[@]+"${hosts[@]}"}; do
        if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then names+=,IP:$host; else names+=,DNS:$host; fi
    done
    echo "${names:1}"
}

dialled() { # what kits dial: HOST:PORT, an IPv6 address in brackets
    local host=${hosts[0]:-localhost}
    [[ $host != *:* ]] || host="[$host]"
    echo "$host:$port"
}

kit() { # NAME RANK ROLE: what goes to that machine
    local place=kits/$1
    mkdir -p "$place/certs"
    cp -p ca.pem "$1.pem" "$1.key" "$place/certs"
    [[ ! -e $place/connection.yaml ]] || return 0 # renewed: only the certificate is new
    [[ -n $experiment || ! -e kits/server/experiment.yaml ]] || experiment=$PWD/kits/server/experiment.yaml
    [[ -z $experiment || $experiment -ef $place/experiment.yaml ]] || cp "$experiment" "$place/experiment.yaml"
    if [[ ${#hosts[@]} -eq 0 && -e kits/server/connection.yaml ]]; then
        cp kits/server/connection.yaml "$place"
    else
        cat >"$place/connection.yaml" <<YAML
# Laid over the federation's experiment file.
comm_args:
  backend: DAPPER_GRPC
  dapper_grpc:
    server_address: "$(dialled)"
    certificates: certs
YAML
    fi
    [[ $3 != admin ]] || return 0
    cat >"$place/start.sh" <<SH
#!/usr/bin/env bash
# Starts $1. Beside it belongs the experiment.yaml that all of the federation have, or EXPERIMENT names it.
set -euo pipefail
cd "\$(dirname "\$0")"
exec "\${PYTHON:-python}" -m fedml_dapper --cf "\${EXPERIMENT:-experiment.yaml}" --cf connection.yaml --rank $2 --role $3 "\$@"
SH
}

make() { # NAME
    case $1 in
    server) certify "$1" extendedKeyUsage=serverAuth "subjectAltName=$(names_of_hosts "$1")" && kit "$1" 0 server ;;
    edge-*) certify "$1" extendedKeyUsage=serverAuth,clientAuth "subjectAltName=$(names_of_hosts "$1")" && kit "$1" "${1#*-}" edge ;;
    silo-*) certify "$1" extendedKeyUsage=clientAuth && kit "$1" "${1#*-}" client ;;
    admin) certify "$1" extendedKeyUsage=clientAuth && kit "$1" 0 admin ;;
    esac
}

if [[ ${#renewed[@]} -gt 0 ]]; then
    for name in "${renewed[@]}"; do make "$name"; done
    echo "New certificates of ${renewed[*]} are in $folder, and in their kits."
    exit
fi
[[ ${#hosts[@]} -gt 0 ]] || hosts=(localhost 127.0.0.1)
openssl req -x509 "${new_key[@]}" -keyout ca.key -out ca.pem -days "$days_of_authority" -subj "/CN=fedml_dapper authority $(openssl rand -hex 4)" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2>>"$log"
chmod 644 ca.pem
make server
for rank in $(seq 1 "$silos"); do make "silo-$rank"; done
for rank in ${edges[@]+"${edges[@]}"}; do make "edge-$rank"; done
make admin
if [[ -n $experiment ]] && grep -q '^[^#]*server_address:' "$experiment" &&
    ! grep -q "^[^#]*server_address: *[\"']\?$(dialled | sed 's/[].[]/\\&/g')\b" "$experiment"; then
    echo "note: the kits dial $(dialled), and ${experiment##*/} names another server_address; HOST and --port say what kits dial" >&2
fi
echo "Certificates of a server (${hosts[*]}), $silos silos, ${#edges[@]} edges and an admin are in $folder, each with a kit in $folder/kits."
