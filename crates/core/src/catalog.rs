//! All documents of a site, decoded, by kind and name.
//!
//! In: [`Input`]s, as the loader found them. Out: [`Catalog`], each document with its own faults.
//! Never: reading files; following references (that is `resolve`).

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
use crate::kind::{KnownKind, Traits};

/// One document as the loader found it.
pub struct Input {
    /// What it is.
    pub kind: DocumentKind,
    /// Its identity: the file's name without `.yaml`.
    pub name: String,
    /// Path as shown to people.
    pub path: String,
    /// The text, or why there is none.
    pub text: Result<String, Problem>,
}

/// Why the loader has no text for a document, or what it noticed beside the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The code.
    pub code: Code,
    /// Whether it stops the document from being used.
    pub severity: Severity,
    /// What happened.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// A decoded document with the faults found in it alone.
pub struct Document<T> {
    /// Its identity.
    pub name: String,
    /// Its source.
    pub file: FileId,
    /// What could be decoded; `None` when nothing could.
    pub value: Option<T>,
    /// What is wrong with it.
    pub faults: Diagnostics,
}

impl<T> Document<T> {
    /// Returns the place to point at when the whole document is meant.
    pub fn span(&self) -> Span {
        Span::start_of(self.file)
    }
}

/// Documents of one kind by name.
pub type Shelf<T> = BTreeMap<String, Document<T>>;

/// All documents of a site.
#[derive(Default)]
pub struct Catalog {
    /// The texts, for places.
    pub sources: Sources,
    /// `site.yaml`
    pub site: Option<Document<Site>>,
    /// `secrets.yaml`
    pub secrets: Option<Document<SecretsFile>>,
    /// `manifests/`
    pub manifests: Shelf<Manifest>,
    /// `specs/`
    pub specs: Shelf<Spec>,
    /// `postures/`
    pub postures: Shelf<Posture>,
    /// `presets/`
    pub presets: Shelf<Preset>,
    /// `images/`, with the built-in ones.
    pub images: Shelf<Image>,
    /// `hosts/`
    pub hosts: Shelf<Host>,
    /// `nodes/`
    pub nodes: Shelf<PveNode>,
    /// Kinds of hosts that there are; whoever opens hosts says so.
    pub kinds: Vec<KnownKind>,
    /// Other names of images, to their own.
    aliases: BTreeMap<String, String>,
    /// What is wrong with the catalog as a whole, such as an alias used twice.
    pub faults: Diagnostics,
}

impl Catalog {
    /// Reads and decodes every input.
    pub fn read(inputs: Vec<Input>) -> Self {
        let mut catalog = Self::default();
        for input in inputs {
            catalog.add(input);
        }
        catalog.index_aliases();
        catalog
    }

    /// Adds one document.
    pub fn add(&mut self, input: Input) {
        let sources = &mut self.sources;
        match input.kind {
            DocumentKind::Site => {
                let mut document = decode(sources, input);
                keep_id(&mut document.faults);
                self.site = Some(document);
            }
            DocumentKind::Secrets => {
                let mut document = decode::<SecretsFile>(sources, input);
                if let Some(secrets) = &document.value {
                    secrets.check(&mut Context {
                        faults: &mut document.faults,
                        secret: true,
                    });
                }
                self.secrets = Some(document);
            }
            DocumentKind::Manifest => shelve(&mut self.manifests, decode_manifest(sources, input)),
            DocumentKind::Spec => shelve(&mut self.specs, decode(sources, input)),
            DocumentKind::Posture => shelve(&mut self.postures, decode(sources, input)),
            DocumentKind::Preset => shelve(&mut self.presets, decode(sources, input)),
            DocumentKind::Image => {
                let mut document = decode::<Image>(sources, input);
                if let Some(image) = &document.value {
                    image.check(&mut Context {
                        faults: &mut document.faults,
                        secret: false,
                    });
                }
                shelve(&mut self.images, document);
            }
            DocumentKind::Host => shelve(&mut self.hosts, decode(sources, input)),
            DocumentKind::Node => shelve(&mut self.nodes, decode(sources, input)),
        }
    }

    /// Adds something that was noticed about a path beside the documents.
    pub fn note(&mut self, path: String, problem: &Problem) {
        let file = self.sources.add(Source::new(path, String::new()));
        self.faults.push(problem.diagnostic(Span::start_of(file)));
    }

