//! One node: its references become values, its type-specific keys are checked.
//!
//! In: a placed node and the catalog. Out: [`ResolvedNode`] with the origin of each value.
//! Never: relations between nodes; those are settled before.

use crate::catalog::Catalog;
use crate::doc::image::ImageKind;
use crate::doc::manifest::{ApiAccess, Manifest, Mode, Node, NodeType};
use crate::doc::preset::Preset;
use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::address::{Inputs, Networking, networking};
use super::manifest::Request;
use super::origin::{Origin, Valued, written_or};
use super::reference::dangling;
use super::site::without_effect;
use super::topology::{Placed, can_host};

/// How big a node is.
#[derive(Clone, Debug, PartialEq)]
pub struct Size {
    /// Virtual CPUs.
    pub cores: Valued<i64>,
    /// Memory in MiB.
    pub memory: Valued<i64>,
    /// Disk in GiB.
    pub disk: Valued<i64>,
}

/// A node without references.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedNode {
    /// Its name.
    pub name: NodeName,
    /// Where the name was written.
    pub span: Span,
    /// What it is.
    pub kind: Valued<NodeType>,
    /// One line for people.
    pub description: Option<String>,
    /// Host it runs on; `None` for children, and when no host was named at all.
    pub host: Option<Valued<String>>,
    /// Node it runs on.
    pub parent: Option<NodeName>,
    /// Nodes it belongs together with.
    pub peers: Vec<NodeName>,
    /// Region it is in.
    pub region: Option<String>,
    /// How many nodes it runs on, one in another.
    pub depth: usize,
    /// Whether nodes can run on it.
    pub can_host: bool,
    /// Who starts its configuration.
    pub mode: Valued<Mode>,
    /// Name of its spec.
    pub spec: Option<Valued<String>>,
    /// Name of its preset.
    pub preset: Option<Valued<String>>,
    /// How big it is; `None` only when that could not be resolved.
    pub size: Option<Size>,
    /// Its image, by the image's own name.
    pub image: Option<Valued<String>>,
    /// Its template: an image's own name, or a volume.
    pub template: Option<Valued<String>>,
    /// Whether a container runs without privileges.
    pub unprivileged: Option<Valued<bool>>,
    /// Id on its host; `None` leaves it to the provider.
    pub vmid: Option<Valued<Vmid>>,
    /// Where it is on the network.
    pub networking: Networking,
    /// Packages its preset installs on first boot.
    pub packages: Vec<String>,
    /// CPU cores and memory in GiB that a hypervisor must find.
    pub hardware: Option<(Option<i64>, Option<i64>)>,
    /// How a hypervisor's API is reached.
    pub api: Option<ApiAccess>,
}

/// What resolving a node needs beside the node.
pub(super) struct Scope<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) manifest: &'a Manifest,
    pub(super) request: &'a Request,
}

