//! All documents of a site, decoded, by kind and name, each with its own diagnostics. References
//! between documents are followed in `resolve`.

use std::collections::BTreeMap;

use crate::doc::host::Host;
use crate::doc::image::Image;
use crate::doc::manifest::Manifest;
use crate::doc::posture::Posture;
use crate::doc::preset::Preset;
use crate::doc::pve_node::PveNode;
use crate::doc::scalar::{Name, NodeName, SiteId};
use crate::doc::secrets::SecretsFile;
use crate::doc::site::{Defaults, Site};
use crate::doc::spec::Spec;
use crate::doc::{
    Code, Context, Decode, Diagnostic, Diagnostics, DocumentKind, FileId, Severity, Source,
    Sources, Span, Spanned, Value, yaml,
};
use crate::host_kind::{HostKindInfo, HostTraits};

/// A document as the loader found it.
pub struct InputDocument {
    /// Its kind.
    pub kind: DocumentKind,
    /// Its name: the file name without `.yaml`.
    pub name: String,
    /// The path for messages.
    pub path: String,
    /// The text, or why it could not be read.
    pub text: Result<String, LoadProblem>,
}

/// A problem found by the loader: why a document could not be read, or a finding about another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadProblem {
    /// The code.
    pub code: Code,
    /// Whether the document cannot be used.
    pub severity: Severity,
    /// The message.
    pub message: String,
    /// What the operator can do.
    pub hint: String,
}

/// A decoded document with its own diagnostics.
pub struct Document<T> {
    /// Its name.
    pub name: String,
    /// Its source.
    pub file: FileId,
    /// The decoded part; `None` if nothing could be decoded.
    pub value: Option<T>,
    /// Its diagnostics.
    pub diagnostics: Diagnostics,
}

impl<T> Document<T> {
    /// Returns the span for diagnostics about the whole document.
    pub fn span(&self) -> Span {
        Span::start_of(self.file)
    }
}

/// Documents of one kind by name.
pub type DocumentMap<T> = BTreeMap<String, Document<T>>;

/// All documents of a site.
#[derive(Default)]
pub struct Catalog {
    /// The texts of the documents.
    pub sources: Sources,
    /// `site.yaml`
    pub site: Option<Document<Site>>,
    /// `secrets.yaml`
    pub secrets: Option<Document<SecretsFile>>,
    /// `manifests/`
    pub manifests: DocumentMap<Manifest>,
    /// `specs/`
    pub specs: DocumentMap<Spec>,
    /// `postures/`
    pub postures: DocumentMap<Posture>,
    /// `presets/`
    pub presets: DocumentMap<Preset>,
    /// `images/`, with the built-in ones.
    pub images: DocumentMap<Image>,
    /// `hosts/`
    pub hosts: DocumentMap<Host>,
    /// `nodes/`
    pub nodes: DocumentMap<PveNode>,
    /// The registered kinds of hosts, set by the driver.
    pub kinds: Vec<HostKindInfo>,
    /// Aliases of images.
    aliases: BTreeMap<String, String>,
    /// Diagnostics about the catalog as a whole, such as an alias used twice.
    pub diagnostics: Diagnostics,
}

impl Catalog {
    /// Reads and decodes every input.
    pub fn read(inputs: Vec<InputDocument>) -> Self {
        let mut catalog = Self::default();
        for input in inputs {
            catalog.add(input);
        }
        catalog.index_aliases();
        catalog
    }

    /// Adds one document.
    pub fn add(&mut self, input: InputDocument) {
        let sources = &mut self.sources;
        match input.kind {
            DocumentKind::Site => {
                let mut document = decode(sources, input);
                hint_at_site_id(&mut document.diagnostics);
                self.site = Some(document);
            }
            DocumentKind::Secrets => {
                let mut document = decode::<SecretsFile>(sources, input);
                if let Some(secrets) = &document.value {
                    secrets.check(&mut Context {
                        diagnostics: &mut document.diagnostics,
                        secret: true,
                    });
                }
                self.secrets = Some(document);
            }
            DocumentKind::Manifest => insert(&mut self.manifests, decode_manifest(sources, input)),
            DocumentKind::Spec => insert(&mut self.specs, decode(sources, input)),
            DocumentKind::Posture => insert(&mut self.postures, decode(sources, input)),
            DocumentKind::Preset => insert(&mut self.presets, decode(sources, input)),
            DocumentKind::Image => {
                let mut document = decode::<Image>(sources, input);
                if let Some(image) = &document.value {
                    image.check(&mut Context {
                        diagnostics: &mut document.diagnostics,
                        secret: false,
                    });
                }
                insert(&mut self.images, document);
            }
            DocumentKind::Host => insert(&mut self.hosts, decode(sources, input)),
            DocumentKind::Node => insert(&mut self.nodes, decode(sources, input)),
        }
    }

