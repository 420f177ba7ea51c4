//! Fuzz targets for documents. A panic is a bug.
//!
//! `crates/core/tests/corpus.rs` includes this file and replays every stored input on the stable
//! toolchain, so it does not depend on the fuzzer.

use std::collections::BTreeSet;

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::emit::emit;
use homestak_core::doc::migrate::migrate;
use homestak_core::doc::{
    Data, Diagnostic, Diagnostics, DocumentKind, Source, Sources, Span, Value, yaml,
};
use homestak_core::draw::{self, Glyphs};
use homestak_core::resolve::spec::spec;
use homestak_core::resolve::{
    self, ResolveOptions, ResolvedJson, ResolvedManifest, SecretVisibility,
};
use homestak_core::token::{Claims, SigningKey, inspect, mint, verify};

/// All targets.
pub const TARGETS: &[&str] = &[
    "manifest", "spec", "posture", "preset", "site", "host", "node", "image", "secrets", "yaml",
    "migrate", "token", "render",
];

/// Deepest nesting that the command line draws.
const DEEPEST: usize = 200;

/// Runs a target on one input. Panics if a check fails.
pub fn run(target: &str, bytes: &[u8]) {
    // The loader refuses anything else earlier.
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match target {
        "yaml" => round_trip(text),
        "migrate" => migration(text),
        "token" => token(text),
        // Diagnostics of manifests; their rendering is tested in the command line's crate.
        "render" => check_document(DocumentKind::Manifest, bytes, &|_, _| {}),
        word => {
            let kind = DocumentKind::ALL.iter().find(|kind| kind.name() == word);
            let kind = kind.unwrap_or_else(|| panic!("there is no target `{word}`"));
            check_document(*kind, bytes, &|_, _| {});
        }
    }
}

/// Reads one document on top of a small valid site, checks the site, and resolves and draws it if
/// possible. `on_diagnostic` is called with every diagnostic.
pub fn check_document(
    kind: DocumentKind,
    bytes: &[u8],
    on_diagnostic: &dyn Fn(&Diagnostic, &Sources),
) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut inputs = site();
    let name = if kind == DocumentKind::Manifest {
        "m"
    } else {
        "x"
    };
    // The document replaces the valid one, so that others refer to it.
    inputs.retain(|input| input.kind != kind || input.name != name);
    inputs.retain(|input| {
        input.kind != kind || !matches!(kind, DocumentKind::Site | DocumentKind::Secrets)
    });
    inputs.push(input(kind, name, text));
    let catalog = Catalog::read(inputs);
    let faults = resolve::site::validate(&catalog);
    check_spans(&faults, &catalog.sources, on_diagnostic);
    if kind == DocumentKind::Secrets {
        check_no_secrets(text, &faults);
    }
    export(&catalog);
    let (resolved, faults) = resolve::manifest(&catalog, "m", &ResolveOptions::default());
    check_spans(&faults, &catalog.sources, on_diagnostic);
    if let Some(resolved) = resolved.filter(|_| faults.errors() == 0) {
        show(&resolved, &catalog);
    }
}

/// A valid site with one document of each kind.
fn site() -> Vec<InputDocument> {
    vec![
        input(
            DocumentKind::Site,
            "site",
            "defaults: {image: x, preset: x, template: t, network: lan, domain: a.example}\n\
             networks: {lan: {cidr: 192.0.2.0/24, gateway: 192.0.2.1}}\n",
        ),
        input(
            DocumentKind::Secrets,
            "secrets",
            "ssh_keys: {ops: ssh-ed25519 AAAA}\napi_tokens: {x: a@pam!b=c}\n",
        ),
        input(DocumentKind::Posture, "x", "ssh: {port: 22}\n"),
        input(DocumentKind::Posture, "dev", "{}\n"),
        input(
            DocumentKind::Preset,
            "x",
            "{cores: 1, memory: 512, disk: 8}\n",
        ),
        input(DocumentKind::Image, "x", "aliases: [y]\n"),
        input(DocumentKind::Image, "t", "type: template\n"),
        input(
            DocumentKind::Spec,
            "x",
            "access: {posture: x, users: [{name: ops, ssh_keys: [ops]}]}\nconfig: {pve: {}}\n",
        ),
        input(DocumentKind::Host, "x", "ip: 192.0.2.7\n"),
        input(
            DocumentKind::Node,
            "x",
            "api_endpoint: https://192.0.2.7:8006\nhost: x\n",
        ),
        input(
            DocumentKind::Manifest,
            "m",
            "schema_version: 2\nname: m\nnodes: [{name: a, spec: x, host: x}, {name: b, type: ct, parent: a}]\n",
        ),
    ]
}

