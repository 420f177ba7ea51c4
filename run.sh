#!/usr/bin/env bash
# The familiar entry point: builds the release binaries when they are missing or older than the
# sources, then becomes the driver with the same arguments.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
binary=${CARGO_TARGET_DIR:-$here/target}/release/homestak

outdated() {
    [ -x "$binary" ] && [ -x "$binary-agent" ] || return 0
    [ -n "$(find "$here/crates" "$here/stock-site" "$here/Cargo.toml" "$here/Cargo.lock" \
        -newer "$binary" -type f \( -name '*.rs' -o -name '*.sh' -o -name '*.toml' -o -name '*.lock' \
        -o -path '*/stock-site/*' \) -not -path '*/tests/*' -print -quit)" ]
}

if outdated; then
    echo "Building homestak (release); the first time takes a few minutes." >&2
    # Messages of the build are talk, so they go to stderr.
    (cd "$here" && cargo build --release --locked --package homestak --package homestak-agent) >&2
    # A build that found nothing to do leaves the old time, and would be tried again each time.
    touch "$binary" "$binary-agent"
fi
exec "$binary" "$@"