    /// Adds a problem with a path that is not a document.
    pub fn add_problem(&mut self, path: String, problem: &LoadProblem) {
        let file = self.sources.add(Source::new(path, String::new()));
        self.diagnostics
            .push(problem.diagnostic(Span::start_of(file)));
    }

    /// Returns the number of documents, including built-in images.
    pub fn n_documents(&self) -> usize {
        usize::from(self.site.is_some())
            + usize::from(self.secrets.is_some())
            + self.manifests.len()
            + self.specs.len()
            + self.postures.len()
            + self.presets.len()
            + self.images.len()
            + self.hosts.len()
            + self.nodes.len()
    }

    /// Returns the site's defaults, if any.
    pub fn defaults(&self) -> Option<&Defaults> {
        let site = self.site.as_ref()?.value.as_ref()?;
        site.defaults.as_ref().map(|defaults| &defaults.value)
    }

    /// Returns the site's id, if it has one.
    pub fn site_id(&self) -> Option<&SiteId> {
        let site = self.site.as_ref()?.value.as_ref()?;
        site.id.as_ref().map(|id| &id.value)
    }

    /// Returns an image by name or alias.
    pub fn image(&self, name: &str) -> Option<&Document<Image>> {
        self.images
            .get(name)
            .or_else(|| self.images.get(self.aliases.get(name)?))
    }

    /// Returns all names and aliases of images.
    pub fn image_names(&self) -> impl Iterator<Item = &str> {
        self.images
            .keys()
            .chain(self.aliases.keys())
            .map(String::as_str)
    }

    /// Returns the hosts that need no document.
    pub fn built_in_hosts(&self) -> impl Iterator<Item = &str> {
        let built_in = self.kinds.iter().filter(|kind| kind.is_built_in);
        built_in.map(|kind| kind.name)
    }

    /// Returns whether there is a host of that name.
    pub fn has_host(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
            || self.hosts.contains_key(name)
            || self.built_in_hosts().any(|host| host == name)
    }

    /// Returns the kind of a host; `None` if no kind of its document is registered.
    pub fn kind_of(&self, host: &str) -> Option<&HostKindInfo> {
        let find = |is_meant: &dyn Fn(&HostKindInfo) -> bool| {
            let mut kinds = self.kinds.iter();
            kinds.find(|kind| is_meant(kind))
        };
        // A built-in host has the name of its kind.
        let built_in = find(&|kind| kind.is_built_in && kind.name == host);
        let written = self.written_kind(host).map(|kind| kind.as_str());
        let written = || find(&|kind| !kind.is_built_in && Some(kind.name) == written);
        built_in.or_else(written).or_else(|| {
            let document = match self.nodes.contains_key(host) || !self.hosts.contains_key(host) {
                true => DocumentKind::Node,
                false => DocumentKind::Host,
            };
            find(&|kind| kind.default_of == Some(document))
        })
    }

    /// Returns the kind set in the document of a host; `nodes/` takes precedence.
    pub(crate) fn written_kind(&self, host: &str) -> Option<&Spanned<Name>> {
        match self.nodes.get(host) {
            Some(document) => document.value.as_ref()?.kind.as_ref(),
            None => self.hosts.get(host)?.value.as_ref()?.kind.as_ref(),
        }
    }

    /// Returns the kinds of hosts that need a document.
    pub(crate) fn document_kinds(&self) -> impl Iterator<Item = &str> {
        let kinds = self.kinds.iter().filter(|kind| !kind.is_built_in);
        kinds.map(|kind| kind.name)
    }