fn input(kind: DocumentKind, name: &str, text: &str) -> InputDocument {
    InputDocument {
        kind,
        name: name.into(),
        path: format!("{}/{name}.yaml", kind.name()),
        text: Ok(text.into()),
    }
}

/// Every span is inside its text, at character boundaries, and can be located.
fn check_spans(
    faults: &Diagnostics,
    sources: &Sources,
    on_diagnostic: &dyn Fn(&Diagnostic, &Sources),
) {
    for fault in faults.sorted(sources) {
        check_span(fault.span, sources);
        for (span, _) in &fault.labels {
            check_span(*span, sources);
        }
        let longest = fault.message.len().max(
            fault
                .labels
                .iter()
                .map(|(_, text)| text.len())
                .max()
                .unwrap_or(0),
        );
        assert!(longest < 4_000, "a message has {longest} bytes");
        assert!(
            fault.labels.len() < 100,
            "a fault has {} labels",
            fault.labels.len()
        );
        assert!(fault.hint.is_some(), "no way out: {}", fault.message);
        on_diagnostic(fault, sources);
    }
}

fn check_span(span: Span, sources: &Sources) {
    let source = sources
        .source(span.file)
        .unwrap_or_else(|| panic!("{span:?} is in no file"));
    let (start, end) = (span.start as usize, span.end as usize);
    assert!(
        start <= end && end <= source.text.len(),
        "{span:?} is outside"
    );
    assert!(
        source.text.is_char_boundary(start) && source.text.is_char_boundary(end),
        "{span:?} cuts a character"
    );
    let location = sources.locate(span);
    assert!(location.line >= 1 && location.column >= 1);
}

/// No value of the secrets appears in diagnostics.
fn check_no_secrets(text: &str, faults: &Diagnostics) {
    let source = Source::secret("secrets.yaml", text);
    let file = Sources::default().add(source.clone());
    let Some(tree) = yaml::parse(file, &source, &mut Diagnostics::default()) else {
        return;
    };
    let (mut keys, mut values) = (String::new(), BTreeSet::new());
    let mut queue = vec![&tree];
    while let Some(value) = queue.pop() {
        match &value.data {
            Data::Scalar(scalar) => _ = values.insert(scalar.text.as_str()),
            Data::Seq(items) => queue.extend(items),
            Data::Map(entries) => {
                for entry in entries {
                    keys.push_str(&entry.key.text);
                    queue.push(&entry.value);
                }
            }
        }
    }
    // Short values and ordinary words occur in our own messages; values with digits do not.
    let is_secret_like = |value: &&&str| {
        value.len() >= 10
            && value.bytes().any(|byte| byte.is_ascii_digit())
            && value.bytes().any(|byte| byte.is_ascii_alphabetic())
            && !keys.contains(**value)
    };
    for value in values.iter().filter(is_secret_like) {
        for fault in faults.iter() {
            let labels = fault.labels.iter().map(|(_, text)| text.as_str());
            let words = [fault.message.as_str(), fault.hint.as_deref().unwrap_or("")];
            for text in words.into_iter().chain(labels) {
                assert!(
                    !text.contains(value),
                    "a secret is in a message: {}",
                    fault.code.id()
                );
            }
        }
    }
}

