# Starts one virtual machine. It is the first process of its own PID namespace and executes QEMU.
# Arguments: wait|go, the node's directory, its image, its group in version 2 or -, groups to
# join, then QEMU with its own.
set -u
mode=$1 dir=$2 image=$3 split=$4 groups=$5
shift 5
if [ "$mode" = wait ]; then
    # The process that started it may end before it sends `go`.
    read -r word && [ "$word" = go ] || exit 1
fi
exec </dev/null
for group in $groups; do
    # 0 means the writing process: its PID in this namespace differs from that outside.
    echo 0 >"$group/cgroup.procs" || exit 1
done
# The files of a running node are not removed while this lock is held.
exec 8>"$dir/running" && flock --shared 8 || exit 1
# The image is not removed while this is open.
exec 9<"$image/image.json" || exit 1
flock --shared 9
cd "$dir" || exit 1
rm -f qmp.sock agent.sock serial.sock
exec "$@"