    /// Returns the label of a host's kind.
    pub fn label_of(&self, host: &str) -> &str {
        self.kind_of(host).map_or("", |kind| kind.label)
    }

    /// Returns the traits of a host.
    pub fn traits_of(&self, host: &str) -> HostTraits {
        let kind = self.kind_of(host);
        kind.map_or(HostTraits::PROXMOX_VE, |kind| kind.traits)
    }

    /// Returns the hosts with a document on which guests can be created.
    pub fn guest_hosts(&self) -> impl Iterator<Item = &String> {
        let creates = move |name: &&String| {
            let kind = self.kind_of(name);
            !self.nodes.contains_key(*name) && kind.is_some_and(|kind| kind.traits.creates_guests)
        };
        self.nodes.keys().chain(self.hosts.keys().filter(creates))
    }

    /// Returns all names of hosts.
    pub fn host_names(&self) -> impl Iterator<Item = &str> {
        let others = self.hosts.keys();
        self.nodes
            .keys()
            .chain(others.filter(|name| !self.nodes.contains_key(*name)))
            .map(String::as_str)
            .chain(self.built_in_hosts())
    }

    fn index_aliases(&mut self) {
        for (name, image) in &self.images {
            let Some(value) = &image.value else { continue };
            for alias in value.aliases.iter().flat_map(|aliases| &aliases.value) {
                let taken = self
                    .images
                    .contains_key(alias.as_str())
                    .then(|| alias.to_string());
                let earlier = taken.or_else(|| self.aliases.get(alias.as_str()).cloned());
                if let Some(earlier) = earlier {
                    self.diagnostics.push(
                        Diagnostic::error(
                            Code::Repeated,
                            alias.span,
                            format!("`{alias}` already names the image `{earlier}`"),
                        )
                        .hint("use unique names and aliases"),
                    );
                } else {
                    self.aliases.insert(alias.to_string(), name.clone());
                }
            }
        }
    }
}

/// Replaces the hint for an empty `site.yaml`: the file may have contained the site's id.
fn hint_at_site_id(diagnostics: &mut Diagnostics) {
    let found = std::mem::take(diagnostics);
    for mut diagnostic in found.iter().cloned() {
        if diagnostic.code == Code::EmptyDocument {
            let hint = "restore the file from git: the site's id was in it if the site has guests, \
                        and they carry it in the tag `homestak-s-ID`; delete the file only if it \
                        has none";
            diagnostic.hint = Some(hint.to_owned());
        }
        diagnostics.push(diagnostic);
    }
}

fn insert<T>(documents: &mut DocumentMap<T>, document: Document<T>) {
    documents.insert(document.name.clone(), document);
}

fn decode<T: Decode>(sources: &mut Sources, input: InputDocument) -> Document<T> {
    let secret = input.kind == DocumentKind::Secrets;
    let kind = input.kind;
    let (name, file, tree, mut diagnostics) = parse(sources, input);
    let mut cx = Context {
        diagnostics: &mut diagnostics,
        secret,
    };
    if !matches!(kind, DocumentKind::Site | DocumentKind::Secrets) && tree.is_some() {
        check_name(&name, Span::start_of(file), &mut cx);
    }
    let value = tree.and_then(|tree| T::decode(&tree, &mut cx));
    Document {
        name,
        file,
        value,
        diagnostics,
    }
}

fn parse(
    sources: &mut Sources,
    input: InputDocument,
) -> (String, FileId, Option<Value>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let secret = input.kind == DocumentKind::Secrets;
    let make = if secret { Source::secret } else { Source::new };
    match input.text {
        Ok(text) => {
            let file = sources.add(make(input.path, text));
            let mut tree = sources
                .source(file)
                .and_then(|source| yaml::parse(file, source, &mut diagnostics));
            // A document that is `~`, or `---` alone, is reported as empty.
            if let Some(nothing) = tree.take_if(|tree| tree.is_null()) {
                diagnostics.push(yaml::empty(nothing.span));
            }
            (input.name, file, tree, diagnostics)
        }
        Err(problem) => {
            let file = sources.add(make(input.path, String::new()));
            diagnostics.push(problem.diagnostic(Span::start_of(file)));
            (input.name, file, None, diagnostics)
        }
    }
}

