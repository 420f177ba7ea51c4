//! What is tried on arbitrary bytes, one body per target.
//!
//! In: the name of a target and bytes. Out: nothing, or a panic that is a bug.
//! Never: knowledge of the fuzzer: `crates/core/tests/corpus.rs` includes this file and replays
//! every stored input on the stable toolchain.

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

/// Every target, in the order they are run.
pub const TARGETS: &[&str] = &[
    "manifest", "spec", "posture", "preset", "site", "host", "node", "image", "secrets", "yaml",
    "migrate", "token", "render",
];

/// Deepest nesting that the command line draws.
const DEEPEST: usize = 200;

/// Tries one input. Panics when something is wrong, which is what a fuzzer looks for.
pub fn run(target: &str, bytes: &[u8]) {
    // The loader refuses anything else before this code sees it.
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match target {
        "yaml" => round_trip(text),
        "migrate" => migration(text),
        "token" => token(text),
        // Diagnostics of manifests; the layout itself is tried where the command line is known.
        "render" => judge(DocumentKind::Manifest, bytes, &|_, _| {}),
        word => {
            let kind = DocumentKind::ALL.iter().find(|kind| kind.word() == word);
            let kind = kind.unwrap_or_else(|| panic!("there is no target `{word}`"));
            judge(*kind, bytes, &|_, _| {});
        }
    }
}

/// Reads one document on top of a small sound site, checks the site, and resolves and draws what
/// can be. `see` is shown every diagnostic.
pub fn judge(kind: DocumentKind, bytes: &[u8], see: &dyn Fn(&Diagnostic, &Sources)) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut inputs = site();
    let name = if kind == DocumentKind::Manifest {
        "m"
    } else {
        "x"
    };
    // The document takes the place of the sound one, so that others refer to it.
    inputs.retain(|input| input.kind != kind || input.name != name);
    inputs.retain(|input| {
        input.kind != kind || !matches!(kind, DocumentKind::Site | DocumentKind::Secrets)
    });
    inputs.push(input(kind, name, text));
    let catalog = Catalog::read(inputs);
    let faults = resolve::site::validate(&catalog);
    check_places(&faults, &catalog.sources, see);
    if kind == DocumentKind::Secrets {
        check_silence(text, &faults);
    }
    export(&catalog);
    let (resolved, faults) = resolve::manifest(&catalog, "m", &ResolveOptions::default());
    check_places(&faults, &catalog.sources, see);
    if let Some(resolved) = resolved.filter(|_| faults.errors() == 0) {
        show(&resolved, &catalog);
    }
}

/// A site in which everything fits, with one document of each kind.
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
        path: format!("{}/{name}.yaml", kind.word()),
        text: Ok(text.into()),
    }
}

/// Every place lies inside its text and between characters, and can be located.
fn check_places(faults: &Diagnostics, sources: &Sources, see: &dyn Fn(&Diagnostic, &Sources)) {
    for fault in faults.sorted(sources) {
        check_place(fault.span, sources);
        for (span, _) in &fault.labels {
            check_place(*span, sources);
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
        see(fault, sources);
    }
}

fn check_place(span: Span, sources: &Sources) {
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

/// No value of the secrets appears in what is said about them.
fn check_silence(text: &str, faults: &Diagnostics) {
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
    // Short values and ordinary words are in our own sentences; values with digits are not.
    let telling = |value: &&&str| {
        value.len() >= 10
            && value.bytes().any(|byte| byte.is_ascii_digit())
            && value.bytes().any(|byte| byte.is_ascii_alphabetic())
            && !keys.contains(**value)
    };
    for value in values.iter().filter(telling) {
        for fault in faults.iter() {
            let labels = fault.labels.iter().map(|(_, text)| text.as_str());
            let words = [fault.message.as_str(), fault.hint.as_deref().unwrap_or("")];
            for said in words.into_iter().chain(labels) {
                assert!(
                    !said.contains(value),
                    "a secret was said: {}",
                    fault.code.id()
                );
            }
        }
    }
}

/// Everything that other programs are given.
fn export(catalog: &Catalog) {
    use homestak_core::resolve::ansible::{Compat, variables};
    for reveal in [SecretVisibility::Masked, SecretVisibility::Exposed] {
        let _ = variables(catalog, "x", Compat::Seed, reveal);
        let _ = spec(catalog, "x", None, reveal).map(|sheet| sheet.json());
    }
}

/// Everything that is shown of a sound manifest.
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
    check_places(&faults, &sources, &|_, _| {});
    assert!(
        value.is_some() || faults.errors() > 0,
        "nothing was read and nothing was said"
    );
    value.filter(|_| faults.errors() == 0)
}

/// What was read is written so that it reads back as the same, in the same bytes.
fn round_trip(text: &str) {
    let Some(value) = read(text) else { return };
    let emitted = emit(&value);
    let again = read(&emitted).unwrap_or_else(|| panic!("does not read back:\n{emitted}"));
    assert!(again == value, "reads back as something else:\n{emitted}");
    assert_eq!(emit(&again), emitted);
    let _ = value.to_json();
}

/// What migration writes can be read.
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
        judge(DocumentKind::Manifest, emitted.as_bytes(), &|_, _| {});
    }
}

/// Arbitrary tokens are refused, arbitrary claims survive.
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