    /// Returns how many documents there are, the built-in images included.
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

    /// Returns the site's defaults, when there are any.
    pub fn defaults(&self) -> Option<&Defaults> {
        let site = self.site.as_ref()?.value.as_ref()?;
        site.defaults.as_ref().map(|defaults| &defaults.value)
    }

    /// Returns the site's id, when it has one.
    pub fn site_id(&self) -> Option<&SiteId> {
        let site = self.site.as_ref()?.value.as_ref()?;
        site.id.as_ref().map(|id| &id.value)
    }

    /// Returns the image behind a name or alias.
    pub fn image(&self, name: &str) -> Option<&Document<Image>> {
        self.images
            .get(name)
            .or_else(|| self.images.get(self.aliases.get(name)?))
    }

    /// Returns every name and alias of images.
    pub fn image_names(&self) -> impl Iterator<Item = &str> {
        self.images
            .keys()
            .chain(self.aliases.keys())
            .map(String::as_str)
    }

    /// Returns hosts that exist without a document.
    pub fn built_in_hosts(&self) -> impl Iterator<Item = &str> {
        let built_in = self.kinds.iter().filter(|kind| kind.is_built_in);
        built_in.map(|kind| kind.word)
    }

    /// Tells whether a machine of that name can be a host.
    pub fn has_host(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
            || self.hosts.contains_key(name)
            || self.built_in_hosts().any(|host| host == name)
    }

    /// Returns the kind of a host: what opens it, and what its nodes are like.
    pub fn kind_of(&self, host: &str) -> &str {
        // There is one of each that is built in, called as its kind.
        if let Some(name) = self.built_in_hosts().find(|name| *name == host) {
            return name;
        }
        let written = self.written_kind(host).map(|kind| kind.as_str());
        let known = written.and_then(|word| self.document_kinds().find(|known| *known == word));
        known.unwrap_or(
            match self.nodes.contains_key(host) || !self.hosts.contains_key(host) {
                true => "pve",
                false => "ssh",
            },
        )
    }

    /// Returns the kind that the document of a host names: the one in `nodes/`, where there is one.
    pub(crate) fn written_kind(&self, host: &str) -> Option<&Spanned<Name>> {
        match self.nodes.get(host) {
            Some(document) => document.value.as_ref()?.kind.as_ref(),
            None => self.hosts.get(host)?.value.as_ref()?.kind.as_ref(),
        }
    }

    /// Returns kinds of hosts that have documents.
    pub(crate) fn document_kinds(&self) -> impl Iterator<Item = &str> {
        let kinds = self.kinds.iter().filter(|kind| !kind.is_built_in);
        kinds.map(|kind| kind.word)
    }

    /// Returns what a host is called in lists.
    pub fn label_of(&self, host: &str) -> &str {
        self.known_kind(host).map_or("", |kind| kind.label)
    }

    /// Returns what a host is like.
    pub fn traits_of(&self, host: &str) -> Traits {
        let kind = self.known_kind(host);
        kind.map_or(Traits::PROXMOX_VE, |kind| kind.traits)
    }

    fn known_kind(&self, host: &str) -> Option<&KnownKind> {
        let word = self.kind_of(host);
        self.kinds.iter().find(|kind| kind.word == word)
    }

    /// Returns hosts with a document that guests can be created on.
    pub fn guest_hosts(&self) -> impl Iterator<Item = &String> {
        let creates = move |name: &&String| {
            let kind = self.known_kind(name);
            !self.nodes.contains_key(*name) && kind.is_some_and(|kind| kind.traits.creates_guests)
        };
        self.nodes.keys().chain(self.hosts.keys().filter(creates))
    }

    /// Returns every name that can be a host, each once.
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
                    self.faults.push(
                        Diagnostic::error(
                            Code::Repeated,
                            alias.span,
                            format!("`{alias}` already names the image `{earlier}`"),
                        )
                        .hint("give each image names of its own"),
                    );
                } else {
                    self.aliases.insert(alias.to_string(), name.clone());
                }
            }
        }
    }
}

