//! Answers API calls: authenticates the caller, finds the method, checks privileges and parameters,
//! and runs it. An [`Answer`] has the status, reason phrase and body of Proxmox VE.

pub(crate) mod access;
pub(crate) mod agent;
pub(crate) mod auth;
pub(crate) mod backup;
pub(crate) mod clone;
pub(crate) mod cluster;
pub(crate) mod ct;
pub(crate) mod disk;
pub(crate) mod guest;
pub(crate) mod host;
pub(crate) mod migrate;
pub(crate) mod permission;
pub(crate) mod pools;
pub(crate) mod power;
pub(crate) mod request;
pub(crate) mod restore;
pub(crate) mod route;
pub(crate) mod snapshot;
pub(crate) mod storage;
pub(crate) mod tasks;
pub(crate) mod template;
pub(crate) mod upload;
pub(crate) mod vm_change;
pub(crate) mod vm_config;
pub(crate) mod vm_create;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

pub use request::{Answer, Credentials, Delivery, Request, Upload};

use crate::schema::check::{self, Parameters};
use crate::schema::{Method, table};
use crate::world::fault::FaultKind;
use crate::world::run::{Origin, poll_once};
use crate::world::state::State;
use crate::world::{Kind, World};

/// The error a call is answered with.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) errors: BTreeMap<String, String>,
    /// Whether the answer has no body, as for errors before a method is found.
    pub(crate) without_body: bool,
}

impl ApiError {
    pub(crate) fn new(status: u16, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            errors: BTreeMap::new(),
            without_body: false,
        }
    }

    pub(crate) fn without_body(status: u16, reason: impl Into<String>) -> Self {
        Self {
            without_body: true,
            ..Self::new(status, reason)
        }
    }

    pub(crate) fn parameters(errors: BTreeMap<String, String>) -> Self {
        Self {
            errors,
            ..Self::new(400, "Parameter verification failed.")
        }
    }

    pub(crate) fn parameter(name: &str, fault: impl Into<String>) -> Self {
        Self::parameters(BTreeMap::from([(name.to_owned(), fault.into())]))
    }
}

impl From<String> for ApiError {
    fn from(reason: String) -> Self {
        Self::new(500, reason)
    }
}

impl From<&str> for ApiError {
    fn from(reason: &str) -> Self {
        Self::new(500, reason)
    }
}

/// What a method returns.
pub(crate) enum Output {
    Data(Value),
    /// A long list as JSON text.
    Text(String),
    /// A page of a list, and the length of the whole list.
    Page(Value, usize),
}

impl From<Value> for Output {
    fn from(value: Value) -> Self {
        Self::Data(value)
    }
}

pub(crate) type Outcome = Result<Output, ApiError>;

/// A call being processed, with everything a method needs.
pub(crate) struct Context {
    pub(crate) world: World,
    pub(crate) identity: String,
    pub(crate) node: String,
    pub(crate) parameters: Parameters,
    pub(crate) upload: Option<Upload>,
    pub(crate) worker: Option<usize>,
    /// Whether the call waits for the end of its task.
    pub(crate) immediate: bool,
}

impl Context {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    pub(crate) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.text(name)
            .ok_or_else(|| ApiError::parameter(name, "property is missing and it is not optional"))
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("1")
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(|text| text.parse().ok())
    }

    pub(crate) fn vmid(&self) -> Result<u32, ApiError> {
        self.required("vmid")?.parse().map_err(|_| {
            ApiError::parameter(
                "vmid",
                "invalid format - value does not look like a valid VM ID\n",
            )
        })
    }

    /// Whether the caller is `root@pam` itself, which may do everything; its tokens may not.
    pub(crate) fn is_root(&self) -> bool {
        self.identity == "root@pam"
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin {
            node: self.node.clone(),
            identity: self.identity.clone(),
            worker: self.worker,
        }
    }

    /// Starts a task and answers with its UPID.
    pub(crate) fn task<Work, Run>(&self, kind: &str, id: &str, work: Work) -> Outcome
    where
        Work: FnOnce(crate::world::run::Job) -> Run,
        Run: Future<Output = Result<(), String>> + Send + 'static,
    {
        let upid = if self.immediate {
            self.world
                .run_task_immediately(&self.origin(), kind, id, work)?
        } else {
            self.world.start_task(&self.origin(), kind, id, work)
        };
        Ok(json!(upid).into())
    }

    /// Fails unless the guest exists.
    pub(crate) fn exists(&self, kind: Kind, vmid: u32) -> Result<(), ApiError> {
        let state = self.world.state();
        state
            .guest(&self.node, kind, vmid)
            .map(|_| ())
            .map_err(ApiError::from)
    }
}

