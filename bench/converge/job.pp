package { ['tree', 'nginx-light']:
  ensure          => present,
  install_options => ['--no-install-recommends'],
}
user { 'deploy': ensure => present, shell => '/bin/bash', managehome => true }
-> file { '/home/deploy/.ssh': ensure => directory, owner => 'deploy', group => 'deploy', mode => '0700' }
-> file { '/home/deploy/.ssh/authorized_keys': source => '/srv/key.pub', owner => 'deploy', group => 'deploy', mode => '0600' }
file { '/etc/sudoers.d/deploy':
  content      => "deploy ALL=(ALL:ALL) NOPASSWD: ALL\n",
  mode         => '0440',
  validate_cmd => '/usr/sbin/visudo -cf %',
}
file { '/etc/ssh/sshd_config.d/10-bench.conf': source => '/srv/sshd.conf', mode => '0644' }
~> exec { 'reload': command => '/usr/bin/systemctl reload ssh', refreshonly => true }
file { '/etc/motd': content => "measured\n", mode => '0644' }
exec { 'name':
  command  => '/usr/bin/hostnamectl set-hostname bench-node',
  unless   => '[ "$(hostname)" = bench-node ]',
  provider => shell,
}
service { 'nginx': ensure => running, enable => true, require => Package['nginx-light'] }
