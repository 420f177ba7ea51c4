//! The host `local`: this machine.
//!
//! In: settings. Out: the provider, and one for each host inside a node.
//! Never: a decision about nodes.

use std::path::PathBuf;
use std::sync::Arc;

use homestak_engine::ports::PortError;
use homestak_providers::local::{FirstBoot, Local, LocalSettings, Realm, VmEngine};

use crate::settings::Settings;

/// The host that is this machine.
pub(crate) const LOCAL: &str = "local";

/// How the local host is opened.
#[derive(Clone, Debug)]
pub(crate) struct LocalPlace {
    root: PathBuf,
    first_boot: FirstBoot,
    mirror: Option<String>,
    /// What virtual machines run in.
    pub(crate) vm_engine: VmEngine,
}

impl LocalPlace {
    /// Takes it from the settings.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            root: settings.local_root.clone(),
            mirror: settings.debian_mirror.clone(),
            first_boot: if settings.cloud_init {
                FirstBoot::CloudInit
            } else {
                FirstBoot::Direct
            },
            vm_engine: settings.vm_engine,
        }
    }

    /// Opens it.
    pub(crate) fn open(&self) -> Result<Local, PortError> {
        let settings = LocalSettings {
            vm_engine: self.vm_engine,
            first_boot: self.first_boot,
            mirror: self.mirror.clone(),
            // Hosts inside nodes are driven with the same program.
            program: std::env::current_exe()
                .unwrap_or_else(|_| PathBuf::from("/usr/local/bin/homestak")),
        };
        Ok(Local::open(Realm::at(&self.root)?, settings))
    }

    /// Opens it for one who only looks.
    pub(crate) fn realm(&self) -> Result<Arc<Realm>, PortError> {
        Realm::at(&self.root).map(Arc::new)
    }
}
