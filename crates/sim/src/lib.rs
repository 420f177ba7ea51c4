//! PRETENDS: a world that looks like Proxmox VE.
