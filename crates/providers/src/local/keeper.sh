# Keeps one node. It is the first process of a namespace of its own, and so are its mounts: when it
# ends, however it ends, the kernel ends everything else of the node.
# Arguments: wait|go, the node's directory, its image, its group in version 2 or -, groups to
# join, then nspawn's own.
set -u
mode=$1 dir=$2 tree=$3 split=$4 groups=$5
shift 5
if [ "$mode" = wait ]; then
    # Whoever started it may be gone before it is told to go.
    read -r word && [ "$word" = go ] || exit 1
fi
exec </dev/null
for group in $groups; do
    # 0 is whoever writes it: the number in here is another one than outside.
    echo 0 >"$group/cgroup.procs" || exit 1
done
run() { "$@"; }
if [ "$split" != - ]; then
    # Version 2 alone: processes and groups do not mix in one group.
    mkdir -p "$split/keeper" "$split/node"
    echo 0 >"$split/keeper/cgroup.procs" || exit 1
    run() { sh -c 'echo 0 >"$0/node/cgroup.procs" && exec "$@"' "$split" "$@"; }
fi
# Nobody removes the files of a node that runs, by whatever path they come.
exec 9>"$dir/running" && flock --shared 9 || exit 1
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
