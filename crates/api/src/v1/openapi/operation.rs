//! The table of the server's operations.

use super::super::answer::{Health, ReportAccepted, SpecNames};
use super::super::enrol::{EnrolRequest, EnrolResponse};
use super::super::node_job::{JobDetail, JobOffers, JobReport, JobStatus, JobSubmission, Jobs};
use super::super::node_status::{NodeStatus, Nodes, Reloaded, Revocation, TokenStatus, Tokens};
use super::super::report::{Report, Reports};
use super::super::trigger::{HookAnswer, Triggers};
use super::{SchemaOf, schema_of};

/// A method of a path. GET implies HEAD.
pub struct Operation {
    /// In lower case.
    pub method: &'static str,
    /// With placeholders, such as `{uuid}`.
    pub path: &'static str,
    /// Its name.
    pub id: &'static str,
    pub(super) summary: &'static str,
    pub(super) access: &'static [Access],
    pub(super) parameters: &'static [Parameter],
    pub(super) request: Option<Request>,
    pub(super) answers: &'static [(u16, Body)],
    /// Statuses of refusals, beside 500.
    pub(super) refusals: &'static [u16],
}

/// Who may call an operation.
pub(super) enum Access {
    Anyone,
    Token,
    Node,
    Operator,
    Repository,
}

/// A parameter in the path, the query or a header.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) is_number: bool,
    pub(super) description: &'static str,
}

impl Parameter {
    const fn path(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            place: "path",
            is_number: false,
            description,
        }
    }

    const fn header(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            place: "header",
            is_number: false,
            description,
        }
    }

    const fn number(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            place: "query",
            is_number: true,
            description,
        }
    }
}

