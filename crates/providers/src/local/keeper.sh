# Keeps one node: its mounts are its own, so they end with it, however it ends.
# Arguments: wait|go, the node's directory, its image, its group in version 2 or -, groups to
# join, then nspawn's own.
set -u
mode=$1 dir=$2 tree=$3 split=$4 groups=$5
shift 5
if [ "$mode" = wait ]; then
    # Told to go once this process is in its groups; whoever started it may be gone before.
    read -r word && [ "$word" = go ] || exit 1
fi
exec </dev/null
for group in $groups; do
    echo $$ >"$group/cgroup.procs" || exit 1
done
run() { "$@"; }
if [ "$split" != - ]; then
    # Version 2 alone: processes and groups do not mix in one group.
    mkdir -p "$split/keeper" "$split/node"
    echo $$ >"$split/keeper/cgroup.procs" || exit 1
    run() { sh -c 'echo $$ >"$0/node/cgroup.procs" && exec "$@"' "$split" "$@"; }
fi
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$dir/upper,workdir=$dir/work" "$dir/root" || exit 1
if [ -e "$dir/first-boot" ]; then
    chroot "$dir/root" /bin/sh <"$dir/first-boot" || { echo "first boot data could not be written"; exit 1; }
    rm "$dir/first-boot"
fi
while :; do
    run systemd-nspawn "$@"
    end=$?
    [ "$end" = 133 ] || exit "$end"
done
