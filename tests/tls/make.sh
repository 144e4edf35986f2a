#!/bin/sh
# Makes the certificates of the TLS tests, valid for a hundred years: an authority, a server `localhost`, a client, and another
# authority that nobody trusts; and one with the server's key that was valid for the first hour of 2020. The keys protect nothing.
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
mkdir own
: > own/index
printf '%s\n' "[ca]" "default_ca=own" "[own]" "new_certs_dir=own" "database=own/index" "default_md=sha256" "policy=names" "rand_serial=yes" "x509_extensions=leaf" \
    "[names]" "commonName=supplied" "[req]" "distinguished_name=names" \
    "[leaf]" "subjectAltName=DNS:localhost" "basicConstraints=CA:FALSE" > own/conf
openssl req -new -config own/conf -key server.key -subj "/CN=localhost" -out own/csr
openssl ca -batch -notext -selfsign -config own/conf -keyfile server.key -in own/csr -startdate 20200101000000Z -enddate 20200101010000Z -out expired.pem
rm -r own ca.key ca.srl other-ca.key
