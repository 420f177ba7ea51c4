//! How nodes may authenticate at their first contact, besides their provisioning token: by their
//! posture, the secrets and the trusted networks of the site.

use homestak_api::publication::{FirstContact, sha256};
use homestak_core::catalog::Catalog;
use homestak_core::doc::posture::{AuthMethod, Posture};
use homestak_core::resolve::spec::DEFAULT_POSTURE;

/// Networks that are trusted when the site names none.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// How a node may prove itself at its first contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContactRule {
    pub(super) method: FirstContact,
    /// SHA-256 of the token that the method needs; the method is of no use without.
    pub(super) token_sha256: Option<String>,
    pub(super) single_use: bool,
}

/// Returns the networks that the site trusts.
pub(super) fn trusted_networks(catalog: &Catalog) -> Vec<String> {
    let site = catalog.site.as_ref();
    let networks = site.and_then(|site| site.value.as_ref()?.trusted_networks.as_ref());
    match networks {
        None => LOOPBACK.map(str::to_owned).into(),
        Some(networks) => networks.value.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the rule for a node with a spec.
pub(super) fn rule(catalog: &Catalog, node: &str, spec: &str) -> ContactRule {
    let auth = posture(catalog, spec).and_then(|posture| posture.auth.as_ref());
    let method = auth.and_then(|auth| auth.method.as_ref());
    let method = method.map_or(AuthMethod::Network, |method| method.value);
    let single_use = auth.and_then(|auth| auth.single_use.as_ref());
    let secrets = catalog.secrets.as_ref();
    let tokens = secrets.and_then(|secrets| secrets.value.as_ref()?.auth.as_ref());
    let (method, token) = match method {
        AuthMethod::Network => (FirstContact::Network, None),
        AuthMethod::SiteToken => {
            let token = tokens.and_then(|tokens| tokens.site_token.as_ref());
            (FirstContact::SiteToken, token)
        }
        AuthMethod::NodeToken => {
            let own = tokens.and_then(|tokens| tokens.node_tokens.as_ref()?.value.get(node));
            (FirstContact::NodeToken, own)
        }
    };
    // An empty token would be everyone's.
    let token = token.map(|token| token.expose().trim());
    let token = token.filter(|token| !token.is_empty());
    ContactRule {
        method,
        token_sha256: token.map(|token| sha256(token.as_bytes())),
        single_use: single_use.is_some_and(|single_use| single_use.value),
    }
}

fn posture<'c>(catalog: &'c Catalog, spec: &str) -> Option<&'c Posture> {
    let spec = catalog.specs.get(spec)?.value.as_ref()?;
    let named = spec
        .access
        .as_ref()
        .and_then(|access| access.posture.as_ref());
    let name = named.map_or(DEFAULT_POSTURE, |name| name.value.as_str());
    catalog.postures.get(name)?.value.as_ref()
}

#[cfg(test)]
mod tests {
    use homestak_core::catalog::InputDocument;
    use homestak_core::doc::DocumentKind;

    use super::*;

    fn catalog(site: &str, auth: &str, secrets: &str) -> Catalog {
        let posture = format!("auth: {auth}\n");
        let documents = [
            (DocumentKind::Site, "site", site),
            (DocumentKind::Posture, "strict", posture.as_str()),
            (DocumentKind::Spec, "web", "access: {posture: strict}\n"),
            (DocumentKind::Secrets, "secrets", secrets),
        ];
        let input = |(kind, name, text): (DocumentKind, &str, &str)| InputDocument {
            kind,
            name: name.to_owned(),
            path: format!("{name}.yaml"),
            text: Ok(text.to_owned()),
        };
        Catalog::read(documents.into_iter().map(input).collect())
    }

    #[test]
    fn only_loopback_is_trusted_unless_the_site_names_networks() {
        let none = catalog("{}\n", "{}", "{}\n");
        assert_eq!(trusted_networks(&none), LOOPBACK);
        let some = catalog("trusted_networks: [10.0.0.0/8]\n", "{}", "{}\n");
        assert_eq!(trusted_networks(&some), ["10.0.0.0/8"]);
        let nothing = catalog("trusted_networks: []\n", "{}", "{}\n");
        assert_eq!(trusted_networks(&nothing), Vec::<String>::new());
    }

    #[test]
    fn the_method_of_the_posture_decides_which_token_counts() {
        let secrets = "auth:\n  site_token: shared\n  node_tokens: {web-1: own, web-2: \"\"}\n";
        let of = |auth: &str, node: &str| rule(&catalog("{}\n", auth, secrets), node, "web");
        let network = of("{}", "web-1");
        assert_eq!(network.method, FirstContact::Network);
        assert_eq!((network.token_sha256, network.single_use), (None, false));
        let shared = of("{method: site_token, single_use: true}", "web-1");
        assert_eq!(shared.token_sha256, Some(sha256(b"shared")));
        assert!(shared.single_use);
        let own = of("{method: node_token}", "web-1");
        assert_eq!(own.token_sha256, Some(sha256(b"own")));
        for node in ["web-2", "web-3"] {
            assert_eq!(of("{method: node_token}", node).token_sha256, None);
        }
    }
}
