//! `homestak server start`: publishes the site, and starts its server in the background.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::ColorChoice;
use homestak_api::certificate::certificates;
use homestak_api::v1::{ServerStart, kind};
use homestak_core::doc::timeouts::Limit;
use homestak_driver::DriverError;
use homestak_driver::repos::RepoReport;
use homestak_driver::server::{self, ServerEndpoint, ServerState, SiteServer};
use homestak_server::settings::{ServerSettings, SettingsError};
use rustix::fs::MemfdFlags;

use super::{Outcome, repos, sentence, serve};
use crate::args::ServerStartArgs;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

pub(super) fn run(args: &ServerStartArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let mut values = merged(args).map_err(|error| DriverError::failed(sentence(&error)))?;
    if values.port == 0 && !args.foreground {
        return Err(
            DriverError::usage("Port 0 can be used with `--foreground` only.")
                .hint("use --port with a port from 1 to 65535"),
        );
    }
    let options = repos::options(&args.repos, &values.repos, printer)?;
    if args.published.is_some() {
        if args.repos.repos {
            return Err(
                DriverError::usage("`--repos` cannot be combined with `--published`.")
                    .hint("homestak server publish --repos publishes repositories for this server"),
            );
        }
        return serve::run(args, &values, settings, printer);
    }
    let session = settings.session()?;
    // Nodes and other commands use the port of the URL.
    if args.port.is_none()
        && values.port == ServerSettings::default().port
        && let Some(port) = ServerEndpoint::port_in_url(&session, &settings.driver)?
    {
        values.port = port;
    }
    let endpoint = ServerEndpoint::here_at(values.bind, values.port);
    let patience = session.timeouts().of(Limit::Lock);
    let mut server = SiteServer::open(&session, &settings.driver, endpoint)?;
    if let Some(log) = &args.log {
        server.files.log =
            std::path::absolute(log).map_err(|error| DriverError::file("use", log, &error))?;
    }
    if let Some(target) = &server.target {
        return Err(DriverError::refused(format!(
            "This site publishes to `{target}`, and its server is started there."
        ))
        .hint("systemctl start homestak-server")
        .hint("to run it on this machine, remove `publish_to` from site.yaml"));
    }
    let found = server::state(&server.files)?;
    let is_running = matches!(
        found,
        ServerState::Running {
            is_temporary: false,
            ..
        }
    );
    if found == ServerState::Stopped && !args.foreground {
        // One in the foreground may have the socket of systemd, which answers already.
        block_on(server.require_port())??;
    }
    if let Some(own) = &values.cert {
        // Nothing is announced for a server that cannot start.
        homestak_server::check_certificate(&values)
            .map_err(|error| DriverError::failed(sentence(&error)))?;
        if is_running && !server.recognises(&read_certificate(own)?)? {
            return Err(DriverError::refused(
                "A server runs already, and nodes do not accept this certificate yet.",
            )
            .hint(format!("homestak server trust {}", own.display()))
            .hint("then `homestak server stop`, and start it again"));
        }
        announce(own, &mut server, settings, printer)?;
    }
    // A server that runs is kept as it is, unless repositories are asked for.
    if options.is_none() && (!is_running || args.foreground) {
        server.serve_repos(None)?;
    }
    let report = repos::prepare(&server, options.as_ref(), settings, printer)?;
    if options.is_some() {
        server.serve_repos(options.as_ref())?;
    }
    server.publish_site(settings.driver.time.now())?;
    if let Err(error) = server.publish_agent(&settings.driver) {
        // Nodes that have an agent need none from here.
        printer.message(&format!(
            "warning: {}\n  The agent was not published: new nodes cannot obtain it from this server, \
             or obtain the one that was published before. Repeat the command once this is corrected",
            error.message
        ));
    }
    let started = (args, &values, report.as_ref());
    let mut arguments = arguments((args, &values), &server, settings);
    if args.foreground {
        arguments.extend(foreground_arguments(args, settings));
        let announced = announcement(&result(started, &server, (None, true)))?;
        return Err(server::become_server(
            &settings.driver,
            &arguments,
            announced,
        ));
    }
    block_on(async {
        // A run that has lost its server may be starting one.
        let _turn = server::take_turn(&server.files, patience).await?;
        in_background((started, &arguments), &server, settings, printer).await
    })?
}

