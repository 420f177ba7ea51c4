//! Where the server of a site is, for this driver and for nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

use reqwest::Url;

use super::{PORT, PublishTarget};
use crate::error::DriverError;
use crate::session::Session;
use crate::settings::DriverSettings;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEndpoint {
    /// The URL that the operator or the site sets, for everyone.
    url: Option<String>,
    /// The port, if it is on this machine.
    port: Option<u16>,
    /// The address of this machine that it listens on, if it may be the only one.
    address: Option<IpAddr>,
}

impl ServerEndpoint {
    /// A server on this machine.
    pub fn here(port: u16) -> Self {
        Self {
            url: None,
            port: Some(port),
            address: None,
        }
    }

    /// A server on this machine that listens on an address.
    pub fn here_at(address: IpAddr, port: u16) -> Self {
        Self {
            address: Some(address).filter(|address| !address.is_unspecified()),
            ..Self::here(port)
        }
    }

    /// Returns where the server of a site is: at the URL of the settings, else of the site, else on
    /// this machine. It may wait for a name server.
    pub fn of_site(session: &Session, settings: &DriverSettings) -> Result<Self, DriverError> {
        if let Some(url) = url_of_site(session, settings) {
            return Self::from_url(&url);
        }
        match PublishTarget::of_site(session, settings) {
            Some(target @ PublishTarget::Remote { .. }) => {
                let message = format!("The site publishes to `{target}`, and its URL is not set.");
                Err(DriverError::usage(message).hint(
                    "set HOMESTAK_SERVER, or `server_url` in site.yaml, to https://ADDRESS:PORT",
                ))
            }
            Some(PublishTarget::Directory(_)) | None => Ok(Self::here(PORT)),
        }
    }

    /// Returns the name or address in the URL that is set for the server of a site: its certificate must
    /// be for it, also where it is not one of the server's machine.
    pub fn name(session: &Session, settings: &DriverSettings) -> Option<String> {
        host_of(&url_of_site(session, settings)?)
    }

    /// Returns the port in the URL that is set for the server of a site, if the URL is of this machine.
    /// It may wait for a name server.
    pub fn port_in_url(
        session: &Session,
        settings: &DriverSettings,
    ) -> Result<Option<u16>, DriverError> {
        match url_of_site(session, settings) {
            Some(url) => Ok(Self::from_url(&url)?.port()),
            None => Ok(None),
        }
    }

