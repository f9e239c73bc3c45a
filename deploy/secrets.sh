#!/bin/sh
# Make the secrets of the containers where missing; those that exist are kept.
# Compose hands a file over with the owner and mode that it has here, while each container runs as a number of its own.
# So the files can be read by all, and the folder around them is closed to everybody but its owner.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
chmod 700 secrets
cd secrets

random() { od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n'; }
write() { # NAME CONTENT
    printf '%s\n' "$2" >"$1.new"
    chmod 444 "$1.new"
    mv "$1.new" "$1"
}

if [ ! -e redis_auth ] || [ ! -e iotsphere_log ]; then
    password=$(random)
    write redis_auth "requirepass $password"
    write iotsphere_log "redis://:$password@redis:6379/0"
fi
if [ ! -e mongodb_password ]; then
    write mongodb_password "$(random)"
    rm -f iotsphere_database
fi
if [ ! -e iotsphere_database ]; then
    write iotsphere_database \
        "mongodb://iotsphere:$(cat mongodb_password)@mongodb:27017/iotsphere?replicaSet=iotsphere&authSource=admin"
fi
[ -e mongodb_key ] || write mongodb_key "$(random)$(random)"
