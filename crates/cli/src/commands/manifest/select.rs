//! Which manifest a command is about: by name, from a file, or as JSON.
//!
//! In: the manifest flags. Out: the session with the manifest in it, resolved.
//! Never: a command that finds its manifest in a way of its own.

use homestak_core::catalog::Input;
use homestak_core::doc::Kind;
use homestak_core::doc::manifest::Mode;
use homestak_core::resolve::{Request, Resolved, manifest};

use crate::args::{ManifestArgs, ModeArg};
use crate::commands::require_sound;
use crate::error::CommandError;
use crate::session::Session;
use crate::settings::Settings;
use crate::ui::Printer;

/// A manifest chosen, resolved and without faults.
pub(crate) struct Selected {
    /// The site, with the manifest in it.
    pub(crate) session: Session,
    /// The manifest's name.
    pub(crate) name: String,
    /// The resolved manifest.
    pub(crate) resolved: Resolved,
}

/// Finds and resolves the manifest. Its faults are shown, and make this fail.
pub(crate) fn select(
    args: &ManifestArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<Selected, CommandError> {
    let mut session = Session::open(settings)?;
    let name = pick(args, &mut session)?.ok_or_else(|| {
        let known: Vec<&str> = session
            .catalog
            .manifests
            .keys()
            .map(String::as_str)
            .collect();
        CommandError::usage("Which manifest?")
            .hint(format!("add `-M NAME`; there is: {}", known.join(", ")))
    })?;
    let request = request(args, &session)?;
    let (resolved, faults) = manifest(&session.catalog, &name, &request);
    require_sound(printer, &faults, &session.catalog.sources)?;
    let resolved =
        resolved.ok_or_else(|| CommandError::failed("The manifest could not be read."))?;
    Ok(Selected {
        session,
        name,
        resolved,
    })
}

/// Returns the name of the manifest the flags choose, after adding it to the site if need be.
pub(crate) fn pick(
    args: &ManifestArgs,
    session: &mut Session,
) -> Result<Option<String>, CommandError> {
    if let Some(json) = &args.manifest_json {
        let file = [".yaml", ".yml", ".json"]
            .iter()
            .any(|suffix| json.ends_with(suffix));
        if file && !json.contains('{') {
            return Err(CommandError::usage(format!(
                "`--manifest-json` takes the manifest itself, and `{json}` is the name of a file."
            ))
            .hint(format!("--manifest-file {json}")));
        }
        let name = inline_name(json);
        let input = Input {
            kind: Kind::Manifest,
            name: name.clone(),
            path: "--manifest-json".into(),
            text: Ok(json.clone()),
        };
        session.catalog.add(input);
        return Ok(Some(name));
    }
    if let Some(path) = &args.manifest_file {
        return Ok(Some(session.add_file(Kind::Manifest, path)?));
    }
    let Some(name) = args.manifest.as_ref().or(args.name.as_ref()) else {
        return Ok(None);
    };
    if !session.catalog.manifests.contains_key(name) {
        let known = session.catalog.manifests.keys().map(String::as_str);
        return Err(CommandError::unknown("manifest", name, known));
    }
    Ok(Some(name.clone()))
}

/// Inline JSON has no file that names it, so its own name counts.
fn inline_name(json: &str) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_str(json).ok();
    let name = parsed
        .as_ref()
        .and_then(|manifest| manifest.get("name")?.as_str());
    name.unwrap_or("inline").to_owned()
}

/// Turns flags into what they add to the documents.
pub(crate) fn request(args: &ManifestArgs, session: &Session) -> Result<Request, CommandError> {
    if let Some(host) = args
        .host
        .as_ref()
        .filter(|host| !session.catalog.has_host(host))
    {
        return Err(
            CommandError::unknown("host", host, session.catalog.host_names())
                .hint("hosts are the files in `nodes/` and `hosts/` of the site"),
        );
    }
    let mode = args.mode.map(|mode| match mode {
        ModeArg::Push => Mode::Push,
        ModeArg::Pull => Mode::Pull,
        ModeArg::Hybrid => Mode::Hybrid,
    });
    Ok(Request {
        host: args.host.clone(),
        mode,
        ..Request::default()
    })
}