    fn from_url(url: &str) -> Result<Self, DriverError> {
        let wrong = |why: &str| {
            DriverError::usage(format!("The server's URL `{url}` cannot be used: {why}."))
                .hint("set HOMESTAK_SERVER, or `server_url` in site.yaml, to https://ADDRESS:PORT")
        };
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if parsed.scheme() != "https" {
            return Err(wrong("it does not begin with `https://`"));
        }
        let port = parsed.port_or_known_default().unwrap_or(PORT);
        let host = parsed.host_str().ok_or_else(|| wrong("it has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // A name that cannot be resolved is not one of this machine.
        let addresses = (host, port).to_socket_addrs();
        let addresses: Vec<_> = addresses.map_or_else(|_| Vec::new(), Iterator::collect);
        let is_here = addresses.iter().any(|one| is_own(one.ip()));
        let is_loopback =
            !addresses.is_empty() && addresses.iter().all(|one| one.ip().is_loopback());
        Ok(Self {
            // A node that used an address of loopback would reach itself.
            url: (!is_loopback).then(|| url.trim_end_matches('/').to_owned()),
            port: is_here.then_some(port),
            // A name may have addresses that it does not listen on.
            address: host.parse().ok().filter(|_| is_here),
        })
    }

    /// Returns the port of a server on this machine.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Returns the port, also of a server on another machine.
    pub fn effective_port(&self) -> u16 {
        let of_url = || {
            Url::parse(self.url.as_deref()?)
                .ok()?
                .port_or_known_default()
        };
        self.port.or_else(of_url).unwrap_or(PORT)
    }

    /// Returns where a server on this machine is reached.
    pub(super) fn socket(&self) -> Option<SocketAddr> {
        let address = self.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Some(SocketAddr::new(address, self.port?))
    }

    /// Returns the URL for this driver.
    pub fn url(&self) -> String {
        match (self.socket(), &self.url) {
            (Some(socket), _) => format!("https://{socket}"),
            (None, Some(url)) => url.clone(),
            (None, None) => format!("https://127.0.0.1:{PORT}"),
        }
    }

    /// Returns the URL for a node: with this machine's source address for that node. `None` when
    /// this machine has none.
    pub fn url_for(&self, node: &NodeRoute) -> Option<String> {
        if let Some(url) = &self.url {
            return Some(url.clone());
        }
        let own = match self.address.filter(|address| !address.is_loopback()) {
            Some(address) => address,
            None => node.own_address()?,
        };
        Some(format!("https://{}", SocketAddr::new(own, self.port?)))
    }
}

/// Addresses that determine the route to a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeRoute {
    /// Its address, if it is known.
    pub address: Option<IpAddr>,
    /// Its gateway.
    pub gateway: Option<IpAddr>,
    /// Whether this machine hosts the node; the gateway is then an address of this machine.
    pub is_local: bool,
}

impl NodeRoute {
    fn own_address(&self) -> Option<IpAddr> {
        if let Some(gateway) = self.gateway.filter(|_| self.is_local) {
            return Some(gateway);
        }
        // With DHCP neither is known yet: use the source address of the default route.
        let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        source_address(self.address.or(self.gateway).unwrap_or(other))
    }
}

/// Returns the source address that this machine uses for another. Nothing is sent.
fn source_address(towards: IpAddr) -> Option<IpAddr> {
    let any = match towards {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((towards, PORT)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

/// Returns the URL of the settings, else of the site.
fn url_of_site(session: &Session, settings: &DriverSettings) -> Option<String> {
    let of_site = || {
        let url = session.catalog.defaults()?.server_url.as_ref()?;
        Some(url.0.as_ref()?.as_str().to_owned())
    };
    settings.server.clone().or_else(of_site)
}

/// Returns the name or address in a URL.
fn host_of(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?;
    Some(
        host.trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned(),
    )
}

/// Returns whether an address is one of this machine.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_a_url_of_this_machine_from_another() {
        let here = ServerEndpoint::from_url("https://127.0.0.1:5000/").expect("a URL");
        assert_eq!(here.port(), Some(5000));
        assert_eq!(here.url(), "https://127.0.0.1:5000");
        let local = NodeRoute {
            gateway: Some([10, 77, 0, 1].into()),
            is_local: true,
            ..NodeRoute::default()
        };
        let for_node = here.url_for(&local);
        assert_eq!(for_node.as_deref(), Some("https://10.77.0.1:5000"));
        let only = ServerEndpoint::here_at([127, 0, 0, 2].into(), 5000);
        assert_eq!(only.url(), "https://127.0.0.2:5000");
        let any = ServerEndpoint::here_at([0, 0, 0, 0].into(), 5000);
        assert_eq!(any.url(), "https://127.0.0.1:5000");
        let there = ServerEndpoint::from_url("https://192.0.2.7:44443").expect("a URL");
        assert_eq!(there.port(), None);
        assert_eq!(there.url(), "https://192.0.2.7:44443");
        let route = NodeRoute::default();
        let url = there.url_for(&route);
        assert_eq!(url.as_deref(), Some("https://192.0.2.7:44443"));
        for wrong in ["http://127.0.0.1:44443", "127.0.0.1", "https://"] {
            ServerEndpoint::from_url(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn the_certificate_of_the_server_is_for_the_name_or_address_of_its_url() {
        for (url, host) in [
            ("https://driver.example.org:44443", "driver.example.org"),
            ("https://192.0.2.7", "192.0.2.7"),
            ("https://[2001:db8::7]:44443/", "2001:db8::7"),
        ] {
            assert_eq!(host_of(url).as_deref(), Some(host));
        }
        assert_eq!(host_of("no URL"), None);
    }

    #[test]
    fn a_node_gets_the_source_address_of_its_route() {
        let here = ServerEndpoint::here(PORT);
        let url = |route: NodeRoute| here.url_for(&route);
        let loopback = NodeRoute {
            address: Some([127, 0, 0, 9].into()),
            ..NodeRoute::default()
        };
        assert_eq!(url(loopback).as_deref(), Some("https://127.0.0.1:44443"));
        let local = NodeRoute {
            address: Some([10, 77, 0, 9].into()),
            gateway: Some([10, 77, 0, 1].into()),
            is_local: true,
        };
        assert_eq!(url(local).as_deref(), Some("https://10.77.0.1:44443"));
    }
}
