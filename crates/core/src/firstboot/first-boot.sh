#!/bin/sh
# Written by homestak. Obtains the agent from a server of the site, and runs it.
#
# Nothing is trusted because a server sent it: the program is installed only when a key of the site
# signed its digest. Exit code 3: trying again changes nothing.
set -uf
LC_ALL=C
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH

# values

agent=$root/usr/local/bin/homestak-agent
lib=$root/usr/local/lib/homestak
home=$root/usr/local/etc/homestak
work=$lib/.first-boot
enrolment=$home/first-boot/enrolment.json
marker=$home/state/config-failed.json
cr=$(printf '\r')
# The longest answers, in blocks of 512 bytes: 64 KiB, and 128 MiB for the agent with its headers.
small=128
large=262272

log() { echo "$*" >&2; }

now() { date -u +%Y-%m-%dT%H:%M:%SZ; }

# Leaves out characters that need escaping.
plain() { tr -cd 'A-Za-z0-9 .,:;()_/[]-'; }

# Records a failure for whoever waits for this node, and ends.
give_up() {
    message=$(printf '%s' "$2" | plain | cut -c1-400)
    node=$(printf '%s' "$identity" | plain)
    log "giving up: $message"
    (umask 022 && mkdir -p "$home") && (umask 077 && mkdir -p "$home/state")
    (
        umask 077
        printf '{\n  "phase": "fetch",\n  "status": "failed",\n  "error": "%s",\n  "code": 3,\n  "message": "%s",\n  "node": "%s",\n  "spec": "",\n  "attempts": %s,\n  "first_attempt": "%s",\n  "last_attempt": "%s"\n}\n' \
            "$1" "$message" "$node" "$attempts" "$first_attempt" "$(now)" >"$marker.new"
    ) && mv -f "$marker.new" "$marker"
    exit 3
}

# Remembers why a server is of no use, for when the others are of none either. One that is asked
# because an earlier one did not answer may be a server that was replaced: its refusal is only logged.
refuse() {
    log "$2"
    [ -z "$unanswered" ] || return 1
    refusal_word=$1
    refusal=$2
    return 1
}

