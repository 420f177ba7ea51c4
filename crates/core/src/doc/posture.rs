//! `postures/*.yaml`, schema version 1: security settings of a machine.

use super::declare::{choice, document};
use super::decode::Spanned;
use super::scalar::{Package, Port, Version};

choice! {
    /// How a node authenticated before provisioning tokens existed.
    AuthMethod {
        /// By its network.
        Network = "network",
        /// By the token of the site.
        SiteToken = "site_token",
        /// By its own token.
        NodeToken = "node_token",
    }
}

choice! {
    /// Whether root may log in over SSH.
    PermitRootLogin {
        /// With key or password.
        Yes = "yes",
        /// Not at all.
        No = "no",
        /// With a key only.
        ProhibitPassword = "prohibit-password",
    }
}

choice! {
    /// A `yes` or `no` of the SSH server, written as text.
    YesNo {
        /// `yes`
        Yes = "yes",
        /// `no`
        No = "no",
    }
}

document! {
    /// A posture: security settings of a machine.
    #[derive(Debug, PartialEq)]
    Posture as "the posture" {
        /// Always 1.
        schema_version: Version<1>,
        /// One-line description.
        description: String,
        /// Authentication of the node; superseded by provisioning tokens.
        auth: Auth,
        /// The SSH server.
        ssh: Ssh,
        /// sudo.
        sudo: Sudo,
        /// fail2ban, which blocks addresses after failed logins.
        fail2ban: Fail2ban,
        /// Packages in addition to those of the spec.
        packages: Vec<Spanned<Package>>,
    }
}

document! {
    /// Authentication of the node.
    #[derive(Debug, PartialEq)]
    Auth as "auth" {
        /// The method.
        method default "network": AuthMethod,
    }
}

document! {
    /// The SSH server.
    #[derive(Debug, PartialEq)]
    Ssh as "ssh" {
        /// Port it listens on.
        port default "22": Port,
        /// Whether root may log in, as a quoted string.
        permit_root_login default "\"prohibit-password\"": PermitRootLogin,
        /// Whether passwords are accepted, as a quoted string.
        password_authentication default "\"no\"": YesNo,
    }
}

document! {
    /// sudo.
    #[derive(Debug, PartialEq)]
    Sudo as "sudo" {
        /// Whether sudo needs no password.
        nopasswd default "false": bool,
    }
}

document! {
    /// fail2ban, which blocks addresses after failed logins.
    #[derive(Debug, PartialEq)]
    Fail2ban as "fail2ban" {
        /// Whether it is enabled.
        enabled default "false": bool,
    }
}
