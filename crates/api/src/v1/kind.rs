//! The table of outputs: which command prints which type, under which `kind`.
//!
//! Every output is an object that begins with `kind` and `version`. A constant of this module ties
//! a kind to its type, so that nothing else can be printed under it. [`UNTAGGED`] lists lines of events
//! and files, which have none.

use std::marker::PhantomData;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::*;

/// The version of every output. Fields are added without a new one.
pub const VERSION: u32 = 1;

/// The kind of an output whose type is `T`.
pub struct Kind<T> {
    name: &'static str,
    output: PhantomData<fn() -> T>,
}

impl<T> Kind<T> {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            output: PhantomData,
        }
    }

    /// Returns the value of `kind`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns a value as it is printed.
    pub fn document<'v>(&self, body: &'v T) -> Document<&'v T> {
        Document {
            kind: self.name.to_owned(),
            version: VERSION,
            body,
        }
    }
}

impl<T> Kind<AgentOutput<T>> {
    /// Returns the kind for the failure of the command that prints this one.
    pub const fn failure(self) -> Kind<AgentFailure> {
        Kind::new(self.name)
    }
}

/// An output as it is printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document<T> {
    /// Which type `body` has.
    pub kind: String,
    /// The version of that type.
    pub version: u32,
    /// The output itself.
    #[serde(flatten)]
    pub body: T,
}

/// The program that prints an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `homestak`
    Homestak,
    /// `homestak-agent`, also as a part of `homestak`
    Agent,
}

/// One entry of the table of outputs.
pub struct OutputKind {
    /// The value of `kind`.
    pub kind: &'static str,
    /// The program that prints it.
    pub program: Program,
    /// The commands that print it.
    pub commands: &'static [&'static str],
    /// Returns its JSON Schema, of draft 2020-12.
    pub schema: fn(&str) -> Value,
    /// Reads an output as its type and returns what that type writes.
    pub round_trip: fn(Value) -> serde_json::Result<Value>,
}

impl OutputKind {
    const fn new<T: Serialize + DeserializeOwned + JsonSchema>(
        kind: &Kind<T>,
        program: Program,
        commands: &'static [&'static str],
    ) -> Self {
        Self {
            kind: kind.name,
            program,
            commands,
            schema: schema::<T>,
            round_trip: |value| {
                let document: Document<T> = serde_json::from_value(value)?;
                serde_json::to_value(document)
            },
        }
    }

    /// Returns its JSON Schema, of draft 2020-12.
    pub fn json_schema(&self) -> Value {
        (self.schema)(self.kind)
    }
}

/// Returns the schema of what a type writes.
fn plain_schema<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// Adds `kind` and `version` to the schema of a type.
fn schema<T: JsonSchema>(kind: &str) -> Value {
    let mut schema = plain_schema::<T>();
    let head = json!({
        "kind": { "description": "Which output it is.", "const": kind },
        "version": { "description": "The version of the output.", "const": VERSION },
    });
    let mut add = |key: &str, mut first: Value| {
        let rest = schema[key].take();
        match (&mut first, rest) {
            (Value::Object(first), Value::Object(rest)) => first.extend(rest),
            (Value::Array(first), Value::Array(rest)) => first.extend(rest),
            _ => {}
        }
        schema[key] = first;
    };
    add("properties", head);
    add("required", json!(["kind", "version"]));
    schema["type"] = "object".into();
    schema
}

/// JSON without `kind`: a line of events, or a file that a command writes.
pub struct UntaggedOutput {
    /// The name of its schema.
    pub name: &'static str,
    /// The program that writes it.
    pub program: Program,
    /// What it is and where it is found.
    pub description: &'static str,
    /// Returns its JSON Schema, of draft 2020-12.
    pub schema: fn() -> Value,
    /// Reads a value as its type and returns what that type writes.
    pub round_trip: fn(Value) -> serde_json::Result<Value>,
}

impl UntaggedOutput {
    const fn new<T: Serialize + DeserializeOwned + JsonSchema>(
        name: &'static str,
        program: Program,
        description: &'static str,
    ) -> Self {
        Self {
            name,
            program,
            description,
            schema: plain_schema::<T>,
            round_trip: |value| serde_json::to_value(serde_json::from_value::<T>(value)?),
        }
    }
}

/// Everything that is written as JSON for other processes without `kind`.
pub const UNTAGGED: &[UntaggedOutput] = &[
    UntaggedOutput::new::<RunEvent>(
        "event",
        Program::Homestak,
        "a line of `--events`: an event of a run",
    ),
    UntaggedOutput::new::<SimEndpoint>(
        "sim-endpoint",
        Program::Homestak,
        "the file `endpoint.json` in the directory of a simulator that runs",
    ),
    UntaggedOutput::new::<TestReport>(
        "test-report",
        Program::Homestak,
        "the report of `manifest test`, in the directory `reports` of the state directory",
    ),
    UntaggedOutput::new::<AgentEvent>(
        "event",
        Program::Agent,
        "a line of `job run`, `job undo` and `job follow`: an event of a job",
    ),
];

