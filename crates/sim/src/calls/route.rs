//! The list of implemented methods, and the function that answers each.

use super::{
    ApiError, Context, Outcome, access, agent, backup, clone, cluster, ct, disk, guest, host,
    migrate, pools, power, snapshot, storage, tasks, template, upload, vm_change, vm_create,
};
use serde_json::json;

use crate::schema::Method;
use crate::world::Kind;

/// Every implemented method. The API schema is generated for these; others answer 501.
pub const METHODS: &[(&str, &str)] = &[
    ("GET", "/version"),
    ("POST", "/access/ticket"),
    ("GET", "/access/users"),
    ("POST", "/access/users"),
    ("GET", "/access/users/{userid}"),
    ("PUT", "/access/users/{userid}"),
    ("DELETE", "/access/users/{userid}"),
    ("GET", "/access/users/{userid}/token"),
    ("GET", "/access/users/{userid}/token/{tokenid}"),
    ("POST", "/access/users/{userid}/token/{tokenid}"),
    ("PUT", "/access/users/{userid}/token/{tokenid}"),
    ("DELETE", "/access/users/{userid}/token/{tokenid}"),
    ("GET", "/access/groups"),
    ("POST", "/access/groups"),
    ("DELETE", "/access/groups/{groupid}"),
    ("GET", "/access/roles"),
    ("POST", "/access/roles"),
    ("GET", "/access/roles/{roleid}"),
    ("PUT", "/access/roles/{roleid}"),
    ("DELETE", "/access/roles/{roleid}"),
    ("GET", "/access/acl"),
    ("PUT", "/access/acl"),
    ("GET", "/access/permissions"),
    ("GET", "/cluster/status"),
    ("GET", "/cluster/resources"),
    ("GET", "/cluster/nextid"),
    ("GET", "/cluster/options"),
    ("GET", "/cluster/tasks"),
    ("GET", "/cluster/firewall/rules"),
    ("GET", "/cluster/firewall/groups"),
    ("GET", "/cluster/firewall/aliases"),
    ("GET", "/cluster/firewall/ipset"),
    ("GET", "/pools"),
    ("POST", "/pools"),
    ("PUT", "/pools"),
    ("DELETE", "/pools"),
    ("GET", "/pools/{poolid}"),
    ("PUT", "/pools/{poolid}"),
    ("DELETE", "/pools/{poolid}"),
    ("GET", "/storage"),
    ("GET", "/storage/{storage}"),
    ("POST", "/storage"),
    ("PUT", "/storage/{storage}"),
    ("DELETE", "/storage/{storage}"),
    ("GET", "/nodes"),
    ("GET", "/nodes/{node}/status"),
    ("GET", "/nodes/{node}/version"),
    ("GET", "/nodes/{node}/network"),
    ("GET", "/nodes/{node}/dns"),
    ("GET", "/nodes/{node}/time"),
    ("GET", "/nodes/{node}/services"),
    ("GET", "/nodes/{node}/query-url-metadata"),
    ("GET", "/nodes/{node}/tasks"),
    ("GET", "/nodes/{node}/tasks/{upid}/status"),
    ("GET", "/nodes/{node}/tasks/{upid}/log"),
    ("DELETE", "/nodes/{node}/tasks/{upid}"),
    ("GET", "/nodes/{node}/storage"),
    ("GET", "/nodes/{node}/storage/{storage}/status"),
    ("GET", "/nodes/{node}/storage/{storage}/content"),
    ("GET", "/nodes/{node}/storage/{storage}/content/{volume}"),
    ("PUT", "/nodes/{node}/storage/{storage}/content/{volume}"),
    ("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}"),
    ("POST", "/nodes/{node}/storage/{storage}/upload"),
    ("POST", "/nodes/{node}/storage/{storage}/download-url"),
    ("GET", "/nodes/{node}/storage/{storage}/import-metadata"),
    ("POST", "/nodes/{node}/vzdump"),
    ("GET", "/nodes/{node}/vzdump/extractconfig"),
    ("GET", "/nodes/{node}/qemu"),
    ("POST", "/nodes/{node}/qemu"),
    ("DELETE", "/nodes/{node}/qemu/{vmid}"),
    ("GET", "/nodes/{node}/qemu/{vmid}/config"),
    ("PUT", "/nodes/{node}/qemu/{vmid}/config"),
    ("POST", "/nodes/{node}/qemu/{vmid}/config"),
    ("GET", "/nodes/{node}/qemu/{vmid}/pending"),
    ("PUT", "/nodes/{node}/qemu/{vmid}/unlink"),
    ("PUT", "/nodes/{node}/qemu/{vmid}/resize"),
    ("POST", "/nodes/{node}/qemu/{vmid}/clone"),
    ("POST", "/nodes/{node}/qemu/{vmid}/template"),
    ("GET", "/nodes/{node}/qemu/{vmid}/feature"),
    ("POST", "/nodes/{node}/qemu/{vmid}/migrate"),
    ("GET", "/nodes/{node}/qemu/{vmid}/firewall/rules"),
    ("GET", "/nodes/{node}/qemu/{vmid}/firewall/aliases"),
    ("GET", "/nodes/{node}/qemu/{vmid}/firewall/ipset"),
    ("GET", "/nodes/{node}/qemu/{vmid}/status/current"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/start"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/stop"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/shutdown"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/reboot"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/reset"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/suspend"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/resume"),
    ("GET", "/nodes/{node}/qemu/{vmid}/snapshot"),
    ("POST", "/nodes/{node}/qemu/{vmid}/snapshot"),
    ("DELETE", "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}"),
    (
        "GET",
        "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config",
    ),
    (
        "POST",
        "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback",
    ),
    ("GET", "/nodes/{node}/qemu/{vmid}/cloudinit"),
    ("PUT", "/nodes/{node}/qemu/{vmid}/cloudinit"),
    ("GET", "/nodes/{node}/qemu/{vmid}/cloudinit/dump"),
    ("POST", "/nodes/{node}/qemu/{vmid}/agent/ping"),
    (
        "GET",
        "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces",
    ),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-host-name"),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-osinfo"),
    ("POST", "/nodes/{node}/qemu/{vmid}/agent/exec"),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/exec-status"),
    ("GET", "/nodes/{node}/lxc"),
    ("POST", "/nodes/{node}/lxc"),
    ("DELETE", "/nodes/{node}/lxc/{vmid}"),
    ("GET", "/nodes/{node}/lxc/{vmid}/config"),
    ("PUT", "/nodes/{node}/lxc/{vmid}/config"),
    ("GET", "/nodes/{node}/lxc/{vmid}/pending"),
    ("PUT", "/nodes/{node}/lxc/{vmid}/resize"),
    ("POST", "/nodes/{node}/lxc/{vmid}/clone"),
    ("POST", "/nodes/{node}/lxc/{vmid}/template"),
    ("GET", "/nodes/{node}/lxc/{vmid}/feature"),
    ("POST", "/nodes/{node}/lxc/{vmid}/migrate"),
    ("GET", "/nodes/{node}/lxc/{vmid}/firewall/rules"),
    ("GET", "/nodes/{node}/lxc/{vmid}/firewall/aliases"),
    ("GET", "/nodes/{node}/lxc/{vmid}/firewall/ipset"),
    ("GET", "/nodes/{node}/lxc/{vmid}/interfaces"),
    ("GET", "/nodes/{node}/lxc/{vmid}/status/current"),
    ("POST", "/nodes/{node}/lxc/{vmid}/status/start"),
    ("POST", "/nodes/{node}/lxc/{vmid}/status/stop"),
    ("POST", "/nodes/{node}/lxc/{vmid}/status/shutdown"),
    ("POST", "/nodes/{node}/lxc/{vmid}/status/reboot"),
    ("GET", "/nodes/{node}/lxc/{vmid}/snapshot"),
    ("POST", "/nodes/{node}/lxc/{vmid}/snapshot"),
    ("DELETE", "/nodes/{node}/lxc/{vmid}/snapshot/{snapname}"),
    ("GET", "/nodes/{node}/lxc/{vmid}/snapshot/{snapname}/config"),
    (
        "POST",
        "/nodes/{node}/lxc/{vmid}/snapshot/{snapname}/rollback",
    ),
];