/// All exports for other programs.
fn export(catalog: &Catalog) {
    use homestak_core::resolve::ansible::{Compat, variables};
    for reveal in [SecretVisibility::Masked, SecretVisibility::Exposed] {
        let _ = variables(catalog, "x", Compat::Legacy, reveal);
        let _ = spec(catalog, "x", None, reveal).map(|sheet| sheet.json());
    }
}

/// All renderings of a valid manifest.
fn show(resolved: &ResolvedManifest, catalog: &Catalog) {
    describe(&resolved.render(), &catalog.sources);
    for node in &resolved.nodes {
        describe(&node.render(), &catalog.sources);
        let spec = node
            .spec
            .as_ref()
            .and_then(|name| spec(catalog, &name.value, Some(node), SecretVisibility::Masked));
        if let Some(spec) = spec {
            describe(&spec, &catalog.sources);
        }
    }
    let deepest = resolved.nodes.iter().map(|node| node.depth).max();
    if deepest.unwrap_or(0) < DEEPEST {
        let picture = resolved.diagram(Some("x"));
        for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
            assert!(draw::tree(&picture, glyphs).ends_with('\n'));
        }
        assert!(draw::svg(&picture).trim_end().ends_with("</svg>"));
        assert!(draw::dot(&picture).trim_end().ends_with('}'));
        assert!(draw::mermaid(&picture).contains("flowchart"));
    }
}

fn describe(sheet: &ResolvedJson, sources: &Sources) {
    for (_, origin) in sheet.origins() {
        assert!(!origin.describe(sources).contains("(unknown)"));
    }
    let json = sheet.json();
    let text = emit(&Value::from_json(&json));
    assert!(
        read(&text).is_some_and(|value| value == Value::from_json(&json)),
        "a sheet does not read back:\n{text}"
    );
}

/// Reads a text without faults.
fn read(text: &str) -> Option<Value> {
    let source = Source::new("text.yaml", text);
    let mut sources = Sources::default();
    let file = sources.add(source.clone());
    let mut faults = Diagnostics::default();
    let value = yaml::parse(file, &source, &mut faults);
    check_spans(&faults, &sources, &|_, _| {});
    assert!(
        value.is_some() || faults.errors() > 0,
        "no value and no diagnostic"
    );
    value.filter(|_| faults.errors() == 0)
}

/// A parsed document is written so that it reads back as the same value and the same bytes.
fn round_trip(text: &str) {
    let Some(value) = read(text) else { return };
    let emitted = emit(&value);
    let again = read(&emitted).unwrap_or_else(|| panic!("does not read back:\n{emitted}"));
    assert!(again == value, "reads back as something else:\n{emitted}");
    assert_eq!(emit(&again), emitted);
    let _ = value.to_json();
}

/// The output of a migration can be read.
fn migration(text: &str) {
    let Some(value) = read(text) else { return };
    let mut faults = Diagnostics::default();
    if let Ok(migrated) = migrate(&value, "stem", &mut faults) {
        let emitted = emit(&migrated);
        let again = read(&emitted).unwrap_or_else(|| panic!("does not read back:\n{emitted}"));
        assert!(
            again == migrated,
            "reads back as something else:\n{emitted}"
        );
        check_document(DocumentKind::Manifest, emitted.as_bytes(), &|_, _| {});
    }
}

/// Arbitrary tokens are refused; arbitrary claims survive a round trip.
fn token(text: &str) {
    let _ = SigningKey::from_hex(text);
    let Ok(key) = SigningKey::from_hex("00ff") else {
        return;
    };
    let inspected = inspect(text);
    if let Ok(claims) = verify(text, &key, None) {
        assert_eq!(Ok(claims), inspected);
    }
    let (node, spec) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let claims = Claims {
        node: node.into(),
        spec: spec.into(),
        issued_at: i64::try_from(text.len()).unwrap_or(0),
        guest: None,
    };
    let minted = mint(&claims, &key);
    assert_eq!(verify(&minted, &key, Some(node)), Ok(claims));
}