impl World {
    /// Answers a call as if it had come over the network, faults included.
    pub async fn call(&self, request: Request) -> Answer {
        let _call = self.begin();
        let path = request.api_path().to_owned();
        self.count(&request.method, &path);
        let fault = self.fault_for(&request.method, &path);
        let Some(fault) = fault else {
            return self.answer(request).await;
        };
        match fault {
            FaultKind::ResetBefore => Answer::undelivered(Delivery::Reset),
            FaultKind::Timeout => Answer::undelivered(Delivery::Silence),
            FaultKind::ResetAfter => self.answer(request).await.with_delivery(Delivery::Reset),
            FaultKind::LostAnswer => self.answer(request).await.with_delivery(Delivery::Silence),
            FaultKind::RepeatedAnswer => {
                let _ = self.answer(request.clone()).await;
                self.answer(request).await
            }
            FaultKind::Status(status) => {
                Answer::refused(ApiError::without_body(status, reason_of(status)))
            }
            FaultKind::Garbage => self.answer(request).await.with_delivery(Delivery::Garbage),
            FaultKind::Truncated => self
                .answer(request)
                .await
                .with_delivery(Delivery::Truncated),
            FaultKind::Slow(seconds) => {
                self.sleep(std::time::Duration::from_secs_f64(seconds.max(0.0)))
                    .await;
                self.answer(request).await
            }
            FaultKind::TaskDies => {
                let answer = self.answer(request).await;
                if let Some(upid) = answer.data().as_str() {
                    self.state().tasks.kill_at_end(upid);
                }
                answer
            }
            FaultKind::StaleList(seconds) => {
                let old = self.old_list(&request, seconds);
                let answer = self.answer(request).await;
                match old {
                    Some(old) if answer.status == 200 => answer.with_data(old),
                    _ => answer,
                }
            }
        }
    }

    fn fault_for(&self, method: &str, path: &str) -> Option<FaultKind> {
        let mut state = self.state();
        if state.faults.is_empty() {
            return None;
        }
        let State { faults, random, .. } = &mut *state;
        faults.hit(method, path, random)
    }

    async fn answer(&self, request: Request) -> Answer {
        let head = request.method.clone();
        let key = self.list_key(&request);
        match self.process(request).await {
            Ok(output) => {
                let answer = Answer::ok(output);
                if let Some(key) = key {
                    self.remember_list(key, answer.data());
                }
                answer
            }
            Err(fail) => {
                tracing::debug!(
                    method = head,
                    status = fail.status,
                    reason = fail.reason,
                    "refused"
                );
                Answer::refused(fail)
            }
        }
    }

    async fn process(&self, request: Request) -> Outcome {
        let path = request.api_path().to_owned();
        let found = table().find(&request.method, &path);
        let world_may = found.as_ref().is_some_and(|(method, _)| method.world);
        let identity = if world_may {
            String::new()
        } else {
            match self.authenticate(&request) {
                Ok(identity) => identity,
                Err(fail) => {
                    let wait = self.state().timing.refusal;
                    self.sleep(wait).await;
                    return Err(fail);
                }
            }
        };
        let Some((method, names)) = found else {
            let reason = format!("Method '{} {path}' not implemented", request.method);
            return Err(ApiError::new(501, reason));
        };
        let mut context = self.context(method, identity, names, request)?;
        permission::check(&context, method)?;
        let _worker = self.enter(method, &mut context).await?;
        context.parameters =
            check::check(method, &context.parameters).map_err(ApiError::parameters)?;
        self.spend(method).await;
        route::dispatch(method, &mut context).await
    }

