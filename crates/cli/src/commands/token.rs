//! `homestak token`: creates, shows and verifies provisioning tokens.

use std::process::ExitCode;

use homestak_api::v1::{Kind, TokenClaims, TokenInspection, TokenMinted, kind};
use homestak_core::resolve::tofu::signing_key;
use homestak_core::token::{Claims, SigningKey, inspect, mint, verify};
use homestak_driver::{DriverError, Session, require_sound};

use super::Outcome;
use crate::args::TokenCommand;
use crate::settings::Settings;
use crate::ui::Printer;

/// Runs a token command.
pub(super) fn run(command: TokenCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        TokenCommand::Mint { node, spec } => {
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
            if printer.shape.json {
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
            &inspect(&given(&token)?)?,
            None,
            printer,
        ),
        TokenCommand::Inspect {
            token,
            verify: true,
        } => {
            let claims = verify(&given(&token)?, &key(&settings.session()?, printer)?, None)?;
            show(&kind::TOKEN_INSPECT, &claims, Some(true), printer);
        }
        TokenCommand::Verify { token, node } => {
            let claims = verify(
                &given(&token)?,
                &key(&settings.session()?, printer)?,
                node.as_deref(),
            )?;
            show(&kind::TOKEN_VERIFY, &claims, Some(true), printer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the token; `-` reads it from stdin, so that it need not be an argument.
fn given(token: &str) -> Result<String, DriverError> {
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
            "The signing key could not be read: the secrets cannot be opened.",
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
    if printer.shape.json {
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
