# Tries in namespaces of its own whether nodes can have users of their own here. Arguments: a
# directory of the file system that images are on, the first id.
set -u
hold "$2" || exit 1
# Only seen in here.
mount -t tmpfs tmpfs /run && cd /run && mkdir lower upper work root || exit 1
shifted "$1" /run/lower || exit 1
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root || exit 1
kill "$holder"
[ "$(stat -c %u lower)" -ge "$2" ] || { echo "ids are not shifted" >&2; exit 1; }
