//! Maps a method and a path to an endpoint.
//!
//! Endpoints of earlier homestak tools are unversioned; everything else is below `/v1/`. A path is
//! compared as it was sent: percent-encoding and `..` are not resolved, so that a name has one
//! spelling.

use crate::repos;

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// Whether the server answers.
    Health,
    /// Names of specs.
    Specs,
    /// The spec of a node.
    Spec,
    /// The OpenAPI document.
    OpenApi,
    /// A certificate for a token.
    Enrol,
    /// A certificate for a certificate.
    Renew,
    /// A report of a node.
    AddReport,
    /// The agent's program.
    Agent,
    /// All nodes.
    Nodes,
    /// One node.
    Node,
    /// Reports of a node.
    Reports,
    /// Revokes a node.
    RevokeNode,
    /// Jobs of a node.
    JobsOfNode,
    /// Queues a job of a node.
    AddJob,
    /// All jobs.
    Jobs,
    /// One job with its output.
    Job,
    /// Cancels a job.
    CancelJob,
    /// Jobs that the node may take.
    Offers,
    /// Takes a job.
    TakeJob,
    /// Reports about a job.
    ReportJob,
    /// Reads everything again.
    Reload,
    /// All tokens.
    Tokens,
    /// Revokes a token.
    RevokeToken,
    /// A request of a webhook.
    Hook,
    /// What starts runs.
    Triggers,
    /// A file of a repository.
    Repo,
    /// Objects of a repository.
    UploadPack,
}

/// Every endpoint with its method and path. GET implies HEAD; a path has one placeholder at most,
/// except those of repositories, whose path is the parameter.
pub const ROUTES: &[(Endpoint, &str, &str)] = &[
    (Endpoint::Health, "GET", "/health"),
    (Endpoint::Specs, "GET", "/specs"),
    (Endpoint::Spec, "GET", "/spec/{identity}"),
    (Endpoint::OpenApi, "GET", "/v1/openapi.json"),
    (Endpoint::Enrol, "POST", "/v1/enrol"),
    (Endpoint::Renew, "POST", "/v1/renew"),
    (Endpoint::AddReport, "POST", "/v1/reports"),
    (Endpoint::Agent, "GET", "/v1/agents/{architecture}"),
    (Endpoint::Nodes, "GET", "/v1/nodes"),
    (Endpoint::Node, "GET", "/v1/nodes/{uuid}"),
    (Endpoint::Reports, "GET", "/v1/nodes/{uuid}/reports"),
    (Endpoint::RevokeNode, "POST", "/v1/nodes/{uuid}/revoke"),
    (Endpoint::JobsOfNode, "GET", "/v1/nodes/{uuid}/jobs"),
    (Endpoint::AddJob, "POST", "/v1/nodes/{uuid}/jobs"),
    (Endpoint::Jobs, "GET", "/v1/jobs"),
    (Endpoint::Job, "GET", "/v1/jobs/{job}"),
    (Endpoint::CancelJob, "POST", "/v1/jobs/{job}/cancel"),
    (Endpoint::Offers, "GET", "/v1/offers"),
    (Endpoint::TakeJob, "POST", "/v1/jobs/{job}/take"),
    (Endpoint::ReportJob, "POST", "/v1/jobs/{job}/report"),
    (Endpoint::Reload, "POST", "/v1/reload"),
    (Endpoint::Tokens, "GET", "/v1/tokens"),
    (Endpoint::RevokeToken, "POST", "/v1/tokens/{id}/revoke"),
    (Endpoint::Hook, "POST", "/v1/hooks/{name}"),
    (Endpoint::Triggers, "GET", "/v1/triggers"),
    (Endpoint::Repo, "GET", "/{repo}.git/{path}"),
    (Endpoint::UploadPack, "POST", "/{repo}.git/git-upload-pack"),
];

/// The path in a repository that git requests objects at. It is no file.
const UPLOAD_PACK: &str = "git-upload-pack";

/// Why there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The path is unknown.
    Path,
    /// The path is known, and these methods are allowed.
    Method(&'static str),
}

impl NoRoute {
    /// Adds a method that is allowed.
    fn or_allows(self, method: &str) -> Self {
        Self::Method(match (self, method) {
            (Self::Path, "GET") => "GET, HEAD",
            (Self::Path, _) | (Self::Method("POST"), "POST") => "POST",
            (Self::Method("GET, HEAD"), "GET") => "GET, HEAD",
            (Self::Method(_), _) => "GET, HEAD, POST",
        })
    }
}