/// The body of a request.
pub(super) enum Request {
    Json(SchemaOf),
    /// Of a type that has no schema.
    Other(&'static str),
}

/// The body of an answer.
pub(super) enum Body {
    Json(SchemaOf),
    Document(&'static str),
    Spec,
    Unchanged,
    Program,
    File,
    /// Of a type that has no schema.
    Other(&'static str),
}

const JOB: Parameter = Parameter::path("job", "The job's id.");
const UUID: Parameter = Parameter::path("uuid", "The guest's UUID.");
const IF_NONE_MATCH: Parameter = Parameter {
    name: "If-None-Match",
    place: "header",
    is_number: false,
    description: "The entity tag of the spec that the node has.",
};

/// Every operation of the server.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        method: "get",
        path: "/health",
        id: "health",
        summary: "Health check",
        access: &[Access::Anyone],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Health>))],
        refusals: &[],
    },
    Operation {
        method: "get",
        path: "/specs",
        id: "specs",
        summary: "Lists the names of the site's specs",
        access: &[Access::Anyone],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Json(schema_of::<SpecNames>))],
        refusals: &[],
    },
    Operation {
        method: "get",
        path: "/spec/{identity}",
        id: "spec",
        summary: "Sends a node its own spec",
        access: &[Access::Token, Access::Node, Access::Anyone],
        parameters: &[
            Parameter::path("identity", "The node's name."),
            IF_NONE_MATCH,
        ],
        request: None,
        answers: &[(200, Body::Spec), (304, Body::Unchanged)],
        refusals: &[400, 401, 403, 404, 409, 429],
    },
    Operation {
        method: "get",
        path: "/v1/openapi.json",
        id: "openapi",
        summary: "Sends this document",
        access: &[Access::Anyone],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Document("An OpenAPI 3.1 document."))],
        refusals: &[],
    },
    Operation {
        method: "post",
        path: "/v1/enrol",
        id: "enrol",
        summary: "Exchanges a token for the node's certificate",
        access: &[Access::Token, Access::Anyone],
        parameters: &[],
        request: Some(Request::Json(schema_of::<EnrolRequest>)),
        answers: &[(201, Body::Json(schema_of::<EnrolResponse>))],
        refusals: &[400, 401, 403, 404, 408, 409, 411, 413, 415, 429, 503],
    },
    Operation {
        method: "post",
        path: "/v1/renew",
        id: "renew",
        summary: "Exchanges the node's certificate for a new one",
        access: &[Access::Node],
        parameters: &[],
        request: Some(Request::Json(schema_of::<EnrolRequest>)),
        answers: &[(201, Body::Json(schema_of::<EnrolResponse>))],
        refusals: &[400, 401, 403, 404, 408, 411, 413, 415, 429, 503],
    },
    Operation {
        method: "post",
        path: "/v1/reports",
        id: "addReport",
        summary: "Records a report of the node",
        access: &[Access::Node],
        parameters: &[],
        request: Some(Request::Json(schema_of::<Report>)),
        answers: &[(201, Body::Json(schema_of::<ReportAccepted>))],
        refusals: &[400, 401, 403, 404, 408, 411, 413, 415, 429, 503],
    },
    Operation {
        method: "get",
        path: "/v1/agents/{architecture}",
        id: "agent",
        summary: "Sends the agent's program",
        access: &[Access::Token, Access::Node, Access::Operator],
        parameters: &[Parameter::path(
            "architecture",
            "The processor, such as `x86_64`.",
        )],
        request: None,
        answers: &[(200, Body::Program)],
        refusals: &[400, 401, 403, 404, 409, 429],
    },
    Operation {
        method: "get",
        path: "/v1/nodes",
        id: "nodes",
        summary: "Lists the nodes that the server knows",
        access: &[Access::Operator],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Nodes>))],
        refusals: &[401, 403],
    },
    Operation {
        method: "get",
        path: "/v1/nodes/{uuid}",
        id: "node",
        summary: "Describes a node",
        access: &[Access::Operator],
        parameters: &[UUID],
        request: None,
        answers: &[(200, Body::Json(schema_of::<NodeStatus>))],
        refusals: &[401, 403, 404],
    },
    Operation {
        method: "get",
        path: "/v1/nodes/{uuid}/reports",
        id: "reports",
        summary: "Lists the reports of a node, or waits for the next one",
        access: &[Access::Operator],
        parameters: &[
            UUID,
            Parameter::number("after", "Only reports with a higher number."),
            Parameter::number("wait", "Seconds to wait for the first report; 25 at most."),
        ],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Reports>))],
        refusals: &[400, 401, 403, 404],
    },
    Operation {
        method: "post",
        path: "/v1/nodes/{uuid}/revoke",
        id: "revokeNode",
        summary: "Revokes a node",
        access: &[Access::Operator],
        parameters: &[UUID],
        request: Some(Request::Json(schema_of::<Revocation>)),
        answers: &[(200, Body::Json(schema_of::<NodeStatus>))],
        refusals: &[400, 401, 403, 404, 408, 411, 413, 415, 503],
    },
    Operation {
        method: "get",
        path: "/v1/nodes/{uuid}/jobs",
        id: "jobsOfNode",
        summary: "Lists the last 200 jobs of a node, without their results",
        access: &[Access::Operator],
        parameters: &[UUID],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Jobs>))],
        refusals: &[401, 403, 404],
    },
    Operation {
        method: "post",
        path: "/v1/nodes/{uuid}/jobs",
        id: "addJob",
        summary: "Queues a job that the site's key has signed; 200 if it was queued before",
        access: &[Access::Operator],
        parameters: &[UUID],
        request: Some(Request::Json(schema_of::<JobSubmission>)),
        answers: &[
            (200, Body::Json(schema_of::<JobStatus>)),
            (201, Body::Json(schema_of::<JobStatus>)),
        ],
        refusals: &[400, 401, 403, 404, 408, 409, 411, 413, 415, 503],
    },
    Operation {
        method: "get",
        path: "/v1/jobs",
        id: "jobs",
        summary: "Lists the last 200 jobs of all nodes, without their results",
        access: &[Access::Operator],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Jobs>))],
        refusals: &[401, 403],
    },
    Operation {
        method: "get",
        path: "/v1/jobs/{job}",
        id: "job",
        summary: "Describes a job with its output, or waits until there is more or its state changes",
        access: &[Access::Operator],
        parameters: &[
            JOB,
            Parameter::number("after", "Only output after this byte."),
            Parameter::number("wait", "Seconds to wait for a change; 25 at most."),
        ],
        request: None,
        answers: &[(200, Body::Json(schema_of::<JobDetail>))],
        refusals: &[400, 401, 403, 404],
    },
    Operation {
        method: "post",
        path: "/v1/jobs/{job}/cancel",
        id: "cancelJob",
        summary: "Cancels a job that the node has not taken",
        access: &[Access::Operator],
        parameters: &[JOB],
        request: Some(Request::Json(empty)),
        answers: &[(200, Body::Json(schema_of::<JobStatus>))],
        refusals: &[400, 401, 403, 404, 408, 409, 411, 413, 415, 503],
    },
    Operation {
        method: "get",
        path: "/v1/offers",
        id: "offers",
        summary: "Lists the jobs that the node may take, or waits for the first",
        access: &[Access::Node],
        parameters: &[Parameter::number(
            "wait",
            "Seconds to wait for the first job; 25 at most.",
        )],
        request: None,
        answers: &[(200, Body::Json(schema_of::<JobOffers>))],
        refusals: &[400, 401, 403, 404, 429],
    },
    Operation {
        method: "post",
        path: "/v1/jobs/{job}/take",
        id: "takeJob",
        summary: "Takes a job of the node, once",
        access: &[Access::Node],
        parameters: &[JOB],
        request: Some(Request::Json(empty)),
        answers: &[(200, Body::Json(schema_of::<JobStatus>))],
        refusals: &[400, 401, 403, 404, 408, 409, 411, 413, 415, 429, 503],
    },
    Operation {
        method: "post",
        path: "/v1/jobs/{job}/report",
        id: "reportJob",
        summary: "Records output and outcome of a job that the node took",
        access: &[Access::Node],
        parameters: &[JOB],
        request: Some(Request::Json(schema_of::<JobReport>)),
        answers: &[(200, Body::Json(empty))],
        refusals: &[400, 401, 403, 404, 408, 409, 411, 413, 415, 429, 503],
    },
    Operation {
        method: "post",
        path: "/v1/reload",
        id: "reload",
        summary: "Reads the settings and everything published again",
        access: &[Access::Operator],
        parameters: &[],
        request: Some(Request::Json(empty)),
        answers: &[(200, Body::Json(schema_of::<Reloaded>))],
        refusals: &[400, 401, 403, 408, 411, 413, 415, 422, 503],
    },
    Operation {
        method: "post",
        path: "/v1/hooks/{name}",
        id: "receiveWebhook",
        summary: "Starts a run of every node whose spec names the webhook; any body, signed as in Standard Webhooks",
        access: &[Access::Anyone],
        parameters: &[
            Parameter::path("name", "The webhook's name."),
            Parameter::header("webhook-id", "The id of the request, never used again."),
            Parameter::header("webhook-timestamp", "Seconds since 1970."),
            Parameter::header(
                "webhook-signature",
                "`v1,` and HMAC-SHA256 of id, time and body joined by dots, in Base64.",
            ),
        ],
        request: Some(Request::Json(schema_of::<serde_json::Value>)),
        answers: &[(202, Body::Json(schema_of::<HookAnswer>))],
        refusals: &[400, 401, 408, 409, 411, 413, 429, 503],
    },
    Operation {
        method: "get",
        path: "/v1/triggers",
        id: "triggers",
        summary: "Lists webhooks and repositories that start runs of nodes",
        access: &[Access::Operator],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Triggers>))],
        refusals: &[401, 403],
    },
    Operation {
        method: "get",
        path: "/v1/tokens",
        id: "tokens",
        summary: "Lists the provisioning tokens that were issued",
        access: &[Access::Operator],
        parameters: &[],
        request: None,
        answers: &[(200, Body::Json(schema_of::<Tokens>))],
        refusals: &[401, 403],
    },
    Operation {
        method: "post",
        path: "/v1/tokens/{id}/revoke",
        id: "revokeToken",
        summary: "Revokes a provisioning token",
        access: &[Access::Operator],
        parameters: &[Parameter::path("id", "The token's id.")],
        request: Some(Request::Json(schema_of::<Revocation>)),
        answers: &[(200, Body::Json(schema_of::<TokenStatus>))],
        refusals: &[400, 401, 403, 404, 408, 411, 413, 415, 503],
    },
    Operation {
        method: "get",
        path: "/{repo}.git/{path}",
        id: "repositoryFile",
        summary: "Sends a file of a repository: one that git asks for over plain HTTP, or a file of \
            the branch `_working`",
        access: &[Access::Repository],
        parameters: &[
            Parameter::path("repo", "The repository."),
            Parameter::path("path", "The path, which may contain slashes."),
            Parameter {
                name: "Range",
                place: "header",
                is_number: false,
                description: "`bytes=N-` continues the download of a pack.",
            },
            Parameter {
                name: "service",
                place: "query",
                is_number: false,
                description: "`git-upload-pack`, for `info/refs`: begins the smart protocol of git.",
            },
        ],
        request: None,
        answers: &[(200, Body::File), (206, Body::File)],
        refusals: &[400, 401, 403, 404, 408, 413, 416, 429],
    },
    Operation {
        method: "post",
        path: "/{repo}.git/git-upload-pack",
        id: "uploadPack",
        summary: "Sends objects of a repository that git requests with its smart protocol",
        access: &[Access::Repository],
        parameters: &[
            Parameter::path("repo", "The repository."),
            Parameter::header(
                "Git-Protocol",
                "The version of the protocol: `version=1` or `version=2`.",
            ),
            Parameter::header("Content-Encoding", "`gzip`, if the body is compressed."),
        ],
        request: Some(Request::Other("application/x-git-upload-pack-request")),
        answers: &[(200, Body::Other("application/x-git-upload-pack-result"))],
        refusals: &[400, 401, 403, 404, 408, 411, 413, 415, 429],
    },
];

/// An object whose fields are ignored.
fn empty(_generator: &mut schemars::SchemaGenerator) -> serde_json::Value {
    serde_json::json!({ "type": "object" })
}
