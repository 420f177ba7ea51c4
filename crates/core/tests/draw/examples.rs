//! Example diagrams for snapshots, one for each pattern.

use homestak_core::draw::{Diagram, DiagramNode, DiagramRegion};

/// All examples. The name is that of the snapshot files.
pub(crate) fn all() -> Vec<Diagram> {
    vec![
        n1(),
        workers(),
        n2(),
        n3(),
        mesh(),
        hub_spoke(),
        federated(),
    ]
}

fn diagram(name: &str, pattern: &str, nodes: Vec<DiagramNode>) -> Diagram {
    let (name, pattern, host) = (name.to_owned(), pattern.to_owned(), "father".to_owned());
    Diagram {
        name,
        pattern,
        host,
        nodes,
        ..Diagram::default()
    }
}

/// `words` is `name kind detail...`.
fn node(words: &str, parent: Option<usize>) -> DiagramNode {
    let mut words = words.split_whitespace().map(str::to_owned);
    let (name, kind) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    DiagramNode {
        name,
        kind,
        details: words.collect(),
        parent,
        ..DiagramNode::default()
    }
}

fn n1() -> Diagram {
    diagram(
        "n1",
        "flat",
        vec![node("test vm base vm-small 99001 push", None)],
    )
}

fn workers() -> Diagram {
    let names = ["worker-1", "worker-2", "worker-3"];
    let nodes = names.iter().zip(99011..);
    let nodes = nodes.map(|(name, id)| node(&format!("{name} vm base vm-small {id} pull"), None));
    Diagram {
        peers: vec![(0, 1), (1, 2), (0, 2)],
        ..diagram("workers", "flat", nodes.collect())
    }
}

fn n2() -> Diagram {
    let nodes = vec![
        node("root-pve pve pve-9 vm-large 99011 push", None),
        node("edge vm base vm-small 99021 pull", Some(0)),
    ];
    diagram("n2-tiered", "tiered", nodes)
}

fn n3() -> Diagram {
    let nodes = vec![
        node("root-pve pve pve-9 vm-large 99011 push", None),
        node("leaf-pve pve pve-9 vm-medium 99021 push", Some(0)),
        node("test vm base vm-small 99031 pull", Some(1)),
    ];
    diagram("n3-deep", "tiered", nodes)
}

fn mesh() -> Diagram {
    let mut nodes = Vec::new();
    for (at, host) in ["host-a", "host-b", "host-c"].iter().enumerate() {
        nodes.push(node(
            &format!("{host} pve pve-9 vm-large 9910{at} push"),
            None,
        ));
    }
    for (at, letter) in ["a", "b", "c"].iter().enumerate() {
        nodes.push(node(
            &format!("web-{letter} ct nginx ct-small 9911{at} pull"),
            Some(at),
        ));
        nodes.push(node(
            &format!("db-{letter} vm base vm-medium 9912{at} pull"),
            Some(at),
        ));
    }
    nodes[2].host = Some("mother".to_owned());
    Diagram {
        peers: vec![(0, 1), (1, 2), (2, 0)],
        ..diagram("trio", "mesh", nodes)
    }
}

fn hub_spoke() -> Diagram {
    let mut nodes = vec![node("gateway pve pve-9 vm-large 99200 push", None)];
    for (at, town) in ["oslo", "turin", "gdansk"].iter().enumerate() {
        let spoke = nodes.len();
        nodes.push(node(
            &format!("{town} pve pve-9 vm-medium 9921{at} pull"),
            None,
        ));
        nodes.push(node(
            &format!("{town}-till ct kiosk ct-small 9922{at} pull"),
            Some(spoke),
        ));
        if at > 0 {
            nodes.push(node(
                &format!("{town}-k3s k3s base vm-medium 9923{at} pull"),
                Some(spoke),
            ));
        }
    }
    Diagram {
        hub: Some(0),
        ..diagram("branches", "hub-spoke", nodes)
    }
}

fn federated() -> Diagram {
    let mut nodes = Vec::new();
    for (at, region) in ["eu", "us", "ap"].iter().enumerate() {
        let root = nodes.len();
        nodes.push(node(
            &format!("{region}-pve pve pve-9 vm-large 9931{at} push"),
            None,
        ));
        nodes[root].region = Some(at);
        nodes.push(node(
            &format!("{region}-web vm base vm-small 9932{at} pull"),
            Some(root),
        ));
        if at < 2 {
            nodes.push(node(
                &format!("{region}-db ct postgres ct-small 9933{at} pull"),
                Some(root),
            ));
        }
    }
    let region = |name: &str, host: &str| DiagramRegion {
        name: name.to_owned(),
        host: Some(host.to_owned()),
    };
    let regions = vec![
        region("europe", "father"),
        region("americas", "uncle"),
        region("asia", "aunt"),
    ];
    let links = vec![(0, 1), (1, 2), (0, 2)];
    Diagram {
        regions,
        links,
        ..diagram("planet", "federated", nodes)
    }
}