    /// Makes a call as `root@pam` that takes no worker and no simulated time; its task has ended
    /// when this returns. Fails if a lock is taken.
    pub fn perform(&self, request: Request) -> Result<Value, String> {
        let _call = self.begin();
        let path = request.api_path().to_owned();
        let (method, names) = table()
            .find(&request.method, &path)
            .ok_or_else(|| format!("Method '{} {path}' not implemented", request.method))?;
        let outcome = self
            .context(method, "root@pam".to_owned(), names, request)
            .and_then(|mut context| {
                context.immediate = true;
                context.parameters =
                    check::check(method, &context.parameters).map_err(ApiError::parameters)?;
                let answered = poll_once(route::dispatch(method, &mut context));
                answered.unwrap_or_else(|| Err("got timeout".into()))
            });
        let answer = match outcome {
            Ok(output) => Answer::ok(output),
            Err(fail) if fail.errors.is_empty() => return Err(fail.reason),
            Err(fail) => return Err(format!("{} {:?}", fail.reason, fail.errors)),
        };
        Ok(answer.data().clone())
    }

    fn context(
        &self,
        method: &Method,
        identity: String,
        names: Parameters,
        request: Request,
    ) -> Result<Context, ApiError> {
        let mut parameters = request.parameters;
        parameters.extend(names);
        if let Some(file) = &request.upload {
            parameters.insert("filename".to_owned(), file.name.clone());
        }
        let node = self.node_of(method, &parameters)?;
        if method.verb != "GET" && !method.world && !self.state().quorate {
            return Err("cluster not ready - no quorum?".into());
        }
        if method.verb != "GET"
            && let Some((scope, number)) = request.fence
        {
            self.state().check_fence(scope, number)?;
        }
        Ok(Context {
            world: self.clone(),
            identity,
            node,
            parameters,
            upload: request.upload,
            worker: None,
            immediate: false,
        })
    }

    /// Returns the host a call is for, to which the receiving host forwards it.
    fn node_of(&self, method: &Method, parameters: &Parameters) -> Result<String, ApiError> {
        let state = self.state();
        let local = state
            .hosts
            .values()
            .find(|host| host.online)
            .or(state.hosts.values().next());
        let local = local.map(|host| host.name.clone()).unwrap_or_default();
        let Some(name) = parameters
            .get("node")
            .filter(|_| method.of_node || method.path.contains("{node}"))
        else {
            return Ok(local);
        };
        if name == "localhost" {
            return Ok(local);
        }
        match state.hosts.get(name) {
            Some(host) if host.online => Ok(name.clone()),
            Some(_) => Err(ApiError::without_body(595, "No route to host")),
            None if crate::schema::format::check("pve-node", name).is_err() => Ok(local),
            None => Err(ApiError::new(
                500,
                format!(
                    "hostname lookup '{name}' failed - failed to get address info for: {name}: \
                     Name or service not known"
                ),
            )),
        }
    }

    /// Occupies a worker of the privileged daemon if the method needs one.
    async fn enter(
        &self,
        method: &Method,
        context: &mut Context,
    ) -> Result<Option<crate::world::worker::Worker>, ApiError> {
        if !method.protected {
            return Ok(None);
        }
        let workers = self
            .state()
            .hosts
            .get(&context.node)
            .map(|host| host.workers.clone());
        let Some(workers) = workers else {
            return Ok(None);
        };
        let world = self.clone();
        let now: Arc<dyn Fn() -> f64 + Send + Sync> = Arc::new(move || world.now());
        // Cancel safety: a caller that disconnects leaves the queue.
        let worker = workers
            .enter(now)
            .await
            .ok_or_else(|| ApiError::without_body(596, "Broken pipe"))?;
        context.worker = Some(worker.index);
        Ok(Some(worker))
    }

    /// Waits for as long as the method takes.
    async fn spend(&self, method: &Method) {
        // Without jitter, so that calls are served in the order of their arrival.
        let duration = {
            let state = self.state();
            if method.verb == "GET" {
                state.timing.read
            } else {
                state.timing.write
            }
        };
        self.sleep(duration).await;
    }
}

/// Returns the reason phrase of PVE's proxy for its own errors.
fn reason_of(status: u16) -> &'static str {
    match status {
        595 => "Connection refused",
        596 => "Connection timed out",
        599 => "Too many redirections",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Error",
    }
}
