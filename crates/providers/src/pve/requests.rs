//! The table of API requests that the client can send.
//!
//! A request is built from a row of this table only; a test compares it with the API schema.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::error::PveError;

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Changes something.
    Post,
    /// Changes.
    Put,
    /// Removes.
    Delete,
}

/// A request the client can send.
#[derive(Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path, with the parts in braces to be filled in.
    pub path: &'static str,
    /// Parameters it always sends.
    pub required: &'static [&'static str],
    /// Parameters it may send.
    pub optional: &'static [&'static str],
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $method:ident $path:literal [$($required:literal),*] [$($optional:literal),*];)*) => {
        $($(#[$doc])* pub static $name: Route = Route {
            method: Method::$method,
            path: $path,
            required: &[$($required),*],
            optional: &[$($optional),*],
        };)*
        /// Every request.
        pub static ALL: &[&Route] = &[$(&$name),*];
    };
}

requests! {
    /// The version; needs no privilege.
    VERSION = Get "/version" [] [];
    /// A login instead of a token.
    TICKET = Post "/access/ticket" ["username", "password"] [];
    /// The privileges of the token by path.
    PERMISSIONS = Get "/access/permissions" [] ["path"];
    /// All resources.
    RESOURCES = Get "/cluster/resources" [] ["type"];
    /// Cluster hosts and quorum.
    CLUSTER_STATUS = Get "/cluster/status" [] [];
    /// Settings of the whole cluster.
    CLUSTER_OPTIONS = Get "/cluster/options" [] [];
    /// Hosts with their certificates.
    NODES = Get "/nodes" [] [];
    /// One host's CPU.
    NODE_STATUS = Get "/nodes/{node}/status" [] [];
    /// Whether a storage can be used on a host, and how much is free.
    STORAGE_STATUS = Get "/nodes/{node}/storage/{storage}/status" [] [];
    /// A host's network.
    NODE_NETWORK = Get "/nodes/{node}/network" [] [];
    /// Tasks of a host.
    TASKS = Get "/nodes/{node}/tasks" [] ["source", "vmid", "limit", "typefilter", "userfilter"];
    /// The status of a task.
    TASK_STATUS = Get "/nodes/{node}/tasks/{upid}/status" [] [];
    /// The log of a task.
    TASK_LOG = Get "/nodes/{node}/tasks/{upid}/log" ["start", "limit"] [];
    /// The content of a storage.
    CONTENT = Get "/nodes/{node}/storage/{storage}/content" [] ["content"];
    /// Sends a file.
    UPLOAD = Post "/nodes/{node}/storage/{storage}/upload" ["content", "filename"] ["checksum-algorithm", "checksum"];
    /// Downloads a file to a storage.
    DOWNLOAD = Post "/nodes/{node}/storage/{storage}/download-url" ["content", "filename", "url"] ["checksum-algorithm", "checksum"];
    /// Removes a file.
    VOLUME_DELETE = Delete "/nodes/{node}/storage/{storage}/content/{volume}" [] [];
    /// Creates a VM.
    VM_CREATE = Post "/nodes/{node}/qemu" ["vmid", "name", "memory", "cores", "scsihw", "scsi0", "boot", "net0", "smbios1", "tags", "description"] ["ostype", "agent", "serial0", "vga", "cpu", "ide2"];
    /// Reads a VM.
    VM_CONFIG = Get "/nodes/{node}/qemu/{vmid}/config" [] [];
    /// Changes a VM, as a task.
    VM_CHANGE = Post "/nodes/{node}/qemu/{vmid}/config" ["digest"] ["tags", "smbios1", "description", "cores", "memory", "net0", "ide2", "boot", "cpu", "agent", "serial0", "delete"];
    /// Whether a VM runs.
    VM_STATUS = Get "/nodes/{node}/qemu/{vmid}/status/current" [] [];
    /// Starts a VM.
    VM_START = Post "/nodes/{node}/qemu/{vmid}/status/start" [] [];
    /// Stops a VM.
    VM_STOP = Post "/nodes/{node}/qemu/{vmid}/status/stop" [] ["overrule-shutdown"];
    /// Shuts a VM down.
    VM_SHUTDOWN = Post "/nodes/{node}/qemu/{vmid}/status/shutdown" ["timeout", "forceStop"] [];
    /// Resizes a disk of a VM.
    VM_RESIZE = Put "/nodes/{node}/qemu/{vmid}/resize" ["disk", "size", "digest"] [];
    /// Removes a VM.
    VM_DELETE = Delete "/nodes/{node}/qemu/{vmid}" ["purge"] [];
    /// Addresses of a VM, as its agent sees them.
    VM_INTERFACES = Get "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces" [] [];
    /// Creates a container.
    CT_CREATE = Post "/nodes/{node}/lxc" ["vmid", "hostname", "ostemplate", "rootfs", "memory", "cores", "net0", "unprivileged", "tags", "description"] ["swap", "features", "ssh-public-keys"];
    /// Reads a container.
    CT_CONFIG = Get "/nodes/{node}/lxc/{vmid}/config" [] [];
    /// Changes a container; there is no task for it.
    CT_CHANGE = Put "/nodes/{node}/lxc/{vmid}/config" ["digest"] ["tags", "description", "cores", "memory", "net0"];
    /// Whether a container runs.
    CT_STATUS = Get "/nodes/{node}/lxc/{vmid}/status/current" [] [];
    /// Starts a container.
    CT_START = Post "/nodes/{node}/lxc/{vmid}/status/start" [] [];
    /// Stops a container.
    CT_STOP = Post "/nodes/{node}/lxc/{vmid}/status/stop" [] ["overrule-shutdown"];
    /// Shuts a container down.
    CT_SHUTDOWN = Post "/nodes/{node}/lxc/{vmid}/status/shutdown" ["timeout", "forceStop"] [];
    /// Resizes a container's disk.
    CT_RESIZE = Put "/nodes/{node}/lxc/{vmid}/resize" ["disk", "size", "digest"] [];
    /// Removes a container.
    CT_DELETE = Delete "/nodes/{node}/lxc/{vmid}" ["purge"] [];
    /// Addresses of a container.
    CT_INTERFACES = Get "/nodes/{node}/lxc/{vmid}/interfaces" [] [];
}

