//! The identity of a guest: SMBIOS uuid, generation id and hardware addresses. All other values,
//! tags and notes included, are the same in a copy.

use super::config::Config;
use crate::schema::property;
use crate::world::random::Random;

/// Whether a key is a network.
pub(crate) fn is_network(key: &str) -> bool {
    key.strip_prefix("net")
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

impl Config {
    /// Returns the networks, by key.
    pub(crate) fn networks(&self) -> Vec<(String, String)> {
        let values = self.values().iter();
        values
            .filter(|(key, _)| is_network(key))
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect()
    }

    /// Gives each network a new hardware address; its IP address stays.
    pub(crate) fn renew_addresses(&mut self, random: &mut Random) {
        for (key, text) in self.networks() {
            let fresh = random.mac();
            let parts: Vec<String> = text
                .split(',')
                .map(|part| match part.split_once('=') {
                    Some((name, old)) if old.matches(':').count() == 5 => format!("{name}={fresh}"),
                    _ => part.to_owned(),
                })
                .collect();
            self.set(&key, parts.join(","));
        }
    }

    /// Gives a VM a new uuid; the other SMBIOS fields stay.
    pub(crate) fn renew_uuid(&mut self, random: &mut Random) {
        let mut parts = property::split(self.value("smbios1").unwrap_or(""), "");
        parts.retain(|(name, _)| name != "uuid");
        parts.push(("uuid".to_owned(), random.uuid()));
        parts.sort();
        self.set("smbios1", property::join(&parts, ""));
    }

    /// Gives a VM that has a generation id a new one.
    pub(crate) fn renew_generation(&mut self, random: &mut Random) {
        if self.value("vmgenid").is_some() {
            self.set("vmgenid", random.uuid());
        }
    }
}
