//! Addresses and networks, such as `192.0.2.7`, `192.0.2.7/24`, `192.0.2.0/24` and `dhcp`.

use std::net::IpAddr;

use serde_json::json;

use super::code::Code;
use super::decode::{Context, Decode};
use super::schema::Definitions;
use super::tree::Value;

/// An address with the length of its network prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network prefix, in bits.
    pub prefix: u8,
}

impl Cidr {
    /// Reads `address/prefix`.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let digits =
            !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = digits.then(|| prefix.parse().ok())??;
        (u32::from(prefix) <= width(ip)).then_some(Self { ip, prefix })
    }

    /// Returns the network of this address.
    pub fn network(self) -> Self {
        Self {
            ip: masked(self.ip, self.prefix, false),
            prefix: self.prefix,
        }
    }

    /// Returns the last address of the network: the broadcast address in IPv4.
    pub fn last(self) -> IpAddr {
        masked(self.ip, self.prefix, true)
    }

    /// Returns whether `ip` is in this network.
    pub fn contains(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.ip.is_ipv4() && masked(ip, self.prefix, false) == self.network().ip
    }

    /// Returns whether `ip` is the network or broadcast address.
    pub fn is_reserved(self, ip: IpAddr) -> bool {
        let point_to_point = u32::from(self.prefix) + 1 >= width(self.ip);
        !point_to_point && (ip == self.network().ip || (ip.is_ipv4() && ip == self.last()))
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Sets all bits after the prefix to zero or to one.
fn masked(ip: IpAddr, prefix: u8, ones: bool) -> IpAddr {
    let host_bits = width(ip).saturating_sub(u32::from(prefix));
    match ip {
        IpAddr::V4(ip) => {
            let host = 1u32.checked_shl(host_bits).unwrap_or(0).wrapping_sub(1);
            let bits = u32::from(ip);
            IpAddr::V4(if ones { bits | host } else { bits & !host }.into())
        }
        IpAddr::V6(ip) => {
            let host = 1u128.checked_shl(host_bits).unwrap_or(0).wrapping_sub(1);
            let bits = u128::from(ip);
            IpAddr::V6(if ones { bits | host } else { bits & !host }.into())
        }
    }
}

/// How a machine gets its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// From a DHCP server.
    Dhcp,
    /// Static.
    Static {
        /// The address.
        ip: IpAddr,
        /// The prefix, if given.
        prefix: Option<u8>,
    },
}

impl Address {
    /// Reads `dhcp`, an address, or an address with a prefix.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "dhcp" {
            return Some(Self::Dhcp);
        }
        if let Ok(ip) = text.parse() {
            return Some(Self::Static { ip, prefix: None });
        }
        Cidr::parse(text).map(|cidr| Self::Static {
            ip: cidr.ip,
            prefix: Some(cidr.prefix),
        })
    }
}

const IPV4: &str = r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])";
const IPV6: &str = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*";

impl Decode for IpAddr {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        if let Ok(ip) = text.parse() {
            return Some(ip);
        }
        let hint = match Cidr::parse(text) {
            Some(cidr) => format!("remove the prefix: `{}`", cidr.ip),
            None => "write an IPv4 or IPv6 address, such as `192.0.2.1`".into(),
        };
        let message = format!("{} is not an address", cx.quoted(text));
        cx.error(Code::Malformed, value.span, message, hint);
        None
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": format!("^({IPV4}|{IPV6})$") })
    }
}

impl Decode for Cidr {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let cidr = Self::parse(text);
        if cidr.is_none() {
            let message = format!("{} is not an address with a prefix", cx.quoted(text));
            cx.error(
                Code::Malformed,
                value.span,
                message,
                "write it as `192.0.2.0/24`",
            );
        }
        cidr
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": format!("^({IPV4}|{IPV6})/[0-9]{{1,3}}$") })
    }
}

impl Decode for Address {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let address = Self::parse(text);
        if address.is_none() {
            let message = format!("{} is not an address", cx.quoted(text));
            let hint = if text.contains(':') {
                "write `dhcp`, `\"2001:db8::7\"` or `\"2001:db8::7/64\"`"
            } else {
                "write `dhcp`, `192.0.2.7` or `192.0.2.7/24`"
            };
            cx.error(Code::Malformed, value.span, message, hint);
        }
        address
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        json!({ "type": "string", "pattern": format!("^(dhcp|({IPV4}|{IPV6})(/[0-9]{{1,3}})?)$") })
    }
}