impl Scope<'_> {
    /// Resolves everything of a node that does not depend on other nodes.
    pub(super) fn node(&self, placed: &Placed<'_>, faults: &mut Diagnostics) -> ResolvedNode {
        let node = &placed.node.value;
        let kind = written_or(node.kind.as_ref(), NodeType::Vm);
        if !node.invalid.contains(&"type") {
            check_type_keys(node, kind.value, faults);
        }
        let spec = self.spec(node, faults);
        let preset = self.preset(placed, faults);
        let (image, template) = self.image(placed, kind.value, faults);
        let networking = self.networking(node, spec.as_ref(), preset.as_ref(), faults);
        self.check_api_token(node, faults);
        let preset_value = preset
            .as_ref()
            .and_then(|preset| self.preset_value(&preset.value));
        let packages = preset_value
            .iter()
            .flat_map(|preset| preset.packages.iter().flat_map(|list| &list.value));
        ResolvedNode {
            name: placed.name.value.clone(),
            span: placed.name.span,
            unprivileged: (kind.value == NodeType::Ct)
                .then(|| written_or(node.unprivileged.as_ref(), true)),
            description: node.description.as_ref().map(|text| text.value.clone()),
            host: None,
            parent: None,
            peers: Vec::new(),
            region: None,
            depth: 0,
            can_host: can_host(node, self.catalog) == Some(true),
            mode: self.mode(placed, kind.value, faults),
            size: size(node, preset_value),
            packages: packages.map(|package| package.to_string()).collect(),
            spec,
            preset,
            image,
            template,
            vmid: None,
            networking,
            hardware: node.hardware.as_ref().map(|hardware| {
                let (cores, memory) = (&hardware.cpu_cores, &hardware.memory_gb);
                (cores.as_ref().map(|n| n.0), memory.as_ref().map(|n| n.0))
            }),
            api: node
                .access
                .as_ref()
                .and_then(|access| access.api.as_ref())
                .map(|api| api.value.clone()),
            kind,
        }
    }

    fn preset_value(&self, name: &str) -> Option<&Preset> {
        self.catalog.presets.get(name)?.value.as_ref()
    }

    fn spec(&self, node: &Node, faults: &mut Diagnostics) -> Option<Valued<String>> {
        let spec = node.spec.as_ref()?;
        let specs = &self.catalog.specs;
        if !specs.contains_key(spec.as_str()) {
            let known = specs.keys().map(String::as_str);
            faults.push(dangling(
                Code::NoSuchSpec,
                spec.span,
                "spec",
                spec.as_str(),
                known,
            ));
        }
        Some(Valued::written(spec.to_string(), spec.span))
    }

    /// The node's preset, the site's, or `vm-small` where the site has one.
    fn preset(&self, placed: &Placed<'_>, faults: &mut Diagnostics) -> Option<Valued<String>> {
        const FALLBACK: &str = "vm-small";
        let node = &placed.node.value;
        let presets = &self.catalog.presets;
        let known = || presets.keys().map(String::as_str);
        if let Some(preset) = &node.preset {
            if !presets.contains_key(preset.as_str()) {
                faults.push(dangling(
                    Code::NoSuchPreset,
                    preset.span,
                    "preset",
                    preset.as_str(),
                    known(),
                ));
            }
            return Some(Valued::written(preset.to_string(), preset.span));
        }
        let whole = node.cores.is_some() && node.memory.is_some() && node.disk.is_some();
        if whole || node.invalid.contains(&"preset") {
            return None;
        }
        if let Some(preset) = self
            .catalog
            .defaults()
            .and_then(|defaults| defaults.preset.as_ref())
        {
            return Some(Valued::written(preset.to_string(), preset.span));
        }
        if presets.contains_key(FALLBACK) {
            faults.push(built_in(placed, "preset", FALLBACK));
            return Some(Valued::built_in(FALLBACK.into()));
        }
        faults.push(
            Diagnostic::error(
                Code::MissingPreset,
                placed.name.span,
                format!("`{}` has no preset", placed.name.value),
            )
            .hint("write `preset: NAME` on the node, or under `defaults` in `site.yaml`"),
        );
        None
    }

    fn image(
        &self,
        placed: &Placed<'_>,
        kind: NodeType,
        faults: &mut Diagnostics,
    ) -> (Option<Valued<String>>, Option<Valued<String>>) {
        let node = &placed.node.value;
        let defaults = self.catalog.defaults();
        match kind {
            NodeType::Ct => {
                let template = node.template.as_ref();
                let template =
                    template.or_else(|| defaults.and_then(|defaults| defaults.template.as_ref()));
                let found = template.and_then(|template| self.template(template, faults));
                if template.is_none() && !node.invalid.contains(&"template") {
                    faults.push(
                        Diagnostic::error(
                            Code::MissingImage,
                            placed.name.span,
                            format!("the container `{}` has no template", placed.name.value),
                        )
                        .hint("write `template: NAME` on the node, or under `defaults` in `site.yaml`"),
                    );
                }
                (None, found)
            }
            NodeType::Vm | NodeType::Pve | NodeType::K3s => {
                const FALLBACK: &str = "debian-12";
                let image = node
                    .image
                    .as_ref()
                    .or_else(|| defaults.and_then(|defaults| defaults.image.as_ref()));
                let Some(image) = image else {
                    if !node.invalid.contains(&"image") {
                        faults.push(built_in(placed, "image", FALLBACK));
                    }
                    return (Some(Valued::built_in(FALLBACK.into())), None);
                };
                (
                    self.catalog_image(image.as_str(), image.span, ImageKind::Disk, faults),
                    None,
                )
            }
        }
    }

    /// A template is a volume on the host's storage, or an image of ours.
    fn template(
        &self,
        template: &Spanned<String>,
        faults: &mut Diagnostics,
    ) -> Option<Valued<String>> {
        if template.contains(':') {
            return Some(Valued::from(template));
        }
        self.catalog_image(template, template.span, ImageKind::Template, faults)
    }

    fn catalog_image(
        &self,
        name: &str,
        span: Span,
        wanted: ImageKind,
        faults: &mut Diagnostics,
    ) -> Option<Valued<String>> {
        let Some(image) = self.catalog.image(name) else {
            faults.push(dangling(
                Code::NoSuchImage,
                span,
                "image",
                name,
                self.catalog.image_names(),
            ));
            return None;
        };
        let kind = image
            .value
            .as_ref()
            .and_then(|image| image.kind.as_ref())
            .map_or(ImageKind::Disk, |kind| kind.value);
        if kind != wanted {
            faults.push(
                Diagnostic::error(
                    Code::NoSuchImage,
                    span,
                    format!("the image `{name}` is a {kind}, not a {wanted}"),
                )
                .hint("containers take templates, all other nodes take disks"),
            );
        }
        let origin = if image.name == name {
            Origin::Written(span)
        } else {
            Origin::Derived(format!("alias `{name}`"), Some(span))
        };
        Some(Valued {
            value: image.name.clone(),
            origin,
        })
    }

    fn networking(
        &self,
        node: &Node,
        spec: Option<&Valued<String>>,
        preset: Option<&Valued<String>>,
        faults: &mut Diagnostics,
    ) -> Networking {
        let spec = spec.and_then(|spec| {
            self.catalog
                .specs
                .get(&spec.value)?
                .value
                .as_ref()?
                .network
                .as_ref()
        });
        let inputs = Inputs {
            node,
            spec: spec.map(|network| &network.value),
            preset: preset.and_then(|preset| self.preset_value(&preset.value)),
            site: self
                .catalog
                .site
                .as_ref()
                .and_then(|site| site.value.as_ref()),
        };
        networking(&inputs, faults)
    }

    fn mode(&self, placed: &Placed<'_>, kind: NodeType, faults: &mut Diagnostics) -> Valued<Mode> {
        let own = placed
            .node
            .execution
            .as_ref()
            .and_then(|execution| execution.mode.as_ref());
        let default = self
            .manifest
            .execution
            .as_ref()
            .and_then(|execution| execution.default_mode.as_ref());
        let mode = match (self.request.mode, own.or(default)) {
            (Some(mode), _) => Valued {
                value: mode,
                origin: Origin::CommandLine("--mode"),
            },
            (None, Some(mode)) => Valued::from(mode),
            (None, None) => Valued::built_in(Mode::Push),
        };
        if kind != NodeType::Pve || mode.value == Mode::Push {
            return mode;
        }
        let span = match mode.origin {
            Origin::Written(span) => span,
            Origin::BuiltIn | Origin::CommandLine(_) | Origin::Derived(..) | Origin::Recorded => {
                placed.name.span
            }
        };
        let message = format!(
            "`{}` is a pve node and is configured by push, not {}",
            placed.name.value, mode.value
        );
        faults.push(
            Diagnostic::notice(Code::PveIsPushed, span, message)
                .hint("write `execution: {mode: push}` on the node to say so"),
        );
        Valued::derived(Mode::Push, "pve nodes are configured by push", Some(span))
    }

    fn check_api_token(&self, node: &Node, faults: &mut Diagnostics) {
        let api = node.access.as_ref().and_then(|access| access.api.as_ref());
        if let Some(token) = api.and_then(|api| api.token.as_ref()) {
            super::site::check_api_token(self.catalog, token, faults);
        }
    }
}

