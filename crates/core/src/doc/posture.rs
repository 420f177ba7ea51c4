//! `postures/*.yaml`, schema version 1: how a machine is secured.
//!
//! In: a tree. Out: [`Posture`], everything optional as written.
//! Never: defaults; the resolver applies them.

use super::declare::{choice, document};
use super::decode::Spanned;
use super::scalar::{Package, Port, Version};

choice! {
    /// How a node of this posture proved itself before provisioning tokens existed.
    AuthMethod {
        /// By being on the network.
        Network = "network",
        /// By the site's token.
        SiteToken = "site_token",
        /// By a token of its own.
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
    /// A posture: how a machine is secured.
    #[derive(Debug, PartialEq)]
    Posture as "the posture" {
        /// Always 1.
        schema_version: Version<1>,
        /// One line for people.
        description: String,
        /// How the node proves itself; superseded by provisioning tokens.
        auth: Auth,
        /// The SSH server.
        ssh: Ssh,
        /// Becoming root.
        sudo: Sudo,
        /// Banning addresses that guess passwords.
        fail2ban: Fail2ban,
        /// Packages beside those of the spec.
        packages: Vec<Spanned<Package>>,
    }
}

document! {
    /// How the node proves itself.
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
        /// Whether root may log in; quote the word.
        permit_root_login default "\"prohibit-password\"": PermitRootLogin,
        /// Whether passwords are accepted; quote the word.
        password_authentication default "\"no\"": YesNo,
    }
}

document! {
    /// Becoming root.
    #[derive(Debug, PartialEq)]
    Sudo as "sudo" {
        /// Whether sudo asks for no password.
        nopasswd default "false": bool,
    }
}

document! {
    /// Banning addresses that guess passwords.
    #[derive(Debug, PartialEq)]
    Fail2ban as "fail2ban" {
        /// Whether it runs.
        enabled default "false": bool,
    }
}