/// Commands of `homestak` that print no output of a kind, and what they print instead.
pub const WITHOUT_KIND: &[(&str, &str)] = &[
    ("completions", "a script for a shell"),
    ("config", "what `homestak-agent config` prints"),
    ("console", "what the node prints"),
    ("local act", "the answer to one call of a driver"),
    ("man", "manual pages"),
    ("resolve ansible", "variables in the format of Ansible"),
    ("resolve tofu", "variables in the format of OpenTofu"),
    ("run", "what `homestak-agent run` prints"),
    ("schema", "JSON Schemas, unless `--out` is given"),
    ("spec get", "what `homestak-agent spec get` prints"),
    ("ssh", "what the node prints"),
    ("status", "what `homestak-agent status` prints"),
];

macro_rules! outputs {
    ($($program:ident { $($name:ident: $type:ty = $kind:literal by $commands:expr;)+ })+) => {
        $($(
            #[doc = concat!("`", $kind, "`")]
            pub const $name: Kind<$type> = Kind::new($kind);
        )+)+

        /// Every output, by program and kind.
        pub const OUTPUTS: &[OutputKind] = &[
            $($(OutputKind::new(&$name, Program::$program, &$commands),)+)+
        ];
    };
}

outputs! {
    Homestak {
        ERROR: Failure = "error" by [];
        EXEC: ExecResults = "exec" by ["exec"];
        EXPLAIN: Explanation = "explain" by ["explain"];
        HOST_LIST: HostList = "host.list" by ["host list"];
        HOST_PREFLIGHT: HostPreflight = "host.preflight"
            by ["host preflight", "local check", "local setup"];
        HOST_ROLE: HostRole = "host.role" by ["host role"];
        HOST_SHOW: HostDetail = "host.show" by ["host show"];
        HOST_TRUST: HostTrust = "host.trust" by ["host trust"];
        IMAGE_BUILD: ImageChange = "image.build" by ["image build"];
        IMAGE_LIST: ImageList = "image.list" by ["image list"];
        IMAGE_REMOVE: ImageChange = "image.remove" by ["image remove"];
        IMAGE_VERIFY: ImageVerification = "image.verify" by ["image verify"];
        JOB_CANCEL: node_update::CancelledJob = "job.cancel" by ["job cancel"];
        JOB_LIST: node_job::Jobs = "job.list" by ["job list"];
        JOB_SHOW: node_update::ShownJob = "job.show" by ["job show"];
        LOCAL_CLEAN: LocalCleanup = "local.clean" by ["local clean"];
        LOCAL_SHOW: LocalNodes = "local.show" by ["local show"];
        LOGS: NodeLogs = "logs" by ["logs"];
        MANIFEST_APPLY: RunResult = "manifest.apply" by ["manifest apply"];
        MANIFEST_CONFIGURE: RunResult = "manifest.configure" by ["manifest configure"];
        MANIFEST_DESTROY: RunResult = "manifest.destroy" by ["manifest destroy"];
        MANIFEST_FORGET: ManifestForget = "manifest.forget" by ["manifest forget"];
        MANIFEST_GRAPH: ManifestGraph = "manifest.graph" by ["manifest graph"];
        MANIFEST_HISTORY: RunHistory = "manifest.history" by ["manifest history"];
        MANIFEST_LIST: ManifestList = "manifest.list" by ["manifest list"];
        MANIFEST_MIGRATE: ManifestMigration = "manifest.migrate" by ["manifest migrate"];
        MANIFEST_PLAN: ManifestPlan = "manifest.plan" by [
            "manifest plan",
            "manifest apply --dry-run",
            "manifest configure --dry-run",
            "manifest destroy --dry-run",
            "manifest reidentify --dry-run",
            "manifest test --dry-run",
        ];
        MANIFEST_REIDENTIFY: RunResult = "manifest.reidentify" by ["manifest reidentify"];
        MANIFEST_REPORT: RunReport = "manifest.report" by ["manifest report"];
        MANIFEST_RESUME: RunResult = "manifest.resume" by ["manifest resume"];
        MANIFEST_ROLLBACK: RollbackOutput = "manifest.rollback" by ["manifest rollback"];
        MANIFEST_SHOW: ManifestDetail = "manifest.show" by ["manifest show"];
        MANIFEST_STATUS: ManifestStatus = "manifest.status" by ["manifest status"];
        MANIFEST_TEST: RunResult = "manifest.test" by ["manifest test"];
        MANIFEST_UNLOCK: ManifestUnlock = "manifest.unlock" by ["manifest unlock"];
        MANIFEST_VALIDATE: ManifestValidation = "manifest.validate" by ["manifest validate"];
        NODE_ENROL: node_status::NodeStatus = "node.enrol" by ["node enrol"];
        NODE_JOB: node_update::NodeJob = "node.job" by ["node job"];
        NODE_LIST: node_status::Nodes = "node.list" by ["node list"];
        NODE_REVOKE: node_status::NodeStatus = "node.revoke" by ["node revoke"];
        NODE_SHOW: node_status::NodeDetail = "node.show" by ["node show"];
        NODE_UPDATE: node_update::NodeUpdate = "node.update"
            by ["node update", "node update --dry-run"];
        SCHEMA: SchemaFiles = "schema" by ["schema --out"];
        SERVER_CHECK: ServerCheck = "server.check" by ["server check"];
        SERVER_PUBLISH: ServerPublish = "server.publish" by ["server publish"];
        SERVER_RELOAD: ServerReload = "server.reload" by ["server reload"];
        SERVER_ROTATE_KEY: ServerRotateKey = "server.rotate-key" by ["server rotate-key"];
        SERVER_START: ServerStart = "server.start" by ["server start"];
        SERVER_STATUS: ServerStatus = "server.status" by ["server status"];
        SERVER_STOP: ServerStop = "server.stop" by ["server stop"];
        SERVER_TRUST: ServerTrust = "server.trust" by ["server trust"];
        SECRETS_CHECK: SecretsCheck = "secrets.check" by ["secrets check"];
        SECRETS_DECRYPT: SecretsDecrypted = "secrets.decrypt" by ["secrets decrypt"];
        SECRETS_EDIT: SecretsEdited = "secrets.edit" by ["secrets edit"];
        SECRETS_ENCRYPT: SecretsEncrypted = "secrets.encrypt" by ["secrets encrypt"];
        SECRETS_GET: SecretValue = "secrets.get" by ["secrets get"];
        SECRETS_KEYGEN: SecretsKey = "secrets.keygen" by ["secrets keygen"];
        SIM_REPLAY: SimReplay = "sim.replay" by ["sim replay"];
        SIM_RESET: SimReset = "sim.reset" by ["sim reset"];
        SIM_SERVE: SimServe = "sim.serve" by ["sim serve"];
        SIM_START: SimStatus = "sim.start" by ["sim start"];
        SIM_STATUS: SimStatus = "sim.status" by ["sim status"];
        SIM_STOP: SimStop = "sim.stop" by ["sim stop"];
        SITE_INIT: SiteInit = "site.init" by ["site init"];
        SITE_NEW_ID: SiteNewId = "site.new-id" by ["site new-id"];
        SITE_SHOW: SiteDetail = "site.show" by ["site show"];
        SITE_VALIDATE: SiteValidation = "site.validate" by ["site validate"];
        SPEC_DIFF: SpecDiff = "spec.diff" by ["spec diff"];
        SPEC_LIST: SpecList = "spec.list" by ["spec list"];
        SPEC_SHOW: SpecDetail = "spec.show" by ["spec show"];
        SPEC_VALIDATE: SpecValidation = "spec.validate" by ["spec validate"];
        STATE_REBUILD: StateRebuild = "state.rebuild" by ["state rebuild"];
        TOKEN_INSPECT: TokenInspection = "token.inspect" by ["token inspect"];
        TOKEN_LIST: node_status::Tokens = "token.list" by ["token list"];
        TOKEN_MINT: TokenMinted = "token.mint" by ["token mint"];
        TOKEN_REVOKE: node_status::TokenStatus = "token.revoke" by ["token revoke"];
        TOKEN_VERIFY: TokenInspection = "token.verify" by ["token verify"];
    }
    Agent {
        CONFIG_APPLY: AgentOutput<ConfigApply> = "config.apply" by ["config apply"];
        CONFIG_CHECK: AgentOutput<ConfigCheck> = "config.check" by ["config check"];
        CONFIG_CONFIRM: AgentFailure = "config.confirm" by ["config confirm"];
        CONFIG_FETCH: AgentOutput<SpecFetched> = "config.fetch" by ["config fetch"];
        CONFIG_SHOW: AgentOutput<ConfigDetail> = "config.show" by ["config show"];
        AGENT_JOB: AgentFailure = "job" by [
            "job run", "job undo", "job follow", "job confirm", "job work", "job guard",
        ];
        AGENT_NODE_JOB: AgentOutput<node_job::JobOutcome> = "node-job" by ["node-job"];
        AGENT_PULL: AgentOutput<AgentPull> = "pull" by ["pull"];
        AGENT_RUN: AgentOutput<AgentRun> = "run" by ["run"];
        AGENT_SPEC_GET: AgentOutput<SpecFetched> = "spec.get" by ["spec get"];
        AGENT_SPEC_VALIDATE: AgentOutput<SpecValid> = "spec.validate" by ["spec validate"];
        AGENT_STATUS: AgentOutput<AgentStatus> = "status" by ["status"];
    }
}
