//! `homestak token`: creates, shows, verifies and revokes provisioning tokens.

use std::process::ExitCode;
use std::sync::Arc;

use homestak_api::v1::node_status::{TokenStatus, Tokens};
use homestak_api::v1::{Kind, TokenClaims, TokenInspection, TokenMinted, kind};
use homestak_core::doc::scalar::NodeName;
use homestak_core::resolve::tofu::signing_key;
use homestak_core::token::{Claims, SigningKey, inspect, mint, verify};
use homestak_driver::server::ServerLease;
use homestak_driver::{DriverError, Session, require_sound};

use super::Outcome;
use super::node::registered::time;
use crate::args::TokenCommand;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Runs a token command.
pub(super) fn run(command: TokenCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        TokenCommand::Mint { node, spec } => {
            if NodeName::new(&node).is_none() {
                return Err(
                    DriverError::usage(format!("No node can have the name `{node}`.")).hint(
                        "use lower-case letters, digits and hyphens, start with a letter, 63 \
                         characters at most",
                    ),
                );
            }
            let session = settings.session()?;
            if !session.catalog.specs.contains_key(&spec) {
                let known = session.catalog.specs.keys().map(String::as_str);
                return Err(DriverError::unknown("spec", &spec, known));
            }
            let claims = Claims {
                node,
                spec,
                issued_at: settings.driver.time.now().as_second(),
                guest: None,
            };
            let token = mint(&claims, &key(&session, printer)?);
            if printer.output.json {
                let claims = TokenClaims::from(&claims);
                printer.json(&kind::TOKEN_MINT, &TokenMinted { token, claims });
            } else {
                printer.data(&format!("{token}\n"));
            }
        }
        TokenCommand::Inspect {
            token,
            verify: false,
        } => show(
            &kind::TOKEN_INSPECT,
            &inspect(&token_text(&token)?)?,
            None,
            printer,
        ),
        TokenCommand::Inspect {
            token,
            verify: true,
        } => {
            let claims = verify(
                &token_text(&token)?,
                &key(&settings.session()?, printer)?,
                None,
            )?;
            show(&kind::TOKEN_INSPECT, &claims, Some(true), printer);
        }
        TokenCommand::List => return list(settings, printer),
        TokenCommand::Revoke { id } => return revoke(&id, settings, printer),
        TokenCommand::Verify { token, node } => {
            let claims = verify(
                &token_text(&token)?,
                &key(&settings.session()?, printer)?,
                node.as_deref(),
            )?;
            show(&kind::TOKEN_VERIFY, &claims, Some(true), printer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(settings: &Settings, printer: &Printer) -> Outcome {
    let lease = ServerLease::for_records(Arc::new(settings.session()?), &settings.driver);
    let tokens = block_on(async { Ok::<_, DriverError>(lease.client().await?.tokens().await?) })??;
    if printer.output.json {
        printer.json(&kind::TOKEN_LIST, &Tokens { tokens });
        return Ok(ExitCode::SUCCESS);
    }
    let row = |token: TokenStatus| {
        let state = match (token.revoked, token.used) {
            (Some(_), _) => "revoked",
            (None, Some(_)) => "used",
            (None, None) => "open",
        };
        let (issued, expires) = (time(Some(token.issued)), time(token.expires));
        vec![token.id, token.node, state.to_owned(), issued, expires]
    };
    let headings = ["id", "node", "state", "issued", "expires"];
    let rows = tokens.into_iter().map(row).collect();
    printer.data(&table::render(&headings, rows));
    Ok(ExitCode::SUCCESS)
}

fn revoke(id: &str, settings: &Settings, printer: &Printer) -> Outcome {
    let lease = ServerLease::for_records(Arc::new(settings.session()?), &settings.driver);
    let revoked =
        block_on(async { Ok::<_, DriverError>(lease.client().await?.revoke_token(id).await) });
    let token = match revoked?? {
        Err(error) if error.is_missing() => {
            let message = format!("No token has the id `{id}`.");
            return Err(DriverError::failed(message).hint("homestak token list shows them"));
        }
        answer => answer?,
    };
    block_on(lease.publish_token_revocation(&token))??;
    if printer.output.json {
        printer.json(&kind::TOKEN_REVOKE, &token);
    } else {
        printer.message(&format!("The token of `{}` is revoked.", token.node));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the token; `-` reads it from stdin, so that it need not be an argument.
fn token_text(token: &str) -> Result<String, DriverError> {
    if token != "-" {
        return Ok(token.to_owned());
    }
    let text = std::io::read_to_string(std::io::stdin()).map_err(|error| {
        DriverError::failed(format!("Cannot read the token from stdin: {error}."))
    })?;
    Ok(text.trim().to_owned())
}

fn key(session: &Session, printer: &Printer) -> Result<SigningKey, DriverError> {
    if let Some(secrets) = &session.catalog.secrets
        && secrets.value.is_none()
    {
        require_sound(printer, &secrets.diagnostics, &session.catalog.sources)?;
        return Err(DriverError::failed(
            "The signing key could not be read: the secrets cannot be decrypted.",
        )
        .hint("homestak secrets check shows why"));
    }
    let missing = || {
        DriverError::failed("The site has no signing key.").hint(
            "put 64 hexadecimal digits under `auth.signing_key` in secrets.yaml; `openssl rand -hex 32` generates them",
        )
    };
    let key = signing_key(&session.catalog).ok_or_else(missing)?;
    Ok(SigningKey::from_hex(key.value.expose())?)
}

fn show(kind: &Kind<TokenInspection>, claims: &Claims, verified: Option<bool>, printer: &Printer) {
    if printer.output.json {
        let inspection = TokenInspection {
            success: true,
            claims: claims.into(),
            verified,
        };
        printer.json(kind, &inspection);
        return;
    }
    let minted = jiff::Timestamp::from_second(claims.issued_at)
        .map_or_else(|_| "?".into(), |time| time.to_string());
    let verdict = if verified == Some(true) {
        "good"
    } else {
        "not checked"
    };
    printer.data(&format!(
        "node:       {}\nspec:       {}\nminted:     {minted}\nsignature:  {verdict}\n",
        claims.node, claims.spec
    ));
}