/// Calls the function that implements a method.
pub(crate) async fn dispatch(method: &Method, context: &mut Context) -> Outcome {
    let verb = method.verb.as_str();
    if let Some(rest) = method.path.strip_prefix("/nodes/{node}/qemu") {
        return match (verb, rest) {
            ("POST", "") => vm_create::create(context).await,
            ("PUT", "/{vmid}/config") => vm_change::put(context).await,
            ("POST", "/{vmid}/config") => vm_change::post(context).await,
            ("PUT", "/{vmid}/unlink") => vm_change::unlink(context).await,
            ("POST", "/{vmid}/status/reset") => power::send_command(context, "reset"),
            ("POST", "/{vmid}/status/suspend") => power::send_command(context, "suspend"),
            ("POST", "/{vmid}/status/resume") => power::send_command(context, "resume"),
            ("GET", "/{vmid}/cloudinit") => agent::cloudinit_pending(context),
            ("PUT", "/{vmid}/cloudinit") => agent::cloudinit_update(context),
            ("GET", "/{vmid}/cloudinit/dump") => agent::cloudinit_dump(context),
            ("POST", "/{vmid}/agent/ping") => agent::ping(context).await,
            ("GET", "/{vmid}/agent/network-get-interfaces") => agent::interfaces(context).await,
            ("GET", "/{vmid}/agent/get-host-name") => agent::host_name(context).await,
            ("GET", "/{vmid}/agent/get-osinfo") => agent::os_info(context).await,
            ("POST", "/{vmid}/agent/exec") => agent::exec(context).await,
            ("GET", "/{vmid}/agent/exec-status") => agent::exec_status(context).await,
            _ => guest_method(verb, rest, context, Kind::Qemu).await,
        };
    }
    if let Some(rest) = method.path.strip_prefix("/nodes/{node}/lxc") {
        return match (verb, rest) {
            ("POST", "") => ct::create(context).await,
            ("PUT", "/{vmid}/config") => ct::put(context).await,
            ("GET", "/{vmid}/interfaces") => agent::container_interfaces(context),
            _ => guest_method(verb, rest, context, Kind::Lxc).await,
        };
    }
    if let Some(rest) = method.path.strip_prefix("/nodes/{node}") {
        return node_method(verb, rest, context);
    }
    if let Some(rest) = method.path.strip_prefix("/access") {
        return access_method(verb, rest, context).await;
    }
    match (verb, method.path.as_str()) {
        ("GET", "/version") => cluster::version(),
        ("GET", "/nodes") => cluster::nodes(context),
        ("GET", "/cluster/status") => cluster::status(context),
        ("GET", "/cluster/resources") => cluster::resources(context),
        ("GET", "/cluster/nextid") => cluster::next_id(context),
        ("GET", "/cluster/options") => cluster::options(),
        ("GET", "/cluster/tasks") => tasks::cluster(context),
        ("GET", "/pools") => pools::list(context),
        ("POST", "/pools") => pools::create(context),
        ("GET", "/pools/{poolid}") => pools::read(context),
        ("PUT", "/pools" | "/pools/{poolid}") => pools::change(context),
        ("DELETE", "/pools" | "/pools/{poolid}") => pools::delete(context),
        // The simulated firewall has no rules.
        ("GET", path) if path.starts_with("/cluster/firewall/") => Ok(json!([]).into()),
        ("GET", "/storage") => storage::configured(context),
        ("POST", "/storage") => storage::define(context),
        ("PUT", "/storage/{storage}") => storage::redefine(context),
        ("DELETE", "/storage/{storage}") => storage::undefine(context),
        ("GET", "/storage/{storage}") => storage::configuration(context),
        (_, path) => Err(not_implemented(verb, path)),
    }
}