/// Reads a certificate that the operator provides.
pub(super) fn read_certificate(path: &Path) -> Result<String, DriverError> {
    let text =
        fs_err::read_to_string(path).map_err(|error| DriverError::file("read", path, &error))?;
    certificates(&text).map_err(|_| {
        let path = path.display();
        DriverError::failed(format!("`{path}` contains no certificate in PEM."))
    })?;
    Ok(text)
}

/// Returns the fingerprint that the server is recognised by.
fn fingerprint(server: &SiteServer, values: &ServerSettings) -> String {
    let own = values.cert.as_deref().map(read_certificate);
    server.fingerprint(own.and_then(Result::ok).as_deref())
}

/// Makes the operator's own certificate known to nodes.
fn announce(
    own: &Path,
    server: &mut SiteServer,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), DriverError> {
    let (fingerprint, is_new) = server.recognise(&read_certificate(own)?)?;
    if !is_new {
        return Ok(());
    }
    server.sign_again(settings.driver.time.now())?;
    printer.message(&format!(
        "notice: nodes accept the certificate {fingerprint} from now on"
    ));
    let behind = block_on(super::lease(settings)?.nodes_behind())??;
    if !behind.is_empty() {
        printer.message(&format!(
            "warning: these nodes do not know it yet, and refuse a server that uses it: {}\n  \
             `homestak server trust FILE` announces a certificate before a server uses it",
            behind.join(", ")
        ));
    }
    Ok(())
}

/// Reads the settings; flags take precedence.
pub(super) fn merged(args: &ServerStartArgs) -> Result<ServerSettings, SettingsError> {
    let mut values = match &args.settings {
        Some(file) => ServerSettings::read(file)?,
        None => ServerSettings::default(),
    };
    values.port = args.port.unwrap_or(values.port);
    values.bind = args.bind.unwrap_or(values.bind);
    if args.cert.is_some() {
        values.cert.clone_from(&args.cert);
        values.key.clone_from(&args.key);
    }
    values.check()?;
    Ok(values)
}

/// What a server is started with: its arguments and settings, and repositories that it serves.
type Started<'a> = (
    &'a ServerStartArgs,
    &'a ServerSettings,
    Option<&'a RepoReport>,
);

async fn in_background(
    (started, arguments): (Started<'_>, &[OsString]),
    server: &SiteServer,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (args, _, report) = started;
    let client = server.client()?;
    let (pid, is_temporary) = match server::state(&server.files)? {
        ServerState::Running {
            pid, is_temporary, ..
        } => (pid, is_temporary),
        ServerState::Stopped => (None, false),
    };
    let is_healthy = client.is_healthy().await;
    if is_healthy && !is_temporary {
        let restart = restart_options(args);
        if !restart.is_empty() {
            printer.message(&format!(
                "notice: the server runs already and was not restarted: {} may not be in effect\n  \
                 `homestak server stop`, then the same command, starts it with these options",
                restart.join(", ")
            ));
        }
        if report.is_some() {
            // It may not know the token or the repositories yet.
            client.reload().await?;
        }
        serve::print(&result(started, server, (pid, false)), printer);
        return Ok(ExitCode::SUCCESS);
    }
    let files = server.files.clone();
    let replaced = homestak_driver::run_blocking(move || server::stop(&files)).await?;
    if replaced && !is_healthy {
        printer.message("notice: a server that did not answer was stopped");
    } else if replaced {
        printer.message("notice: the server that a run had started was stopped; this one stays");
    }
    let pid = server::start(&server.files, &settings.driver, arguments, &client).await?;
    serve::print(&result(started, server, (Some(pid), true)), printer);
    Ok(ExitCode::SUCCESS)
}

/// Returns the options that are given and that only a server that starts reads.
fn restart_options(args: &ServerStartArgs) -> Vec<&'static str> {
    let options = [
        ("`--bind`", args.bind.is_some()),
        ("`--cert`", args.cert.is_some()),
        ("`--settings`", args.settings.is_some()),
        ("`--log`", args.log.is_some()),
    ];
    let given = options.into_iter().filter(|(_, is_given)| *is_given);
    given.map(|(name, _)| name).collect()
}

