//! Resolves a node, except for its relations to other nodes, and checks the keys of its type.

use crate::catalog::Catalog;
use crate::doc::image::ImageKind;
use crate::doc::manifest::{ApiAccess, Manifest, Mode, Node, NodeType};
use crate::doc::preset::Preset;
use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};

use super::address::{NetworkInputs, Networking, networking};
use super::manifest::ResolveOptions;
use super::node_graph::{GraphNode, can_host};
use super::origin::{Origin, WithOrigin, written_or};
use super::reference::dangling;
use super::site::without_effect;

/// The size of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSize {
    /// Virtual CPUs.
    pub cores: WithOrigin<i64>,
    /// Memory in MiB.
    pub memory: WithOrigin<i64>,
    /// Disk in GiB.
    pub disk: WithOrigin<i64>,
}

/// A resolved node.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedNode {
    /// Its name.
    pub name: NodeName,
    /// Span of the name.
    pub span: Span,
    /// Its type.
    pub kind: WithOrigin<NodeType>,
    /// A short description.
    pub description: Option<String>,
    /// Host it runs on; `None` for children, and if no host is set at all.
    pub host: Option<WithOrigin<String>>,
    /// Parent node it runs on.
    pub parent: Option<NodeName>,
    /// Its peers.
    pub peers: Vec<NodeName>,
    /// Its region.
    pub region: Option<String>,
    /// Its nesting depth: 0 on a host.
    pub depth: usize,
    /// Whether nodes can run on it.
    pub can_host: bool,
    /// How it is configured: push, pull or hybrid.
    pub mode: WithOrigin<Mode>,
    /// Name of its spec.
    pub spec: Option<WithOrigin<String>>,
    /// Name of its preset.
    pub preset: Option<WithOrigin<String>>,
    /// Its size; `None` only if it could not be resolved.
    pub size: Option<NodeSize>,
    /// Name of its image, not an alias.
    pub image: Option<WithOrigin<String>>,
    /// Its template: name of an image, or a volume.
    pub template: Option<WithOrigin<String>>,
    /// Whether a container is unprivileged.
    pub unprivileged: Option<WithOrigin<bool>>,
    /// Its vmid; `None` lets the provider choose one.
    pub vmid: Option<WithOrigin<Vmid>>,
    /// Its network settings.
    pub networking: Networking,
    /// Packages of its preset, installed on first boot.
    pub packages: Vec<String>,
    /// CPU cores and memory in GiB that a hypervisor requires.
    pub hardware: Option<(Option<i64>, Option<i64>)>,
    /// Access to the API of a hypervisor.
    pub api: Option<ApiAccess>,
}

/// Resolves nodes.
pub(super) struct NodeResolver<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) manifest: &'a Manifest,
    pub(super) options: &'a ResolveOptions,
}