fn not_implemented(verb: &str, path: &str) -> ApiError {
    ApiError::new(501, format!("Method '{verb} {path}' not implemented"))
}

async fn guest_method(verb: &str, rest: &str, context: &Context, kind: Kind) -> Outcome {
    match (verb, rest) {
        ("GET", "") => guest::list(context, kind),
        ("DELETE", "/{vmid}") => guest::destroy(context, kind),
        ("GET", "/{vmid}/config") => guest::config(context, kind),
        ("GET", "/{vmid}/pending") => guest::pending(context, kind),
        ("PUT", "/{vmid}/resize") => disk::resize(context, kind),
        ("POST", "/{vmid}/clone") => clone::clone(context, kind),
        ("POST", "/{vmid}/template") => template::create(context, kind),
        ("GET", "/{vmid}/feature") => migrate::feature(context, kind),
        ("POST", "/{vmid}/migrate") => migrate::migrate(context, kind),
        ("GET", rest) if rest.starts_with("/{vmid}/firewall/") => {
            context.exists(kind, context.vmid()?)?;
            Ok(json!([]).into())
        }
        ("GET", "/{vmid}/status/current") => guest::current(context, kind),
        ("POST", "/{vmid}/status/start") => power::start(context, kind),
        ("POST", "/{vmid}/status/stop") => power::stop(context, kind).await,
        ("POST", "/{vmid}/status/shutdown") => power::shutdown(context, kind),
        ("POST", "/{vmid}/status/reboot") => power::reboot(context, kind),
        ("GET", "/{vmid}/snapshot") => snapshot::list(context, kind),
        ("POST", "/{vmid}/snapshot") => snapshot::create(context, kind),
        ("DELETE", "/{vmid}/snapshot/{snapname}") => snapshot::delete(context, kind),
        ("GET", "/{vmid}/snapshot/{snapname}/config") => snapshot::config(context, kind),
        ("POST", "/{vmid}/snapshot/{snapname}/rollback") => snapshot::rollback(context, kind),
        (verb, rest) => Err(not_implemented(verb, rest)),
    }
}

