# Supervises one container node. It is the first process of its own PID and mount namespaces: when
# it ends, for whatever reason, the kernel ends all other processes of the node.
# Arguments: wait|go, the node's directory, its image, its group in version 2 or -, groups to
# join, the first id of its users on the machine or -, then nspawn's own.
set -u
mode=$1 dir=$2 tree=$3 split=$4 groups=$5 ids=$6
shift 6
if [ "$mode" = wait ]; then
    # The process that started it may end before it sends `go`.
    read -r word && [ "$word" = go ] || exit 1
fi
exec </dev/null
for group in $groups; do
    # 0 means the writing process: its PID in this namespace differs from that outside.
    echo 0 >"$group/cgroup.procs" || exit 1
done
# Control groups use kernel memory that counts towards no limit. 64 levels and 4,096 groups are
# several times what systemd creates, also for nested nodes.
own=$(awk '/ - cgroup2 / { top = $5 } sub(/^0::/, "") { below = $0 } END { print top below }' /proc/self/mountinfo /proc/self/cgroup)
if [ -e "$own/cgroup.max.depth" ]; then
    echo 64 >"$own/cgroup.max.depth" && echo 4096 >"$own/cgroup.max.descendants" || exit 1
    # Version 1 has no such limit: a node with a user namespace has no access to it.
    [ "$ids" = - ] || export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
fi
run() { "$@"; }
if [ "$split" != - ]; then
    # With version 2 only: a group cannot contain both processes and groups.
    mkdir -p "$split/keeper" "$split/node"
    echo 0 >"$split/keeper/cgroup.procs" || exit 1
    run() { sh -c 'echo 0 >"$0/node/cgroup.procs" && exec "$@"' "$split" "$@"; }
fi
# The files of a running node are not removed while this lock is held.
exec 9>"$dir/running" && flock --shared 9 || exit 1
inside() { chroot "$dir/root" "$@"; }
if [ "$ids" != - ]; then
    hold "$ids" || { echo "the kernel cannot create a user namespace"; exit 1; }
    shifted "$tree" "$dir/root" || { echo "the ids of the image cannot be shifted"; exit 1; }
    tree=$dir/root
    # nsenter opens the root first: users in the namespace cannot enter our directories.
    inside() { nsenter --user="/proc/$holder/ns/user" --root="$dir/root" --wd="$dir/root" -- "$@"; }
    # nspawn queries udev about links unless this is read-only, and udev is not in this namespace.
    mount -o remount,bind,ro /sys
fi
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$dir/upper,workdir=$dir/work" "$dir/root" || exit 1
if [ -e "$dir/first-boot" ]; then
    inside /bin/sh <"$dir/first-boot" 9>&- || { echo "first boot data could not be written"; exit 1; }
    rm "$dir/first-boot"
fi
[ "$ids" = - ] || kill "$holder"
# A node whose first process was killed, which a user can cause by using all its memory, is started
# again. nspawn exits with 1 then, and also if it cannot start the node, so attempts are limited.
# It also exits with 1 at the second request to stop, which ends the node at once.
uptime() { cut -d. -f1 /proc/uptime; }
tries=0
while :; do
    begun=$(uptime)
    run systemd-nspawn "$@" 9>&-
    end=$?
    [ ! -e "$dir/stopping" ] || exit "$end"
    [ "$end" = 133 ] && continue
    [ $(($(uptime) - begun)) -lt 60 ] || tries=0
    tries=$((tries + 1))
    [ "$end" = 1 ] && [ "$tries" -le 3 ] || exit "$end"
    echo "restarting the node"
done
