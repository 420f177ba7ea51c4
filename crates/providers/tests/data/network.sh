# Makes a disk of a root file system, with a kernel and what renders its network: `$1` is the tree,
# `$2` an empty directory, the rest packages. At each boot the machine writes on its console whether
# its address is there and its gateway answers, and ends. Mounts are the process's own.
tree=$1; place=$2; shift 2
root=$place/root
cp -a --reflink=auto "$tree" "$root"
echo 'LABEL=root / ext4 defaults 0 0' > "$root/etc/fstab"
mkdir -p "$root/etc/initramfs-tools/conf.d" "$root/usr/share/initramfs-tools/modules.d"
echo 'MODULES=list' > "$root/etc/initramfs-tools/conf.d/test"
printf '%s\n' ext4 virtio_blk virtio_pci > "$root/usr/share/initramfs-tools/modules.d/test"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
cat /etc/resolv.conf > "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
chroot "$root" apt-get -q update
chroot "$root" apt-get -q -y install initramfs-tools zstd linux-image-cloud-amd64 "$@"
chroot "$root" apt-get clean
rm -rf "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d"
# Nothing is fetched by the machine itself.
rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
umount -R "$root/dev" "$root/proc" "$root/run" "$root/tmp"
cat > "$root/usr/local/sbin/check-network" <<'SCRIPT'
#!/bin/sh
for second in $(seq 600); do
    [ -e /etc/cloud/cloud-init.disabled ] && break
    sleep 1
done
state=lost
for second in $(seq 60); do
    if ip -4 -o addr | grep -q ' 10.0.2.15/24 ' && ping -c1 -W2 10.0.2.2 >/dev/null 2>&1; then
        state=up
        break
    fi
    sleep 1
done
card=$(ip -o link | sed -n 's/^[0-9]*: \([^:]*\): .*02:00:00:00:00:0a.*/\1/p')
echo "NETWORK $state $card" > /dev/ttyS0
if [ "$state" = lost ]; then
    { ip addr; networkctl list; cat /etc/systemd/network/* /etc/netplan/* /etc/network/interfaces.d/*; } > /dev/ttyS0 2>&1
fi
sync
systemctl --force poweroff
SCRIPT
chmod 755 "$root/usr/local/sbin/check-network"
cat > "$root/etc/systemd/system/check-network.service" <<'UNIT'
[Service]
ExecStart=/usr/local/sbin/check-network
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../check-network.service "$root/etc/systemd/system/multi-user.target.wants/check-network.service"
cp "$root"/boot/vmlinuz-* "$place/vmlinuz"
cp "$root"/boot/initrd.img-* "$place/initrd.img"
mke2fs -q -t ext4 -L root -d "$root" "$place/disk.raw" 2G
rm -rf "$root"
