packages:
  pkg.installed: [{pkgs: [tree, nginx-light]}, {install_recommends: false}, {refresh: false}]
deploy:
  user.present: [{shell: /bin/bash}, {home: /home/deploy}]
/home/deploy/.ssh:
  file.directory: [{user: deploy}, {group: deploy}, {mode: '0700'}]
/home/deploy/.ssh/authorized_keys:
  file.managed: [{source: /srv/key.pub}, {user: deploy}, {group: deploy}, {mode: '0600'}]
/etc/sudoers.d/deploy:
  file.managed:
    - contents: 'deploy ALL=(ALL:ALL) NOPASSWD: ALL'
    - mode: '0440'
    - check_cmd: /usr/sbin/visudo -cf
/etc/ssh/sshd_config.d/10-bench.conf:
  file.managed: [{source: /srv/sshd.conf}, {mode: '0644'}]
ssh:
  service.running: [{reload: true}, {watch: [{file: /etc/ssh/sshd_config.d/10-bench.conf}]}]
/etc/motd:
  file.managed: [{contents: measured}, {mode: '0644'}]
hostnamectl set-hostname bench-node:
  cmd.run: [{unless: '[ "$(hostname)" = bench-node ]'}]
nginx:
  service.running: [{enable: true}]
