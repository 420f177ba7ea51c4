//! Nodes on this machine.

use homestak_api::v1::{LocalEngine, LocalNode, LocalNodes};
use homestak_providers::local::{Engine, Local, Node};

/// Converts the nodes of this machine, each with whether it runs.
pub fn nodes(local: &Local, nodes: &[(Node, bool)]) -> LocalNodes {
    let node = |(node, running): &(Node, bool)| LocalNode {
        name: node.name.clone(),
        manifest: node.manifest.clone(),
        id: node.vmid,
        uuid: node.guest().to_string(),
        site: node.site.as_ref().map(ToString::to_string),
        address: node.address.0,
        engine: match node.engine {
            Engine::Container => LocalEngine::Container,
            Engine::Machine => LocalEngine::Machine,
        },
        cores: node.cores,
        memory: node.memory.0,
        image: node.image.clone(),
        isolated: node.engine == Engine::Machine || node.ids.is_some(),
        running: *running,
    };
    LocalNodes {
        root: local.instance().root().display().to_string(),
        network: local.network(),
        nodes: nodes.iter().map(node).collect(),
    }
}