/// Characters that are not encoded in a path. A volume's `:` and `/` are encoded, which the
/// API accepts.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'@')
    .remove(b'!');

/// A request with its parameters.
#[derive(Clone)]
pub struct ApiCall {
    request: &'static Route,
    parts: Vec<(&'static str, String)>,
    params: Vec<(&'static str, String)>,
}

impl ApiCall {
    /// Starts with a row of the table.
    pub fn to(request: &'static Route) -> Self {
        Self {
            request,
            parts: Vec::new(),
            params: Vec::new(),
        }
    }

    /// Fills in a part of the path.
    #[must_use]
    pub fn at(mut self, part: &'static str, value: impl ToString) -> Self {
        self.parts.push((part, value.to_string()));
        self
    }

    /// Adds a parameter.
    #[must_use]
    pub fn param(mut self, name: &'static str, value: impl ToString) -> Self {
        self.params.push((name, value.to_string()));
        self
    }

    /// Adds a parameter when there is a value.
    #[must_use]
    pub fn optional_param(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.param(name, value),
            None => self,
        }
    }

    /// Returns the method.
    pub fn method(&self) -> Method {
        self.request.method
    }

    /// Returns the host the request is about, where it names one.
    pub fn node(&self) -> Option<&str> {
        self.parts
            .iter()
            .find(|(part, _)| *part == "node")
            .map(|(_, value)| value.as_str())
    }

    /// Returns the parameters.
    pub fn params(&self) -> &[(&'static str, String)] {
        &self.params
    }

    /// Returns the path; fails if a parameter is missing or not in the table.
    pub fn path(&self) -> Result<String, PveError> {
        let Route {
            path,
            required,
            optional,
            ..
        } = self.request;
        let unknown = |name: &&str| !required.contains(name) && !optional.contains(name);
        if let Some((name, _)) = self.params.iter().find(|(name, _)| unknown(name)) {
            return Err(PveError::bug(format!(
                "`{name}` is not a parameter of {path}"
            )));
        }
        let sent = |name: &str| self.params.iter().any(|(known, _)| *known == name);
        if let Some(name) = required.iter().find(|name| !sent(name)) {
            return Err(PveError::bug(format!("{path} without `{name}`")));
        }
        let mut filled = (*path).to_owned();
        for (part, value) in &self.parts {
            if matches!(value.as_str(), "" | "." | "..") {
                return Err(PveError::bug(format!("`{value}` as {part} of {path}")));
            }
            let encoded = utf8_percent_encode(value, PLAIN).to_string();
            filled = filled.replace(&format!("{{{part}}}"), &encoded);
        }
        if filled.contains('{') {
            return Err(PveError::bug(format!("{path} is not filled in")));
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_encoded_and_never_leave_the_path() {
        let path = ApiCall::to(&VOLUME_DELETE)
            .at("node", "pve1")
            .at("storage", "local")
            .at("volume", "local:iso/x y.iso")
            .path()
            .expect("a path");
        assert_eq!(
            path,
            "/nodes/pve1/storage/local/content/local%3Aiso%2Fx%20y.iso"
        );
        assert!(ApiCall::to(&NODE_STATUS).at("node", "..").path().is_err());
        assert!(ApiCall::to(&NODE_STATUS).path().is_err());
    }

    #[test]
    fn a_parameter_outside_the_table_is_an_error() {
        assert!(ApiCall::to(&VERSION).param("skiplock", 1).path().is_err());
        let call = ApiCall::to(&VM_DELETE).at("node", "pve1").at("vmid", 100);
        assert!(call.clone().path().is_err(), "purge is always sent");
        assert!(call.param("purge", 1).path().is_ok());
    }

    #[test]
    fn dangerous_parameters_are_not_in_the_table() {
        for request in ALL {
            for name in request.required.iter().chain(request.optional) {
                assert!(
                    ![
                        "skiplock",
                        "destroy-unreferenced-disks",
                        "background_delay",
                        "force",
                        "args"
                    ]
                    .contains(name),
                    "{} {name}",
                    request.path
                );
            }
        }
    }
}