/// Returns whether refusals of a path have the form of RFC 9457.
pub fn is_v1(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// Returns the path of an endpoint with its placeholder.
pub fn template(endpoint: Endpoint) -> &'static str {
    let mut routes = ROUTES.iter();
    let route = routes.find(|(one, ..)| *one == endpoint);
    route.map_or("none", |(_, _, path)| path)
}

/// Returns the endpoint and the value of its placeholder, which is empty without one. Slashes at the
/// end do not count.
pub fn route<'p>(method: &str, path: &'p str) -> Result<(Endpoint, &'p str), NoRoute> {
    let path = path.trim_end_matches('/');
    let mut error = NoRoute::Path;
    for (endpoint, wanted, template) in ROUTES {
        let parameter = match endpoint {
            Endpoint::Repo | Endpoint::UploadPack => {
                let is_service = repos::split(path).map(|(_, rest)| rest == UPLOAD_PACK);
                let is_wanted = is_service == Some(*endpoint == Endpoint::UploadPack);
                is_wanted.then_some(path)
            }
            _ => fits(template, path),
        };
        let Some(parameter) = parameter else {
            continue;
        };
        match (*wanted, method) {
            ("GET", "GET" | "HEAD") | ("POST", "POST") => return Ok((*endpoint, parameter)),
            (wanted, _) => error = error.or_allows(wanted),
        }
    }
    Err(error)
}

/// Returns the value of the placeholder if a path fits.
fn fits<'p>(template: &str, path: &'p str) -> Option<&'p str> {
    let (mut wanted, mut found) = (template.split('/'), path.split('/'));
    let mut parameter = "";
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return Some(parameter),
            (Some(wanted), Some(found)) if wanted.starts_with('{') && !found.is_empty() => {
                parameter = found;
            }
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_with_its_parameter_and_slashes_at_its_end() {
        for (method, path, found) in [
            ("GET", "/health", Ok((Endpoint::Health, ""))),
            ("HEAD", "/health///", Ok((Endpoint::Health, ""))),
            ("GET", "/spec/web", Ok((Endpoint::Spec, "web"))),
            ("GET", "/spec/..", Ok((Endpoint::Spec, ".."))),
            ("GET", "/spec/a%2fb", Ok((Endpoint::Spec, "a%2fb"))),
            ("POST", "/health", Err(NoRoute::Method("GET, HEAD"))),
            ("GET", "/v1/enrol", Err(NoRoute::Method("POST"))),
            ("GET", "/v1/nodes/u/reports", Ok((Endpoint::Reports, "u"))),
            ("get", "/health", Err(NoRoute::Method("GET, HEAD"))),
            ("GET", "/v1/nodes/u/jobs", Ok((Endpoint::JobsOfNode, "u"))),
            ("POST", "/v1/nodes/u/jobs", Ok((Endpoint::AddJob, "u"))),
            (
                "PUT",
                "/v1/nodes/u/jobs",
                Err(NoRoute::Method("GET, HEAD, POST")),
            ),
            ("GET", "/v1/jobs/", Ok((Endpoint::Jobs, ""))),
            ("GET", "/v1/jobs/j", Ok((Endpoint::Job, "j"))),
            ("POST", "/v1/jobs/j/take", Ok((Endpoint::TakeJob, "j"))),
            ("GET", "/a.git/HEAD", Ok((Endpoint::Repo, "/a.git/HEAD"))),
            ("POST", "/a.git/HEAD", Err(NoRoute::Method("GET, HEAD"))),
            (
                "POST",
                "/a.git/git-upload-pack",
                Ok((Endpoint::UploadPack, "/a.git/git-upload-pack")),
            ),
            (
                "GET",
                "/a.git/git-upload-pack",
                Err(NoRoute::Method("POST")),
            ),
        ] {
            assert_eq!(route(method, path), found, "{method} {path}");
        }
    }

    #[test]
    fn other_spellings_of_a_path_are_unknown() {
        for path in [
            "",
            "/",
            "*",
            "health",
            "//health",
            "/Health",
            "/spec",
            "/spec/",
            "/spec/a/b",
            "/spec//web",
            "/v1",
            "/v1/",
            "/v1/nodes//reports",
            "/v1/nodes/u/reports/1",
            "/v2/nodes",
            "/./health",
            "/x/../health",
        ] {
            assert_eq!(route("GET", path), Err(NoRoute::Path), "{path}");
        }
    }
}
