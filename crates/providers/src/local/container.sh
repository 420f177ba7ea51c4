# Keeps one node. It is the first process of a namespace of its own, and so are its mounts: when it
# ends, however it ends, the kernel ends everything else of the node.
# Arguments: wait|go, the node's directory, its image, its group in version 2 or -, groups to
# join, the first id of its users on the machine or -, then nspawn's own.
set -u
mode=$1 dir=$2 tree=$3 split=$4 groups=$5 ids=$6
shift 6
if [ "$mode" = wait ]; then
    # Whoever started it may be gone before it is told to go.
    read -r word && [ "$word" = go ] || exit 1
fi
exec </dev/null
for group in $groups; do
    # 0 is whoever writes it: the number in here is another one than outside.
    echo 0 >"$group/cgroup.procs" || exit 1
done
# Groups take memory of the kernel that no limit counts. 64 levels and 4,096 groups are several times
# what systemd makes, also where nodes run in nodes.
own=$(awk '/ - cgroup2 / { top = $5 } sub(/^0::/, "") { below = $0 } END { print top below }' /proc/self/mountinfo /proc/self/cgroup)
if [ -e "$own/cgroup.max.depth" ]; then
    echo 64 >"$own/cgroup.max.depth" && echo 4096 >"$own/cgroup.max.descendants" || exit 1
    # Version 1 has no such limit: a node with users of its own is given none of it.
    [ "$ids" = - ] || export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
fi
run() { "$@"; }
if [ "$split" != - ]; then
    # Version 2 alone: processes and groups do not mix in one group.
    mkdir -p "$split/keeper" "$split/node"
    echo 0 >"$split/keeper/cgroup.procs" || exit 1
    run() { sh -c 'echo 0 >"$0/node/cgroup.procs" && exec "$@"' "$split" "$@"; }
fi
# Nobody removes the files of a node that runs, by whatever path they come.
exec 9>"$dir/running" && flock --shared 9 || exit 1
inside() { chroot "$dir/root" "$@"; }
if [ "$ids" != - ]; then
    hold "$ids" || { echo "the kernel cannot create a user namespace"; exit 1; }
    shifted "$tree" "$dir/root" || { echo "the ids of the image cannot be shifted"; exit 1; }
    tree=$dir/root
    # It is opened before the namespace is entered: in there, nobody may look into our directories.
    inside() { nsenter --user="/proc/$holder/ns/user" --root="$dir/root" --wd="$dir/root" -- "$@"; }
    # nspawn asks udev about links unless this is read-only, and udev does not know this namespace.
    mount -o remount,bind,ro /sys
fi
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$dir/upper,workdir=$dir/work" "$dir/root" || exit 1
if [ -e "$dir/first-boot" ]; then
    inside /bin/sh <"$dir/first-boot" 9>&- || { echo "first boot data could not be written"; exit 1; }
    rm "$dir/first-boot"
fi
[ "$ids" = - ] || kill "$holder"
# A node whose first process was killed, which one user can bring about by taking all its memory, is
# started again. nspawn ends with 1 then, and also where it cannot start one, so that it gives up.
uptime() { cut -d. -f1 /proc/uptime; }
tries=0
while :; do
    begun=$(uptime)
    run systemd-nspawn "$@" 9>&-
    end=$?
    [ "$end" = 133 ] && continue
    [ $(($(uptime) - begun)) -lt 60 ] || tries=0
    tries=$((tries + 1))
    [ "$end" = 1 ] && [ "$tries" -le 3 ] || exit "$end"
    echo "restarting the node"
done