impl LoadProblem {
    /// Turns the problem into a diagnostic.
    pub fn diagnostic(&self, span: Span) -> Diagnostic {
        let diagnostic = match self.severity {
            Severity::Error => Diagnostic::error(self.code, span, self.message.clone()),
            Severity::Notice => Diagnostic::notice(self.code, span, self.message.clone()),
        };
        diagnostic.hint(self.hint.clone())
    }
}

fn check_name(name: &str, span: Span, cx: &mut Context<'_>) {
    if Name::new(name).is_none() {
        cx.error(
            Code::InvalidName,
            span,
            format!("{} is not a valid name for a document", cx.quoted(name)),
            "rename the file using letters, digits, `.`, `_` and `-`",
        );
    }
}

/// Decodes a manifest. Schema version 1 is refused with a hint how to migrate; version and name may be
/// left out.
fn decode_manifest(sources: &mut Sources, input: InputDocument) -> Document<Manifest> {
    let (name, file, tree, mut diagnostics) = parse(sources, input);
    let Some(tree) = tree else {
        return Document {
            name,
            file,
            value: None,
            diagnostics,
        };
    };
    let mut cx = Context::new(&mut diagnostics);
    let entries = tree.entries().unwrap_or_default();
    let levels = entries.iter().find(|entry| entry.key.text == "levels");
    // With `nodes` it is version 2; a wrong version number is reported separately.
    if let (Some(levels), None) = (levels, tree.field("nodes")) {
        let place = sources.locate(Span::start_of(file)).path;
        cx.error(
            Code::ManifestV1,
            levels.key.span,
            "this is a manifest of schema version 1, which is no longer supported",
            format!("`homestak manifest migrate {place}` converts it to version 2"),
        );
        return Document {
            name,
            file,
            value: None,
            diagnostics,
        };
    }
    let value = Manifest::decode(&tree, &mut cx);
    if let Some(manifest) = &value {
        check_manifest(manifest, &name, tree.span, &mut cx);
    }
    Document {
        name,
        file,
        value,
        diagnostics,
    }
}

fn check_manifest(manifest: &Manifest, stem: &str, span: Span, cx: &mut Context<'_>) {
    if manifest.schema_version.is_none() && !manifest.invalid.contains(&"schema_version") {
        cx.notice(
            Code::AssumedVersion,
            Span {
                end: span.start,
                ..span
            },
            "the manifest has no `schema_version`; 2 is assumed",
            "write `schema_version: 2` at the top",
        );
    }
    match &manifest.name {
        Some(name) if name.as_str() != stem => cx.notice(
            Code::NameDiffers,
            name.span,
            format!("the name `{name}` differs from the file name `{stem}`"),
            format!("the file name takes precedence: write `name: {stem}`, or rename the file"),
        ),
        None if !manifest.invalid.contains(&"name") => cx.notice(
            Code::NameAssumed,
            Span {
                end: span.start,
                ..span
            },
            format!("the manifest has no name, so the file name `{stem}` is used"),
            format!("write `name: {stem}` at the top"),
        ),
        Some(_) | None => check_name(stem, span, cx),
    }
    if manifest
        .nodes
        .as_ref()
        .is_some_and(|nodes| nodes.is_empty())
    {
        let span = manifest.nodes.as_ref().map_or(span, |nodes| nodes.span);
        cx.error(
            Code::Empty,
            span,
            "the manifest has no nodes",
            "list at least one node",
        );
    }
    let mut seen: BTreeMap<&NodeName, Span> = BTreeMap::new();
    for name in manifest
        .nodes
        .iter()
        .flat_map(|nodes| nodes.iter())
        .filter_map(|node| node.name.as_ref())
    {
        let Some(first) = seen.get(&name.value) else {
            seen.insert(&name.value, name.span);
            continue;
        };
        cx.diagnostics.push(
            Diagnostic::error(
                Code::DuplicateNode,
                name.span,
                format!("the node `{name}` is defined twice", name = name.value),
            )
            .label(*first, "first defined here")
            .hint("rename one of them: a node's name is its host name"),
        );
    }
}
