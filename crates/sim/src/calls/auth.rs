//! Authentication by API token or by ticket and CSRF token. An identity is `user@realm` or
//! `user@realm!token`.

use sha2::Sha256;

use super::{ApiError, Credentials, Request};
use crate::hash::hex;
use crate::world::World;

/// How long a ticket is valid, in seconds.
const TICKET_LIFETIME: i64 = 7_200;

impl World {
    /// Returns the identity of the caller.
    pub(crate) fn authenticate(&self, request: &Request) -> Result<String, ApiError> {
        match &request.credentials {
            Credentials::None => Err(ApiError::without_body(401, "No ticket")),
            Credentials::Token(text) => self
                .token_identity(text)
                .ok_or_else(|| ApiError::without_body(401, "Authentication failed!")),
            Credentials::Ticket { ticket, csrf } => {
                let user = self.verify_ticket(ticket).ok_or_else(|| {
                    ApiError::without_body(401, "permission denied - invalid PVE ticket")
                })?;
                if request.method != "GET" && !self.verify_csrf(&user, csrf.as_deref()) {
                    return Err(ApiError::without_body(
                        401,
                        "Permission denied - invalid csrf token",
                    ));
                }
                Ok(user)
            }
        }
    }

    fn token_identity(&self, text: &str) -> Option<String> {
        let (identity, secret) = text.split_once(['=', ':'])?;
        let (user, name) = identity.split_once('!')?;
        let now = self.epoch();
        let state = self.state();
        let owner = state.access.users.get(user).filter(|owner| owner.enabled)?;
        let token = owner.tokens.get(name)?;
        let live = |expire: i64| expire == 0 || expire > now;
        (token.secret == secret && live(token.expire) && live(owner.expire))
            .then(|| identity.to_owned())
    }

    /// Creates a ticket for a user.
    pub(crate) fn create_ticket(&self, user: &str) -> String {
        let time = self.epoch();
        let plain = format!("PVE:{user}:{time:08X}");
        format!("{plain}::{}", self.sign(&plain))
    }

    /// Creates the CSRF token that goes with a user's tickets.
    pub(crate) fn create_csrf_token(&self, user: &str) -> String {
        let time = format!("{:08X}", self.epoch());
        format!("{time}:{}", self.sign(&format!("{time}:{user}")))
    }

    /// Returns the user of a valid ticket.
    pub(crate) fn verify_ticket(&self, ticket: &str) -> Option<String> {
        let (plain, signature) = ticket.split_once("::")?;
        if self.sign(plain) != signature {
            return None;
        }
        let (user, time) = plain.strip_prefix("PVE:")?.rsplit_once(':')?;
        let age = self.epoch() - i64::from_str_radix(time, 16).ok()?;
        let known = self
            .state()
            .access
            .users
            .get(user)
            .is_some_and(|user| user.enabled);
        (known && (-300..TICKET_LIFETIME).contains(&age)).then(|| user.to_owned())
    }

    fn verify_csrf(&self, user: &str, csrf: Option<&str>) -> bool {
        csrf.and_then(|csrf| csrf.split_once(':'))
            .is_some_and(|(time, signature)| self.sign(&format!("{time}:{user}")) == signature)
    }

    fn sign(&self, text: &str) -> String {
        let secret = self.state().secret.clone();
        let mut signature = hex::<Sha256>(format!("{secret}{text}{secret}").as_bytes());
        signature.truncate(40);
        signature
    }
}
