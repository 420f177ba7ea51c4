//! Property strings (`a=b,c=d`), in which Proxmox VE encodes disks, network cards and others.
//!
//! Keeps the order of keys. Does not interpret them.

/// A property string: an optional value without key first, then keys with values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Property {
    /// The leading value without a key, such as a volume.
    pub head: Option<String>,
    /// Keys and values in their order.
    pub fields: Vec<(String, String)>,
}

impl Property {
    /// Starts with a value that has no key.
    pub fn of(head: &str) -> Self {
        Self {
            head: Some(head.to_owned()),
            fields: Vec::new(),
        }
    }

    /// Adds a key and its value, or replaces the value.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        let value = value.into();
        match self.fields.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.fields.push((key.to_owned(), value)),
        }
        self
    }

    /// Reads a property string. Later values without a key are kept as keys without value, which
    /// the API does not write, so that nothing is lost.
    pub fn parse(text: &str) -> Self {
        let mut property = Self::default();
        for part in text.split(',').map(str::trim) {
            if part.is_empty() {
                continue;
            }
            match part.split_once('=') {
                Some((key, value)) => {
                    let field = (key.trim().to_owned(), value.trim().to_owned());
                    property.fields.push(field);
                }
                None if property.head.is_none() && property.fields.is_empty() => {
                    property.head = Some(part.to_owned());
                }
                None => property.fields.push((part.to_owned(), String::new())),
            }
        }
        property
    }

    /// Returns the value of a key.
    pub fn field(&self, key: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_str())
    }

    /// Renders it.
    pub fn render(&self) -> String {
        let fields = self.fields.iter().enumerate().map(|(at, (key, value))| {
            // Without its sign the first would be read as the value without key.
            let bare = value.is_empty() && !key.is_empty() && (at > 0 || self.head.is_some());
            if bare {
                key.clone()
            } else {
                format!("{key}={value}")
            }
        });
        self.head
            .iter()
            .cloned()
            .chain(fields)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Returns the MAC address of a network card, lower case. A VM's card names it after its
    /// model (`virtio=..`) or as `macaddr`, a container's as `hwaddr`.
    pub fn mac(&self) -> Option<String> {
        self.fields
            .iter()
            .filter(|(key, _)| {
                matches!(
                    key.as_str(),
                    "virtio" | "e1000" | "e1000e" | "rtl8139" | "vmxnet3" | "macaddr" | "hwaddr"
                )
            })
            .map(|(_, value)| value.to_ascii_lowercase())
            .find(|value| is_mac(value))
    }
}

/// Returns whether a text is a MAC address with colons.
pub fn is_mac(text: &str) -> bool {
    let mut parts = 0;
    text.split(':').all(|part| {
        parts += 1;
        part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    }) && parts == 6
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn recorded_disks_and_network_cards_are_parsed() {
        let disk = Property::parse("local:130/vm-130-disk-0.qcow2,size=1G");
        assert_eq!(disk.head.as_deref(), Some("local:130/vm-130-disk-0.qcow2"));
        assert_eq!(disk.field("size"), Some("1G"));
        let card = Property::parse("virtio=BC:24:11:2B:07:24,bridge=vmbr0");
        assert_eq!(card.mac().as_deref(), Some("bc:24:11:2b:07:24"));
        let card = Property::parse(
            "name=eth0,bridge=vmbr0,gw=10.77.0.1,hwaddr=BC:24:11:D8:DB:CB,ip=10.77.0.231/24",
        );
        assert_eq!(card.mac().as_deref(), Some("bc:24:11:d8:db:cb"));
        assert_eq!(
            Property::parse("none,media=cdrom").head.as_deref(),
            Some("none")
        );
        assert_eq!(Property::parse(" "), Property::default());
    }

    #[test]
    fn a_field_is_set_once() {
        let property = Property::of("local:1")
            .with("size", "1G")
            .with("size", "2G");
        assert_eq!(property.render(), "local:1,size=2G");
    }

    proptest! {
        #[test]
        fn it_reads_back(
            head in proptest::option::of("[a-zA-Z0-9:/._-]{1,20}"),
            fields in proptest::collection::vec(("[a-z][a-z0-9_-]{0,8}", "[a-zA-Z0-9:/._=-]{1,12}"), 0..5),
        ) {
            let property = Property { head, fields };
            prop_assert_eq!(Property::parse(&property.render()), property);
        }

        #[test]
        fn any_text_can_be_parsed(text in ".{0,60}") {
            let _ = Property::parse(&text).mac();
        }
    }
}
