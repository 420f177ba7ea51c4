//! Builds the request of a recorded row, with the task ids, digests and secrets of the replay in
//! place of the recorded ones.

use std::collections::BTreeMap;

use super::initial_state;
use super::runner::Runner;
use super::transcript::Row;
use crate::calls::{Credentials, Request, Upload};

impl Runner {
    pub(crate) fn request(&self, row: &Row) -> Request {
        let mut path = row.api_path().to_owned();
        if let Some(upid) = row.upid()
            && let Some(new) = self.tasks.get(upid)
        {
            path = path.replace(upid, new);
        }
        let path = percent_encoding::percent_decode_str(&path)
            .decode_utf8_lossy()
            .into_owned();
        let mut request = Request::new(&row.method, &path);
        request.parameters = row.parameters();
        if let Some(digest) = request.parameters.get("digest").cloned() {
            request
                .parameters
                .insert("digest".into(), self.current_digest(&digest, row));
        }
        // Secrets are not recorded. If the password was refused, it was too short.
        if row.body["errors"]["password"].is_string() {
            let short = request.parameters.get_mut("password");
            short.into_iter().for_each(|text| text.truncate(1));
        }
        request.upload = self.upload(row, &mut request.parameters);
        request.credentials = self.credentials(row);
        request
    }

    /// Returns the digest of the replay. One that was read before the recording began is the current
    /// digest of the configuration.
    fn current_digest(&self, digest: &str, row: &Row) -> String {
        if let Some(known) = self.digests.get(digest) {
            return known.clone();
        }
        let vmid = row
            .api_path()
            .split('/')
            .nth(4)
            .and_then(|id| id.parse::<u32>().ok());
        let state = self.world.state();
        vmid.and_then(|vmid| state.guests.get(&vmid))
            .map_or_else(|| digest.to_owned(), |guest| guest.config.digest())
    }

    fn upload(&self, row: &Row, parameters: &mut BTreeMap<String, String>) -> Option<Upload> {
        let file = row.file()?;
        parameters.extend(file.fields.clone());
        let exit = row
            .started()
            .and_then(|upid| self.exits.get(upid))
            .cloned()
            .unwrap_or_default();
        let mut checksums = BTreeMap::new();
        if let Some(expected) = file.fields.get("checksum") {
            let algorithm = file
                .fields
                .get("checksum-algorithm")
                .cloned()
                .unwrap_or_default();
            let got = exit
                .split('\'')
                .nth(1)
                .filter(|_| exit.starts_with("checksum mismatch"));
            checksums.insert(algorithm, got.unwrap_or(expected).to_owned());
        }
        let head = if exit.contains("not in qcow2") {
            Vec::new()
        } else {
            b"QFI\xfb".to_vec()
        };
        Some(Upload {
            name: file.name,
            size: file.size,
            checksums,
            head,
        })
    }

    fn credentials(&self, row: &Row) -> Credentials {
        if let Some(token) = initial_state::token_of(row) {
            return Credentials::Token(self.secret(&token));
        }
        let Some(headers) = &row.req_headers else {
            // A row without recorded headers used the same token as the others.
            let usual = self.rows.iter().find_map(initial_state::token_of);
            return usual.map_or(Credentials::None, |token| {
                Credentials::Token(self.secret(&token))
            });
        };
        if headers.contains_key("Authorization") {
            return Credentials::Token("nobody@pam!none=wrong".to_owned());
        }
        match (&self.ticket, headers.contains_key("Cookie")) {
            (Some((ticket, csrf)), true) => Credentials::Ticket {
                ticket: ticket.clone(),
                csrf: headers
                    .contains_key("CSRFPreventionToken")
                    .then(|| csrf.clone()),
            },
            _ => Credentials::None,
        }
    }
}