impl NodeResolver<'_> {
    /// Resolves a node, except for its relations to other nodes.
    pub(super) fn node(
        &self,
        node_ref: &GraphNode<'_>,
        diagnostics: &mut Diagnostics,
    ) -> ResolvedNode {
        let node = &node_ref.node.value;
        let kind = written_or(node.kind.as_ref(), NodeType::Vm);
        if !node.invalid.contains(&"type") {
            check_type_keys(node, kind.value, diagnostics);
        }
        let spec = self.spec(node, diagnostics);
        let preset = self.preset(node_ref, diagnostics);
        let (image, template) = self.image(node_ref, kind.value, diagnostics);
        let networking = self.networking(node, spec.as_ref(), preset.as_ref(), diagnostics);
        self.check_api_token(node, diagnostics);
        let preset_value = preset
            .as_ref()
            .and_then(|preset| self.preset_value(&preset.value));
        let packages = preset_value
            .iter()
            .flat_map(|preset| preset.packages.iter().flat_map(|list| &list.value));
        ResolvedNode {
            name: node_ref.name.value.clone(),
            span: node_ref.name.span,
            unprivileged: (kind.value == NodeType::Ct)
                .then(|| written_or(node.unprivileged.as_ref(), true)),
            description: node.description.as_ref().map(|text| text.value.clone()),
            host: None,
            parent: None,
            peers: Vec::new(),
            region: None,
            depth: 0,
            can_host: can_host(node, self.catalog) == Some(true),
            mode: self.mode(node_ref, kind.value, diagnostics),
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

    fn spec(&self, node: &Node, diagnostics: &mut Diagnostics) -> Option<WithOrigin<String>> {
        let spec = node.spec.as_ref()?;
        let specs = &self.catalog.specs;
        if !specs.contains_key(spec.as_str()) {
            let known = specs.keys().map(String::as_str);
            diagnostics.push(dangling(
                Code::NoSuchSpec,
                spec.span,
                "spec",
                spec.as_str(),
                known,
            ));
        }
        Some(WithOrigin::written(spec.to_string(), spec.span))
    }

    /// Returns the node's preset, the site's default, or `vm-small` if the site has it.
    fn preset(
        &self,
        node_ref: &GraphNode<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<WithOrigin<String>> {
        const FALLBACK: &str = "vm-small";
        let node = &node_ref.node.value;
        let presets = &self.catalog.presets;
        let known = || presets.keys().map(String::as_str);
        if let Some(preset) = &node.preset {
            if !presets.contains_key(preset.as_str()) {
                diagnostics.push(dangling(
                    Code::NoSuchPreset,
                    preset.span,
                    "preset",
                    preset.as_str(),
                    known(),
                ));
            }
            return Some(WithOrigin::written(preset.to_string(), preset.span));
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
            return Some(WithOrigin::written(preset.to_string(), preset.span));
        }
        if presets.contains_key(FALLBACK) {
            self.notice_built_in(node_ref, "preset", FALLBACK, diagnostics);
            return Some(WithOrigin::built_in(FALLBACK.into()));
        }
        diagnostics.push(
            Diagnostic::error(
                Code::MissingPreset,
                node_ref.name.span,
                format!("`{}` has no preset", node_ref.name.value),
            )
            .hint("write `preset: NAME` on the node, or under `defaults` in `site.yaml`"),
        );
        None
    }

    /// Reports that a built-in default is used, unless `site.yaml` has errors: what it sets is then
    /// not known.
    fn notice_built_in(
        &self,
        node_ref: &GraphNode<'_>,
        key: &str,
        value: &str,
        diagnostics: &mut Diagnostics,
    ) {
        let site = self.catalog.site.as_ref();
        if site.is_none_or(|site| site.diagnostics.errors() == 0) {
            diagnostics.push(notice_built_in(node_ref, key, value));
        }
    }

    fn image(
        &self,
        node_ref: &GraphNode<'_>,
        kind: NodeType,
        diagnostics: &mut Diagnostics,
    ) -> (Option<WithOrigin<String>>, Option<WithOrigin<String>>) {
        let node = &node_ref.node.value;
        let defaults = self.catalog.defaults();
        match kind {
            NodeType::Ct => {
                let template = node.template.as_ref();
                let template =
                    template.or_else(|| defaults.and_then(|defaults| defaults.template.as_ref()));
                let found = template.and_then(|template| self.template(template, diagnostics));
                if template.is_none() && !node.invalid.contains(&"template") {
                    diagnostics.push(
                        Diagnostic::error(
                            Code::MissingImage,
                            node_ref.name.span,
                            format!("the container `{}` has no template", node_ref.name.value),
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
                        self.notice_built_in(node_ref, "image", FALLBACK, diagnostics);
                    }
                    return (Some(WithOrigin::built_in(FALLBACK.into())), None);
                };
                (
                    self.catalog_image(image.as_str(), image.span, ImageKind::Disk, diagnostics),
                    None,
                )
            }
        }
    }

    /// Resolves a template: a volume on the host's storage, or an image of the site.
    fn template(
        &self,
        template: &Spanned<String>,
        diagnostics: &mut Diagnostics,
    ) -> Option<WithOrigin<String>> {
        if template.contains(':') {
            return Some(WithOrigin::from(template));
        }
        self.catalog_image(template, template.span, ImageKind::Template, diagnostics)
    }

    fn catalog_image(
        &self,
        name: &str,
        span: Span,
        wanted: ImageKind,
        diagnostics: &mut Diagnostics,
    ) -> Option<WithOrigin<String>> {
        let Some(image) = self.catalog.image(name) else {
            diagnostics.push(dangling(
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
            diagnostics.push(
                Diagnostic::error(
                    Code::NoSuchImage,
                    span,
                    format!("the image `{name}` is a {kind}, not a {wanted}"),
                )
                .hint("containers use templates, all other nodes use disks"),
            );
        }
        let origin = if image.name == name {
            Origin::Written(span)
        } else {
            Origin::Derived(format!("alias `{name}`"), Some(span))
        };
        Some(WithOrigin {
            value: image.name.clone(),
            origin,
        })
    }

    fn networking(
        &self,
        node: &Node,
        spec: Option<&WithOrigin<String>>,
        preset: Option<&WithOrigin<String>>,
        diagnostics: &mut Diagnostics,
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
        let inputs = NetworkInputs {
            node,
            spec: spec.map(|network| &network.value),
            preset: preset.and_then(|preset| self.preset_value(&preset.value)),
            site: self
                .catalog
                .site
                .as_ref()
                .and_then(|site| site.value.as_ref()),
        };
        networking(&inputs, diagnostics)
    }

    fn mode(
        &self,
        node_ref: &GraphNode<'_>,
        kind: NodeType,
        diagnostics: &mut Diagnostics,
    ) -> WithOrigin<Mode> {
        let own = node_ref
            .node
            .execution
            .as_ref()
            .and_then(|execution| execution.mode.as_ref());
        let default = self
            .manifest
            .execution
            .as_ref()
            .and_then(|execution| execution.default_mode.as_ref());
        let mode = match (self.options.mode, own.or(default)) {
            (Some(mode), _) => WithOrigin {
                value: mode,
                origin: Origin::CommandLine("--mode"),
            },
            (None, Some(mode)) => WithOrigin::from(mode),
            (None, None) => WithOrigin::built_in(Mode::Push),
        };
        if kind != NodeType::Pve || mode.value == Mode::Push {
            return mode;
        }
        let span = match mode.origin {
            Origin::Written(span) => span,
            Origin::BuiltIn | Origin::CommandLine(_) | Origin::Derived(..) | Origin::Recorded => {
                node_ref.name.span
            }
        };
        let message = format!(
            "`{}` is a pve node and is configured by push, not {}",
            node_ref.name.value, mode.value
        );
        diagnostics.push(
            Diagnostic::notice(Code::PveIsPushed, span, message)
                .hint("write `execution: {mode: push}` on the node to make this explicit"),
        );
        WithOrigin::derived(Mode::Push, "pve nodes are configured by push", Some(span))
    }

    fn check_api_token(&self, node: &Node, diagnostics: &mut Diagnostics) {
        let api = node.access.as_ref().and_then(|access| access.api.as_ref());
        if let Some(token) = api.and_then(|api| api.token.as_ref()) {
            super::site::check_api_token(self.catalog, token, diagnostics);
        }
    }
}

fn size(node: &Node, preset: Option<&Preset>) -> Option<NodeSize> {
    let pick = |own: Option<WithOrigin<i64>>, preset: Option<WithOrigin<i64>>| own.or(preset);
    Some(NodeSize {
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
) -> WithOrigin<i64> {
    WithOrigin::written(spanned.value.0, spanned.span)
}

/// Returns the notice that a built-in default is used.
fn notice_built_in(node_ref: &GraphNode<'_>, key: &str, value: &str) -> Diagnostic {
    Diagnostic::notice(
        Code::BuiltInDefault,
        node_ref.name.span,
        format!(
            "`{}` sets no {key}, so `{value}` is used",
            node_ref.name.value
        ),
    )
    .hint(format!(
        "write `{key}: NAME` on the node, or under `defaults` in `site.yaml`"
    ))
}

/// Reports keys that are not valid for the type of node.
fn check_type_keys(node: &Node, kind: NodeType, diagnostics: &mut Diagnostics) {
    let api = node.access.as_ref().and_then(|access| access.api.as_ref());
    let (not_ct, only_ct, only_pve) = ("all types except `ct`", "type `ct`", "type `pve`");
    let keys = [
        (
            "image",
            node.image.as_ref().map(|key| key.span),
            kind != NodeType::Ct,
            not_ct,
            "containers use `template`",
        ),
        (
            "template",
            node.template.as_ref().map(|key| key.span),
            kind == NodeType::Ct,
            only_ct,
            "use `image`, or `type: ct`",
        ),
        (
            "unprivileged",
            node.unprivileged.as_ref().map(|key| key.span),
            kind == NodeType::Ct,
            only_ct,
            "remove it, or use `type: ct`",
        ),
        (
            "hardware",
            node.hardware.as_ref().map(|key| key.span),
            kind == NodeType::Pve,
            only_pve,
            "remove it, or use `type: pve`",
        ),
        (
            "access.api",
            api.map(|key| key.span),
            kind == NodeType::Pve,
            only_pve,
            "remove it, or use `type: pve`",
        ),
    ];
    for (key, span, fits, types, hint) in keys {
        if let Some(span) = span.filter(|_| !fits) {
            let message = format!("`{key}` is valid for {types}, and this node is a {kind}");
            diagnostics.push(Diagnostic::error(Code::WrongNodeType, span, message).hint(hint));
        } else if let Some(span) = span.filter(|_| matches!(key, "hardware" | "access.api")) {
            diagnostics.push(without_effect(key, span));
        }
    }
}
