//! Exports the guests of a host as variables for existing OpenTofu modules.

use serde_json::{Map, Value as Json, json};

use crate::catalog::Catalog;
use crate::doc::pve_node::PveNode;
use crate::token::{Claims, SigningKey, TokenError, mint};

use super::ansible::Compat;
use super::manifest::ResolvedManifest;
use super::node::ResolvedNode;
use super::secret_visibility::{SecretRef, SecretVisibility};
use super::spec::{all_keys, ssh_keys};

/// The target of an export.
pub struct TofuTarget<'a> {
    /// The host whose guests are exported: a name from `nodes/`, or a node of the manifest.
    pub host: &'a str,
    /// Only this node.
    pub node: Option<&'a str>,
    /// The set of keys.
    pub compat: Compat,
    /// Whether values of secrets are shown.
    pub visibility: SecretVisibility,
    /// URL of the server; overrides the one of the site.
    pub server_url: Option<&'a str>,
    /// Absolute path of the private key the provider uses.
    pub ssh_private_key_file: &'a str,
    /// The user who runs the driver.
    pub user: &'a str,
    /// Now, in seconds since 1970.
    pub now: i64,
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum TofuError {
    /// The host has no API document.
    #[error("there is no `nodes/{0}.yaml` with the API access of `{0}`")]
    NoApi(String),
    /// The host has no storage.
    #[error("neither `nodes/{0}.yaml` nor `site.yaml` sets a `datastore`")]
    NoDatastore(String),
    /// No node of the manifest runs there.
    #[error("no node of the manifest runs on `{0}`")]
    NoNodes(String),
    /// Tokens are needed and cannot be signed.
    #[error("`auth.signing_key` is missing from the secrets, and `{0}` needs a provisioning token")]
    NoSigningKey(String),
    /// The signing key cannot be used.
    #[error("the signing key cannot be used")]
    SigningKey(#[source] TokenError),
}

/// Resolves the variables for the guests of one host.
pub fn variables(
    catalog: &Catalog,
    manifest: &ResolvedManifest,
    target: &TofuTarget<'_>,
) -> Result<Json, TofuError> {
    let nodes: Vec<&ResolvedNode> = manifest
        .nodes
        .iter()
        .filter(|node| is_selected(node, target))
        .collect();
    if nodes.is_empty() {
        return Err(TofuError::NoNodes(target.host.to_owned()));
    }
    let api = catalog
        .nodes
        .get(target.host)
        .and_then(|document| document.value.as_ref());
    let api = api.ok_or_else(|| TofuError::NoApi(target.host.to_owned()))?;
    let site = catalog.defaults();
    let text =
        |spanned: Option<&crate::doc::Spanned<String>>| spanned.map(|text| text.value.clone());
    let datastore = text(api.datastore.as_ref())
        .or_else(|| text(site?.datastore.as_ref()))
        .ok_or_else(|| TofuError::NoDatastore(target.host.to_owned()))?;
    let site_url = site
        .and_then(|site| site.server_url.as_ref())
        .and_then(|url| url.0.as_ref());
    let server_url = target
        .server_url
        .or_else(|| site_url.map(|url| url.as_str()))
        .unwrap_or_default();
    let vm_user = site
        .and_then(|site| site.vm_user.as_ref())
        .map_or("homestak", |user| user.as_str());
    let host_user = api.host_user.as_ref().or_else(|| site?.host_user.as_ref());
    let endpoint = api.api_endpoint.as_ref().map_or("", |url| url.as_str());

    let mut variables = Map::new();
    let mut put = |key: &str, value: Json| _ = variables.insert(key.to_owned(), value);
    put(
        "node",
        api.node
            .as_ref()
            .map_or(target.host, |node| node.as_str())
            .into(),
    );
    put("api_endpoint", endpoint.into());
    put("api_token", api_token(catalog, api, target).into());
    match target.compat {
        Compat::Current => {
            put("ssh_private_key_file", target.ssh_private_key_file.into());
            put("vm_user", vm_user.into());
            put("ssh_host", ssh_host(api, endpoint).into());
        }
        Compat::Legacy => put(
            "ssh_user",
            host_user.map_or(target.user, |user| user.as_str()).into(),
        ),
    }
    put("datastore", datastore.into());
    put(
        "root_password",
        secret(catalog, "passwords", "vm_root", target.visibility).into(),
    );
    let keys: Vec<String> = all_keys(ssh_keys(catalog))
        .iter()
        .map(|key| key.render(target.visibility))
        .collect();
    put("ssh_keys", keys.into());
    match target.compat {
        Compat::Current => {
            put("server_url", server_url.into());
            let dns = site.and_then(|site| site.dns_servers.as_ref());
            let dns: Vec<String> = dns
                .iter()
                .flat_map(|dns| &dns.value)
                .map(|ip| ip.to_string())
                .collect();
            put("dns_servers", dns.into());
        }
        Compat::Legacy => put("spec_server", server_url.into()),
    }
    let vms = nodes
        .iter()
        .map(|node| vm(catalog, node, server_url, target))
        .collect::<Result<Vec<_>, _>>()?;
    put("vms", vms.into());
    Ok(variables.into())
}

fn is_selected(node: &ResolvedNode, target: &TofuTarget<'_>) -> bool {
    let location = node.parent.as_ref().map(|parent| parent.as_str());
    let location = location.or_else(|| node.host.as_ref().map(|host| host.value.as_str()));
    location == Some(target.host)
        && target
            .node
            .is_none_or(|wanted| wanted == node.name.as_str())
}

fn vm(
    catalog: &Catalog,
    node: &ResolvedNode,
    server_url: &str,
    target: &TofuTarget<'_>,
) -> Result<Json, TofuError> {
    let mut vm = Map::new();
    let mut put = |key: &str, value: Json| _ = vm.insert(key.to_owned(), value);
    put("name", node.name.as_str().into());
    put(
        "vmid",
        node.vmid
            .as_ref()
            .map_or(Json::Null, |vmid| vmid.value.0.into()),
    );
    put(
        "image",
        node.image
            .as_ref()
            .or(node.template.as_ref())
            .map_or(Json::Null, |image| image.value.clone().into()),
    );
    if let Some(size) = &node.size {
        put("cores", size.cores.value.into());
        put("memory", size.memory.value.into());
        put("disk", size.disk.value.into());
    }
    put("bridge", node.networking.bridge.value.clone().into());
    let pulls = node.mode.value != crate::doc::manifest::Mode::Push;
    let token = token(catalog, node, server_url, target)?;
    if target.compat == Compat::Current {
        if let Some(gateway) = &node.networking.gateway {
            put("gateway", gateway.value.to_string().into());
        }
        if let Some(address) = node.networking.address.value {
            put("ip", address.to_string().into());
        }
        if !node.packages.is_empty() {
            put("packages", json!(node.packages));
        }
        put(
            "boot_scenario",
            if pulls && node.spec.is_some() {
                "vm-config"
            } else {
                ""
            }
            .into(),
        );
    }
    put("auth_token", token.into());
    Ok(vm.into())
}

/// Mints a token for a node with a spec, if there is a server.
fn token(
    catalog: &Catalog,
    node: &ResolvedNode,
    server_url: &str,
    target: &TofuTarget<'_>,
) -> Result<String, TofuError> {
    let Some(spec) = node.spec.as_ref().filter(|_| !server_url.is_empty()) else {
        return Ok(String::new());
    };
    if target.visibility == SecretVisibility::Masked {
        return Ok(format!("<secret token for {} {}>", node.name, spec.value));
    }
    let key = signing_key(catalog).ok_or_else(|| TofuError::NoSigningKey(node.name.to_string()))?;
    let key = SigningKey::from_hex(key.value.expose()).map_err(TofuError::SigningKey)?;
    let claims = Claims {
        node: node.name.to_string(),
        spec: spec.value.clone(),
        issued_at: target.now,
        guest: None,
    };
    Ok(mint(&claims, &key))
}

/// Returns the key that signs provisioning tokens, if the site has one.
pub fn signing_key(catalog: &Catalog) -> Option<SecretRef> {
    let auth = catalog.secrets.as_ref()?.value.as_ref()?.auth.as_ref()?;
    let value = auth.signing_key.as_ref()?.value.clone();
    (!value.expose().is_empty()).then(|| SecretRef {
        id: "auth.signing_key".into(),
        value,
    })
}

fn api_token(catalog: &Catalog, api: &PveNode, target: &TofuTarget<'_>) -> String {
    let id = api.api_token.as_ref().map_or(target.host, |id| id.as_str());
    secret(catalog, "api_tokens", id, target.visibility)
}

fn secret(catalog: &Catalog, section: &str, id: &str, visibility: SecretVisibility) -> String {
    let secrets = catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    let section_map = secrets.and_then(|secrets| match section {
        "api_tokens" => secrets.api_tokens.as_ref(),
        _ => secrets.passwords.as_ref(),
    });
    let found = SecretRef::find(section, id, section_map.map(|map| &map.value));
    found.map_or_else(String::new, |secret| secret.render(visibility))
}

/// The provider connects to the host itself if the endpoint is on loopback.
fn ssh_host(api: &PveNode, endpoint: &str) -> String {
    if endpoint.contains("://localhost") || endpoint.contains("://127.0.0.1") {
        return "127.0.0.1".into();
    }
    api.ip
        .as_ref()
        .map_or_else(String::new, |ip| ip.to_string())
}
