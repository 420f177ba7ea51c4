//! `postures/*.yaml`, schema version 1: security settings of a machine.

use super::declare::{choice, document};
use super::decode::Spanned;
use super::scalar::{Package, Port, Version};

choice! {
    /// How a node may prove itself to the server at its first contact, beside its provisioning token.
    AuthMethod {
        /// By an address in one of the site's `trusted_networks`.
        Network = "network",
        /// By the token of the site, `auth.site_token` in the secrets.
        SiteToken = "site_token",
        /// By a token of its own, `auth.node_tokens` in the secrets.
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
        /// First contact of a node with the server.
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
    /// First contact of a node with the server.
    #[derive(Debug, PartialEq)]
    Auth as "auth" {
        /// How the node may authenticate itself, in addition to its provisioning token.
        method default "network": AuthMethod,
        /// Whether a provisioning token is valid for one request only, instead of until the node
        /// has enrolled.
        single_use default "false": bool,
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
        /// Whether sudo works without a password.
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
