#!/bin/sh
# Makes the certificates of the TLS tests, valid for a hundred years: an authority, a server `localhost`, a client, and another
# authority that nobody trusts. The keys protect nothing.
set -e
cd "$(dirname "$0")"
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=$2" -keyout "$1.key" -out "$1.pem"
}
leaf() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
    printf '%s\n' "subjectAltName=$2" "basicConstraints=CA:FALSE" "extendedKeyUsage=serverAuth,clientAuth" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -extfile "$1.ext" -out "$1.pem"
    rm "$1.csr" "$1.ext"
}
authority ca "Trunkline tests"
authority other-ca "Another"
leaf server "DNS:localhost,IP:127.0.0.1"
leaf client "DNS:client"
rm ca.key ca.srl other-ca.key