/// Returns the arguments of the process that listens. It opens no site: none of its secrets may be in
/// the memory of a process that anyone can connect to.
fn arguments(
    (args, values): (&ServerStartArgs, &ServerSettings),
    server: &SiteServer,
    settings: &Settings,
) -> Vec<OsString> {
    let mut all = server.files.arguments();
    all.push("--publish-on-hangup".into());
    let mut add = |flag: &str, value: Option<OsString>| {
        if let Some(value) = value {
            all.extend([OsString::from(flag), value]);
        }
    };
    let absolute = |path: &PathBuf| std::path::absolute(path).ok().map(OsString::from);
    // Also one of the URL; the port of a settings file stays one that a reload compares.
    let is_of_file = args.port.is_none() && args.settings.is_some();
    let is_default = values.port == ServerSettings::default().port;
    let port = (!is_default || !is_of_file).then_some(values.port);
    add("--port", port.map(|port| port.to_string().into()));
    add("--bind", args.bind.map(|bind| bind.to_string().into()));
    add("--cert", args.cert.as_ref().and_then(absolute));
    add("--key", args.key.as_ref().and_then(absolute));
    add("--settings", args.settings.as_ref().and_then(absolute));
    let site = settings.driver.candidates.flag.as_ref();
    add("--site", site.and_then(absolute));
    all
}

/// Returns more arguments of a process that stays in the foreground.
fn foreground_arguments(args: &ServerStartArgs, settings: &Settings) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec!["--announce".into()];
    let files = [
        ("--pid-file", &args.pid_file),
        ("--log-file", &settings.log.file),
    ];
    for (flag, file) in files {
        if let Some(file) = file {
            all.extend([flag.into(), file.into()]);
        }
    }
    let is_plain = settings.output.color == ColorChoice::Never;
    let flags = [
        (settings.output.json, "--json-output"),
        (is_plain, "--no-color"),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set);
    all.extend(flags.map(|(_, flag)| (*flag).into()));
    let verbose = usize::from(settings.log.verbose);
    all.extend(std::iter::repeat_n("--verbose".into(), verbose));
    all
}

/// Writes what is printed once the server listens, for the process that does.
fn announcement(start: &ServerStart) -> Result<File, DriverError> {
    let failed = |error: std::io::Error| DriverError::failed(format!("Cannot start: {error}."));
    let text = serde_json::to_vec(start).map_err(|error| failed(error.into()))?;
    let memory = rustix::fs::memfd_create("start", MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.map_err(|error| failed(error.into()))?);
    file.write_all(&text).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file)
}

fn result(
    (_, values, report): Started<'_>,
    server: &SiteServer,
    (pid, started): (Option<u32>, bool),
) -> ServerStart {
    let authority = server.write_authority().ok();
    ServerStart {
        url: server.url(),
        port: values.port,
        fingerprint: fingerprint(server, values),
        specs: server.publisher.settings.specs.iter().cloned().collect(),
        pid,
        started,
        authority_file: authority.map(|path| path.display().to_string()),
        repo_token_file: report.map(|report| report.token_file.display().to_string()),
        repos: report.map(repos::listed).unwrap_or_default(),
    }
}

pub(super) const KIND: &homestak_api::v1::Kind<ServerStart> = &kind::SERVER_START;
