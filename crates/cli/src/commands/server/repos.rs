//! Repositories of the server: options, and how they are listed.

use std::path::{Path, PathBuf};

use homestak_api::v1::{RepoState, ServerRepo};
use homestak_driver::DriverError;
use homestak_driver::repos::{RepoOptions, RepoReport, TokenChoice};
use homestak_driver::server::SiteServer;
use homestak_server::settings::RepoSettings;
use zeroize::Zeroizing;

use crate::args::RepoArgs;
use crate::settings::Settings;
use crate::ui::Printer;

/// Returns how repositories are to be served; `None` when they are not. Flags take precedence.
pub(super) fn options(
    args: &RepoArgs,
    values: &RepoSettings,
    printer: &Printer,
) -> Result<Option<RepoOptions>, DriverError> {
    if !args.repos && !values.serve {
        let has_other = args.repos_dir.is_some()
            || args.repo_token_file.is_some()
            || args.repo_token.is_some()
            || !args.exclude.is_empty();
        return match has_other {
            true => Err(DriverError::usage(
                "The options of repositories need `--repos`.",
            )),
            false => Ok(None),
        };
    }
    let token_file = args.repo_token_file.as_ref().or(values.token_file.as_ref());
    let token = match (&args.repo_token, token_file) {
        (Some(token), _) => {
            printer.message(
                "notice: other users can see the value of `--repo-token` in the process list; \
                 use `--repo-token-file`",
            );
            TokenChoice::Given(Zeroizing::new(token.clone()))
        }
        (None, Some(file)) => TokenChoice::File(absolute(file)?),
        (None, None) => TokenChoice::Stored,
    };
    let directory = args.repos_dir.as_ref().or(values.directory.as_ref());
    let exclude = [&args.exclude[..], &values.exclude].concat();
    Ok(Some(RepoOptions {
        directory: directory.map(|path| absolute(path)).transpose()?,
        exclude,
        token,
    }))
}

fn absolute(path: &Path) -> Result<PathBuf, DriverError> {
    std::path::absolute(path).map_err(|error| DriverError::file("find", path, &error))
}

/// Brings the published copies up to date, and shows what needs attention.
pub(super) fn refresh(
    server: &SiteServer,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<RepoReport>, DriverError> {
    let report = server.refresh_repos(&settings.driver)?;
    if let Some(report) = &report {
        warn(report, printer);
    }
    Ok(report)
}

/// Prepares the copies of what is to be served. Unless at least one can be, it is an error, and
/// nothing is recorded or changed.
pub(super) fn prepare(
    server: &SiteServer,
    options: Option<&RepoOptions>,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<RepoReport>, DriverError> {
    let report = server.prepare_repos(options, &settings.driver)?;
    if let Some(report) = &report {
        require_any(report, printer)?;
        warn(report, printer);
    }
    Ok(report)
}

fn warn(report: &RepoReport, printer: &Printer) {
    for line in report.warnings() {
        printer.message(&line);
    }
}

/// Requires at least one repository that is served; without one, shows why.
pub(super) fn require_any(report: &RepoReport, printer: &Printer) -> Result<(), DriverError> {
    if !report.repos.is_empty() {
        return Ok(());
    }
    warn(report, printer);
    let mut error = DriverError::failed("No repository could be prepared.");
    if !report.missing.is_empty() {
        error = error.hint(format!("not found: {}", report.missing.join(", ")));
    }
    Err(error
        .hint("--repos-dir DIR is the directory that they are in")
        .hint("`repos` in site.yaml names repositories with their paths"))
}

/// Returns all repositories, with those that are not served.
pub(super) fn listed(report: &RepoReport) -> Vec<ServerRepo> {
    let other = |name: &String, state| ServerRepo {
        name: name.clone(),
        state,
        commit: None,
        modified: false,
        size: None,
        reason: None,
    };
    let served = report.repos.iter().map(|repo| ServerRepo {
        commit: repo.working.clone(),
        modified: repo.modified,
        size: Some(repo.size),
        ..other(&repo.name, RepoState::Served)
    });
    let failed = report.failed.iter().map(|failed| ServerRepo {
        reason: Some(failed.reason.clone()),
        ..other(&failed.name, RepoState::Failed)
    });
    let missing = report.missing.iter();
    let missing = missing.map(|name| other(name, RepoState::Missing));
    let excluded = report.excluded.iter();
    let excluded = excluded.map(|name| other(name, RepoState::Excluded));
    let all = served.chain(failed).chain(missing).chain(excluded);
    all.collect()
}

/// Renders the lines of `server start`.
pub(super) fn render(repos: &[ServerRepo], token_file: &str) -> String {
    let names = |wanted: RepoState| {
        let names = repos.iter().filter(|repo| repo.state == wanted);
        let names = names.map(|repo| match repo.modified {
            true => format!("{} (with uncommitted changes)", repo.name),
            false => repo.name.clone(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let mut text = format!("repos:        {}\n", names(RepoState::Served));
    for (label, state) in [
        ("failed:       ", RepoState::Failed),
        ("not found:    ", RepoState::Missing),
        ("excluded:     ", RepoState::Excluded),
    ] {
        let names = names(state);
        if !names.is_empty() {
            text += &format!("{label}{names}\n");
        }
    }
    text + &format!("repo token:   {token_file}\n")
}