fn node_method(verb: &str, rest: &str, context: &mut Context) -> Outcome {
    match (verb, rest) {
        ("GET", "/status") => host::status(context),
        ("GET", "/version") => cluster::version(),
        ("GET", "/network") => host::network(context),
        ("GET", "/dns") => host::dns(),
        ("GET", "/time") => host::time(context),
        ("GET", "/services") => host::services(),
        ("GET", "/query-url-metadata") => upload::url_metadata(context),
        ("GET", "/tasks") => tasks::list(context),
        ("GET", "/tasks/{upid}/status") => tasks::status(context),
        ("GET", "/tasks/{upid}/log") => tasks::log(context),
        ("DELETE", "/tasks/{upid}") => tasks::stop(context),
        ("GET", "/storage") => storage::list(context),
        ("GET", "/storage/{storage}/status") => storage::status(context),
        ("GET", "/storage/{storage}/content") => storage::content(context),
        ("GET", "/storage/{storage}/content/{volume}") => storage::volume(context),
        ("PUT", "/storage/{storage}/content/{volume}") => backup::update_attributes(context),
        ("DELETE", "/storage/{storage}/content/{volume}") => storage::delete_volume(context),
        ("POST", "/storage/{storage}/upload") => upload::upload(context),
        ("POST", "/storage/{storage}/download-url") => upload::download(context),
        ("GET", "/storage/{storage}/import-metadata") => storage::import_metadata(context),
        ("POST", "/vzdump") => backup::create(context),
        ("GET", "/vzdump/extractconfig") => backup::extract_config(context),
        (verb, rest) => Err(not_implemented(verb, rest)),
    }
}

async fn access_method(verb: &str, rest: &str, context: &Context) -> Outcome {
    match (verb, rest) {
        ("POST", "/ticket") => access::ticket(context).await,
        ("GET", "/users") => access::users(context),
        ("POST", "/users") => access::create_user(context),
        ("GET", "/users/{userid}") => access::user(context),
        ("PUT", "/users/{userid}") => access::change_user(context),
        ("DELETE", "/users/{userid}") => access::delete_user(context),
        ("GET", "/users/{userid}/token") => access::tokens(context),
        ("GET", "/users/{userid}/token/{tokenid}") => access::token(context),
        ("POST", "/users/{userid}/token/{tokenid}") => access::create_token(context),
        ("PUT", "/users/{userid}/token/{tokenid}") => access::change_token(context),
        ("DELETE", "/users/{userid}/token/{tokenid}") => access::delete_token(context),
        ("GET", "/groups") => access::groups(context),
        ("POST", "/groups") => access::create_group(context),
        ("DELETE", "/groups/{groupid}") => access::delete_group(context),
        ("GET", "/roles") => access::roles(context),
        ("POST", "/roles") => access::create_role(context),
        ("GET", "/roles/{roleid}") => access::role(context),
        ("PUT", "/roles/{roleid}") => access::change_role(context),
        ("DELETE", "/roles/{roleid}") => access::delete_role(context),
        ("GET", "/acl") => access::acl(context),
        ("PUT", "/acl") => access::change_acl(context),
        ("GET", "/permissions") => access::permissions(context),
        (verb, rest) => Err(not_implemented(verb, rest)),
    }
}