/// An empty `site.yaml` is not to be deleted without a thought: the site's id may have been in it.
fn keep_id(faults: &mut Diagnostics) {
    let found = std::mem::take(faults);
    for mut fault in found.iter().cloned() {
        if fault.code == Code::EmptyDocument {
            let hint = "restore the file from git: the site's id was in it if the site has guests, \
                        and they carry it in the tag `homestak-s-ID`; delete the file only if it \
                        has none";
            fault.hint = Some(hint.to_owned());
        }
        faults.push(fault);
    }
}

fn shelve<T>(shelf: &mut Shelf<T>, document: Document<T>) {
    shelf.insert(document.name.clone(), document);
}

fn decode<T: Decode>(sources: &mut Sources, input: Input) -> Document<T> {
    let secret = input.kind == DocumentKind::Secrets;
    let kind = input.kind;
    let (name, file, tree, mut faults) = parse(sources, input);
    let mut cx = Context {
        faults: &mut faults,
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
        faults,
    }
}

fn parse(sources: &mut Sources, input: Input) -> (String, FileId, Option<Value>, Diagnostics) {
    let mut faults = Diagnostics::default();
    let secret = input.kind == DocumentKind::Secrets;
    let make = if secret { Source::secret } else { Source::new };
    match input.text {
        Ok(text) => {
            let file = sources.add(make(input.path, text));
            let mut tree = sources
                .source(file)
                .and_then(|source| yaml::parse(file, source, &mut faults));
            // A document that is `~`, or `---` alone, says as little as an empty file.
            if let Some(nothing) = tree.take_if(|tree| tree.is_null()) {
                faults.push(yaml::empty(nothing.span));
            }
            (input.name, file, tree, faults)
        }
        Err(problem) => {
            let file = sources.add(make(input.path, String::new()));
            faults.push(problem.diagnostic(Span::start_of(file)));
            (input.name, file, None, faults)
        }
    }
}

impl Problem {
    /// Turns the problem into a diagnostic at a place.
    pub fn diagnostic(&self, span: Span) -> Diagnostic {
        let made = match self.severity {
            Severity::Error => Diagnostic::error(self.code, span, self.message.clone()),
            Severity::Notice => Diagnostic::notice(self.code, span, self.message.clone()),
        };
        made.hint(self.hint.clone())
    }
}

fn check_name(name: &str, span: Span, cx: &mut Context<'_>) {
    if Name::new(name).is_none() {
        cx.error(
            Code::InvalidName,
            span,
            format!("{} cannot name a document", cx.quoted(name)),
            "rename the file: letters, digits, `.`, `_` and `-`",
        );
    }
}

/// Manifests have three rules of their own: version 1 is refused with the way out, and version
/// and name may be left out, because the file says both.
fn decode_manifest(sources: &mut Sources, input: Input) -> Document<Manifest> {
    let (name, file, tree, mut faults) = parse(sources, input);
    let Some(tree) = tree else {
        return Document {
            name,
            file,
            value: None,
            faults,
        };
    };
    let mut cx = Context::new(&mut faults);
    let entries = tree.entries().unwrap_or_default();
    let levels = entries.iter().find(|entry| entry.key.text == "levels");
    // With nodes it is version 2, whatever it says; the wrong number is reported as such.
    if let (Some(levels), None) = (levels, tree.field("nodes")) {
        let place = sources.locate(Span::start_of(file)).path;
        cx.error(
            Code::ManifestV1,
            levels.key.span,
            "this is a manifest of schema version 1, which is no longer read",
            format!("`homestak manifest migrate {place}` writes it as version 2"),
        );
        return Document {
            name,
            file,
            value: None,
            faults,
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
        faults,
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
            "the manifest does not say its schema version; 2 is assumed",
            "write `schema_version: 2` at the top",
        );
    }
    match &manifest.name {
        Some(name) if name.as_str() != stem => cx.notice(
            Code::NameDiffers,
            name.span,
            format!("the name `{name}` differs from the file's, `{stem}`"),
            format!("the file's name counts: write `name: {stem}`, or rename the file"),
        ),
        None if !manifest.invalid.contains(&"name") => cx.notice(
            Code::NameAssumed,
            Span {
                end: span.start,
                ..span
            },
            format!("the manifest has no name, so it is called `{stem}`"),
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
        cx.faults.push(
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