fn size(node: &Node, preset: Option<&Preset>) -> Option<Size> {
    let pick = |own: Option<Valued<i64>>, preset: Option<Valued<i64>>| own.or(preset);
    Some(Size {
        cores: pick(
            node.cores.as_ref().map(number),
            preset.and_then(|preset| preset.cores.as_ref()).map(number),
        )?,
        memory: pick(
            node.memory.as_ref().map(number),
            preset.and_then(|preset| preset.memory.as_ref()).map(number),
        )?,
        disk: pick(
            node.disk.as_ref().map(number),
            preset.and_then(|preset| preset.disk.as_ref()).map(number),
        )?,
    })
}

fn number<const MIN: i64, const MAX: i64>(
    spanned: &Spanned<crate::doc::scalar::Int<MIN, MAX>>,
) -> Valued<i64> {
    Valued::written(spanned.value.0, spanned.span)
}

/// Nothing was named and the site has no default: the built-in one is used, and said.
fn built_in(placed: &Placed<'_>, key: &str, value: &str) -> Diagnostic {
    Diagnostic::notice(
        Code::BuiltInDefault,
        placed.name.span,
        format!(
            "`{}` names no {key}, so `{value}` is used",
            placed.name.value
        ),
    )
    .hint(format!(
        "write `{key}: NAME` on the node, or under `defaults` in `site.yaml`"
    ))
}

/// Reports keys that belong to another type of node.
fn check_type_keys(node: &Node, kind: NodeType, faults: &mut Diagnostics) {
    let api = node.access.as_ref().and_then(|access| access.api.as_ref());
    let (not_ct, only_ct, only_pve) = ("every type but `ct`", "type `ct`", "type `pve`");
    let keys = [
        (
            "image",
            node.image.as_ref().map(|key| key.span),
            kind != NodeType::Ct,
            not_ct,
            "containers take `template`",
        ),
        (
            "template",
            node.template.as_ref().map(|key| key.span),
            kind == NodeType::Ct,
            only_ct,
            "write `image`, or make the node `type: ct`",
        ),
        (
            "unprivileged",
            node.unprivileged.as_ref().map(|key| key.span),
            kind == NodeType::Ct,
            only_ct,
            "remove it, or make the node `type: ct`",
        ),
        (
            "hardware",
            node.hardware.as_ref().map(|key| key.span),
            kind == NodeType::Pve,
            only_pve,
            "remove it, or make the node `type: pve`",
        ),
        (
            "access.api",
            api.map(|key| key.span),
            kind == NodeType::Pve,
            only_pve,
            "remove it, or make the node `type: pve`",
        ),
    ];
    for (key, span, fits, whose, hint) in keys {
        if let Some(span) = span.filter(|_| !fits) {
            let message = format!("`{key}` is a key of {whose}; this node is a {kind}");
            faults.push(Diagnostic::error(Code::WrongNodeType, span, message).hint(hint));
        } else if let Some(span) = span.filter(|_| matches!(key, "hardware" | "access.api")) {
            faults.push(without_effect(key, span));
        }
    }
}
