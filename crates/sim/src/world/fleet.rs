//! Creates a World with many hosts and guests, without calls.

use super::state::{Boots, Kind, Volume};
use super::{Builder, World};

impl World {
    /// Builds a cluster of `hosts` hosts with `guests` guests spread over them.
    pub fn fleet(builder: Builder, hosts: u32, guests: u32) -> Self {
        let mut builder = builder.cluster("fleet");
        for at in 1..=hosts {
            builder = builder.host(&format!("pve{at:03}"));
        }
        let world = builder.build();
        world.fill(guests);
        world
    }

    /// Adds stopped guests with ids from 100 on, distributed over the hosts in turn.
    pub fn fill(&self, guests: u32) {
        let hosts: Vec<String> = self.state().hosts.keys().cloned().collect();
        for (vmid, host) in (100..).take(guests as usize).zip(hosts.iter().cycle()) {
            self.add_stopped_guest(vmid, host);
        }
    }

    fn add_stopped_guest(&self, vmid: u32, host: &str) {
        let ctime = self.epoch();
        let (uuid, mac) = {
            let mut state = self.state();
            (state.random.uuid(), state.random.mac())
        };
        let disk = format!("{vmid}/vm-{vmid}-disk-0.qcow2");
        let config = [
            ("name", format!("guest-{vmid}")),
            ("memory", "2048".to_owned()),
            ("cores", "2".to_owned()),
            ("ostype", "l26".to_owned()),
            ("scsihw", "virtio-scsi-single".to_owned()),
            ("scsi0", format!("local:{disk},size=8G")),
            ("boot", "order=scsi0".to_owned()),
            ("net0", format!("virtio={mac},bridge=vmbr0")),
            ("smbios1", format!("uuid={uuid}")),
            ("agent", "1".to_owned()),
            ("tags", format!("fleet;g{}", vmid % 10)),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        self.put_guest(host, Kind::Qemu, vmid, config.into());
        let volume = Volume {
            content: "images",
            format: "qcow2".to_owned(),
            size: 8 << 30,
            used: 1 << 20,
            ctime,
            vmid: Some(vmid),
            parent: None,
            boots: Boots::System,
            backup: None,
        };
        let mut state = self.state();
        let _ = state.add_volume(host, "local", &disk, volume);
        if let Some(guest) = state.guests.get_mut(&vmid) {
            guest.boots = Boots::System;
        }
    }
}