# Sends the request on standard input to a server, and writes its answer to a file. It may take $2
# seconds and have $3 blocks of 512 bytes: then OpenSSL is ended. Dates are not compared with the
# clock of this machine, which may be wrong. The name is: an authority of the operator may sign
# others than servers of this site. The token is in no argument.
exchange() {
    address=${1#https://}
    address=${address%%/*}
    case $address in
        *]) address=$address:443 ;;
        *:*) ;;
        *) address=$address:443 ;;
    esac
    name=${address%:*}
    name=${name#\[}
    name=${name%\]}
    case $name in
        *:*) kind=-verify_ip ;;
        *[!0-9.]*) kind=-verify_hostname ;;
        *) kind=-verify_ip ;;
    esac
    (
        ulimit -c 0 && ulimit -f "$3" || exit 1
        exec timeout "$2" \
            openssl s_client -quiet -tls1_3 -no_check_time -verify_return_error -partial_chain \
            "$kind" "$name" \
            -no-CApath -no-CAstore -CAfile "$work/authorities.pem" -connect "$address" \
            >"$work/answer" 2>"$work/log"
    )
}

# Returns the status of the last answer.
status() { sed -n '1s/^HTTP\/1\.[01] \([0-9][0-9][0-9]\).*/\1/p;1q' "$work/head"; }

# Returns a value of a JSON object whose values need no escaping.
field() { sed -n 's/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p'; }

# Decodes base64url, in which padding is missing.
decode() {
    text=$(printf '%s' "$1" | tr '_-' '/+')
    while [ $((${#text} % 4)) -ne 0 ]; do text=$text=; done
    printf '%s' "$text" | base64 -d
}

# Returns whether a key of the site made a signature over the file `message`.
is_signed() {
    for key in $site_keys; do
        # The fixed part of an Ed25519 public key, then the key (RFC 8410).
        printf -- '-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA%s=\n-----END PUBLIC KEY-----\n' "$key" \
            >"$work/key.pem"
        if openssl pkeyutl -verify -rawin -pubin -inkey "$work/key.pem" -sigfile "$work/signature" \
            -in "$work/message" >/dev/null 2>&1; then
            return 0
        fi
    done
    return 1
}

# Puts a link in place of what is there, in one step.
link() {
    ln -s "$1" "$2.new.$$" && mv -fT "$2.new.$$" "$2"
}

# Verifies the program in the last answer, and installs it.
install_agent() {
    statement=$(sed -n 's/^[Hh]omestak-[Ss]tatement: *//p' "$work/head" | tr -d "$cr")
    payload=${statement%%.*}
    signature=${statement#*.}
    case $payload$signature in
        '' | *[!A-Za-z0-9_-]*)
            refuse signature "$server sent an agent without a signed statement"
            return 1
            ;;
    esac
    decode "$signature" >"$work/signature"
    printf '%s' "homestak-agent-v1:$payload" >"$work/message"
    if ! is_signed; then
        refuse signature "the agent of $server is not signed by this site"
        return 1
    fi
    decode "$payload" >"$work/payload"
    architecture=$(field architecture <"$work/payload")
    digest=$(field sha256 <"$work/payload")
    size=$(field size <"$work/payload")
    generation=$(field generation <"$work/payload")
    case $generation in
        '' | *[!0-9]* | ????????????????*) generation=0 ;;
    esac
    if [ "$generation" -lt "$lowest_generation" ]; then
        refuse signature "the agent of $server is older than the one that was published for this node"
        return 1
    fi
    if [ "$architecture" != "$machine" ]; then
        refuse signature "the agent of $server is for $architecture, and this node is $machine"
        return 1
    fi
    tail -c "+$(($(wc -c <"$work/head") + 1))" "$work/answer" >"$work/program"
    found=$(wc -c <"$work/program")
    if [ "$found" -lt "$size" ]; then
        log "$server: the connection ended after $found of $size bytes"
        return 1
    fi
    case $digest in
        *[!0-9a-f]*) digest= ;;
    esac
    if [ "$found" -ne "$size" ] || [ "$(sha256sum <"$work/program")" != "$digest  -" ]; then
        refuse signature "the agent of $server is not the one that was signed"
        return 1
    fi
    # The same place as when a driver installs it.
    place=$lib/agent-$(printf '%s' "$digest" | cut -c1-16)
    (umask 022 && mkdir -p "${agent%/*}") &&
        chmod 755 "$work/program" && sync "$work/program" && mv -f "$work/program" "$place" || return 1
    # The agent compares it with what is published later.
    chmod 644 "$work/payload" && mv -f "$work/payload" "$place.json" || return 1
    other=${agent%-agent}
    if [ -L "$other" ] || [ ! -e "$other" ]; then
        link "$place" "$other" || return 1
    fi
    # Last: with it, this script has done its part.
    link "$place" "$agent" || return 1
    log "installed the agent $(field version <"$place.json") from $server"
}

# Asks one server. After a failure, `refusal` is set when asking again would change nothing.
obtain() {
    host=${server#https://}
    host=${host%%/*}
    # A short request first: an address that does not answer must not hold up the others.
    printf 'GET /health HTTP/1.0\r\nHost: %s\r\n\r\n' "$host" | exchange "$server" "$patience" "$small"
    if [ ! -s "$work/answer" ]; then
        # Without OpenSSL's own numbers and file names.
        log "$server does not answer: $(sed -n '/err/{s/^[0-9A-F]*:error:[^:]*://;s/:\.\..*//;p;q;}' "$work/log")"
        return 1
    fi
    printf 'GET /v1/agents/%s HTTP/1.0\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n' \
        "$machine" "$host" "$token" | exchange "$server" 600 "$large"
    head -c 65536 "$work/answer" | sed "/^$cr*\$/q" >"$work/head"
    code=$(status)
    case $code in
        200) install_agent ;;
        408 | 429 | 5?? | '')
            log "$server: no answer, or one to try again later ($code)"
            return 1
            ;;
        *)
            detail=$(head -c 65536 "$work/answer" | sed -n 's/.*"detail": *"\([^"]*\)".*/\1/p' |
                plain | cut -c1-300)
            refuse refused_by_server "$server refused with $code: $detail"
            ;;
    esac
}

# Returns whether a program starts.
works() { [ -x "$1" ] && "$1" --version >/dev/null 2>&1; }

# Puts back an agent that works: an update keeps the one before it.
restore_agent() {
    for name in $(ls -t "$lib" 2>/dev/null); do
        case $name in
            agent-*.* | *[!A-Za-z0-9-]*) continue ;;
            agent-*) ;;
            *) continue ;;
        esac
        if works "$lib/$name" && link "$lib/$name" "$agent"; then
            log "the agent does not start; using $lib/$name instead"
            return
        fi
    done
}

# Waits, longer after each failure, and not all nodes equally long.
pause() {
    random=$(od -An -N2 -tu2 /dev/urandom)
    sleep "$((delay / 2 + random % (delay + 1)))"
    delay=$((delay * 2))
    [ "$delay" -le 60 ] || delay=60
    patience=$((patience * 2))
    [ "$patience" -le 60 ] || patience=60
}

umask 077
attempts=1
first_attempt=$(now)
works "$agent" || restore_agent
if [ ! -x "$agent" ]; then
    machine=$(uname -m)
    token=$(field token 2>/dev/null <"$enrolment" | tr -cd 'A-Za-z0-9._-')
    [ -n "$token" ] || give_up token "there is no provisioning token in $enrolment"
    # Not in memory, where the program may not fit.
    (umask 022 && mkdir -p "$lib") && rm -rf "$work" && mkdir "$work" || exit 1
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '%s' "$authorities" >"$work/authorities.pem"
    delay=1
    patience=5
    while :; do
        refusal=
        unanswered=
        for server in $servers; do
            obtain && break 2
            [ -n "$refusal" ] || unanswered=1
        done
        [ -z "$refusal" ] || give_up "$refusal_word" "$refusal"
        pause
        attempts=$((attempts + 1))
    done
    trap - EXIT HUP INT TERM
fi
# Also what was left by one that was killed.
rm -rf "$work"
exec "$agent" pull --daemon
