# Checks in a shell whether the node is configured, as fast as a shell can.
set -e
[ "$(dpkg-query -W -f '${Status}\n' tree nginx-light | sort -u)" = "install ok installed" ]
grep -q '^deploy:.*:/bin/bash$' /etc/passwd
[ "$(stat -c %U:%a /home/deploy/.ssh /home/deploy/.ssh/authorized_keys /etc/sudoers.d/deploy | tr '\n' ' ')" = "deploy:700 deploy:600 root:440 " ]
[ "$(cat /etc/motd)" = measured ]
grep -q '^PasswordAuthentication no' /etc/ssh/sshd_config.d/10-bench.conf
[ "$(cat /proc/sys/kernel/hostname)" = bench-node ]
systemctl is-enabled --quiet nginx
systemctl is-active --quiet nginx
echo done
