//! Calls under `/access`: users, tokens, groups, roles, access lists and tickets.

use serde_json::{Map, Value, json};

use super::{ApiError, Context, Outcome, permission};
use crate::schema::format::split_list;
use crate::world::access::{Grant, PRIVILEGES, Token, User};

/// Properties of a user that are stored unchanged.
const USER_FIELDS: [&str; 5] = ["comment", "email", "firstname", "lastname", "keys"];

pub(crate) async fn ticket(context: &Context) -> Outcome {
    let mut user = context.required("username")?.to_owned();
    if let Some(realm) = context.text("realm")
        && !user.contains('@')
    {
        user = format!("{user}@{realm}");
    }
    let password = context.required("password")?.to_owned();
    let known = context
        .world
        .state()
        .access
        .users
        .get(&user)
        .filter(|known| known.enabled)
        .and_then(|known| known.password.clone());
    let renewed = context.world.verify_ticket(&password).as_deref() == Some(user.as_str());
    if known.as_deref() != Some(password.as_str()) && !renewed {
        let wait = context.world.state().timing.refusal;
        context.world.sleep(wait).await;
        return Err(ApiError::new(401, "authentication failure"));
    }
    Ok(json!({
        "username": user,
        "ticket": context.world.create_ticket(&user),
        "CSRFPreventionToken": context.world.create_csrf_token(&user),
        "cap": capabilities(context, &user),
    })
    .into())
}

/// Returns privileges by area, as the web interface uses them.
fn capabilities(context: &Context, user: &str) -> Value {
    let state = context.world.state();
    let mut shown = Map::new();
    let areas: [(&str, &str, &[&str]); 7] = [
        ("vms", "/vms", &["VM.", "Permissions.Modify"]),
        ("storage", "/storage", &["Datastore.", "Permissions.Modify"]),
        (
            "access",
            "/access",
            &["User.", "Group.", "Permissions.Modify"],
        ),
        ("nodes", "/nodes", &["Sys.", "Permissions.Modify"]),
        ("sdn", "/sdn", &["SDN.", "Permissions.Modify"]),
        ("mapping", "/mapping", &["Mapping.", "Permissions.Modify"]),
        ("dc", "/", &["SDN.", "Sys.Audit", "Sys.Modify"]),
    ];
    for (area, path, wanted) in areas {
        let has = state.privileges(user, path);
        let listed: Map<String, Value> = has
            .keys()
            .filter(|name| wanted.iter().any(|prefix| name.starts_with(prefix)))
            .map(|name| (name.clone(), json!(1)))
            .collect();
        shown.insert(area.to_owned(), Value::Object(listed));
    }
    Value::Object(shown)
}

pub(crate) fn users(context: &Context) -> Outcome {
    let full = context.flag("full");
    let state = context.world.state();
    let list: Vec<Value> = state
        .access
        .users
        .iter()
        .map(|(name, user)| {
            let mut shown = user_fields(user);
            shown.insert("userid".into(), json!(name));
            let realm = name.rsplit_once('@').map_or("pam", |(_, realm)| realm);
            shown.insert("realm-type".into(), json!(realm));
            if full {
                shown.insert("tokens".into(), token_list(user));
            }
            Value::Object(shown)
        })
        .collect();
    Ok(json!(list).into())
}

fn user_fields(user: &User) -> Map<String, Value> {
    let mut shown = Map::new();
    shown.insert("enable".into(), json!(u8::from(user.enabled)));
    shown.insert("expire".into(), json!(user.expire));
    for (key, value) in &user.fields {
        shown.insert(key.clone(), json!(value));
    }
    shown
}

fn token_list(user: &User) -> Value {
    let list: Vec<Value> = user
        .tokens
        .iter()
        .map(|(name, token)| {
            let mut shown = token_info(token);
            shown["tokenid"] = json!(name);
            shown
        })
        .collect();
    json!(list)
}

fn token_info(token: &Token) -> Value {
    let mut shown = json!({
        "expire": token.expire,
        "privsep": u8::from(token.privilege_separation),
    });
    if let Some(comment) = &token.comment {
        shown["comment"] = json!(comment);
    }
    shown
}

pub(crate) fn user(context: &Context) -> Outcome {
    let name = context.required("userid")?;
    let state = context.world.state();
    let user = state.access.users.get(name).ok_or_else(|| no_user(name))?;
    let mut shown = user_fields(user);
    let tokens: Map<String, Value> = user
        .tokens
        .iter()
        .map(|(name, token)| (name.clone(), token_info(token)))
        .collect();
    shown.insert("groups".into(), json!(user.groups));
    shown.insert("tokens".into(), Value::Object(tokens));
    Ok(Value::Object(shown).into())
}

fn no_user(name: &str) -> ApiError {
    ApiError::new(500, format!("no such user ('{name}')"))
}

fn set_user(context: &Context, user: &mut User) {
    for field in USER_FIELDS {
        if let Some(value) = context.text(field) {
            user.fields.insert(field.to_owned(), value.to_owned());
        }
    }
    if context.text("enable").is_some() {
        user.enabled = context.flag("enable");
    }
    if let Some(expire) = context.number("expire") {
        user.expire = i64::try_from(expire).unwrap_or(0);
    }
    if let Some(groups) = context.text("groups") {
        if !context.flag("append") {
            user.groups.clear();
        }
        user.groups
            .extend(split_list(groups).map(ToOwned::to_owned));
    }
    if let Some(password) = context.text("password") {
        user.password = Some(password.to_owned());
    }
}

pub(crate) fn create_user(context: &Context) -> Outcome {
    let name = context.required("userid")?.to_owned();
    let mut user = User {
        enabled: true,
        ..User::default()
    };
    set_user(context, &mut user);
    let mut state = context.world.state();
    if state.access.users.contains_key(&name) {
        return Err(format!("create user failed: user '{name}' already exists").into());
    }
    state.access.users.insert(name, user);
    Ok(Value::Null.into())
}

pub(crate) fn change_user(context: &Context) -> Outcome {
    let name = context.required("userid")?;
    let mut state = context.world.state();
    let user = state
        .access
        .users
        .get_mut(name)
        .ok_or_else(|| no_user(name))?;
    set_user(context, user);
    Ok(Value::Null.into())
}

pub(crate) fn delete_user(context: &Context) -> Outcome {
    let name = context.required("userid")?;
    let mut state = context.world.state();
    if state.access.users.remove(name).is_none() {
        return Err(ApiError::new(
            500,
            format!("delete user failed: user '{name}' does not exist"),
        ));
    }
    let of_user = format!("{name}!");
    state
        .access
        .grants
        .retain(|grant| grant.subject != name && !grant.subject.starts_with(&of_user));
    Ok(Value::Null.into())
}

pub(crate) fn tokens(context: &Context) -> Outcome {
    let name = context.required("userid")?;
    let state = context.world.state();
    let user = state.access.users.get(name).ok_or_else(|| no_user(name))?;
    Ok(token_list(user).into())
}

pub(crate) fn token(context: &Context) -> Outcome {
    let (name, id) = (context.required("userid")?, context.required("tokenid")?);
    let state = context.world.state();
    let user = state.access.users.get(name).ok_or_else(|| no_user(name))?;
    let token = user.tokens.get(id).ok_or_else(|| no_token(name, id))?;
    Ok(token_info(token).into())
}

fn no_token(name: &str, id: &str) -> ApiError {
    ApiError::new(500, format!("no such token '{id}' for user '{name}'"))
}

pub(crate) fn create_token(context: &Context) -> Outcome {
    let (name, id) = (
        context.required("userid")?.to_owned(),
        context.required("tokenid")?.to_owned(),
    );
    let separated = context.text("privsep").is_none_or(|text| text == "1");
    let mut state = context.world.state();
    let secret = state.random.uuid();
    let user = state
        .access
        .users
        .get_mut(&name)
        .ok_or_else(|| no_user(&name))?;
    if user.tokens.contains_key(&id) {
        return Err(ApiError::parameter("tokenid", "Token already exists."));
    }
    let token = Token {
        secret: secret.clone(),
        privilege_separation: separated,
        expire: context
            .number("expire")
            .and_then(|at| i64::try_from(at).ok())
            .unwrap_or(0),
        comment: context.text("comment").map(ToOwned::to_owned),
    };
    user.tokens.insert(id.clone(), token);
    let mut info = json!({ "privsep": if separated { "1" } else { "0" } });
    for key in ["comment", "expire"] {
        if let Some(value) = context.text(key) {
            info[key] = json!(value);
        }
    }
    Ok(json!({ "full-tokenid": format!("{name}!{id}"), "value": secret, "info": info }).into())
}

pub(crate) fn change_token(context: &Context) -> Outcome {
    let (name, id) = (context.required("userid")?, context.required("tokenid")?);
    let mut state = context.world.state();
    let user = state
        .access
        .users
        .get_mut(name)
        .ok_or_else(|| no_user(name))?;
    let token = user.tokens.get_mut(id).ok_or_else(|| no_token(name, id))?;
    if context.text("privsep").is_some() {
        token.privilege_separation = context.flag("privsep");
    }
    if let Some(expire) = context.number("expire") {
        token.expire = i64::try_from(expire).unwrap_or(0);
    }
    if let Some(comment) = context.text("comment") {
        token.comment = Some(comment.to_owned());
    }
    Ok(token_info(token).into())
}

pub(crate) fn delete_token(context: &Context) -> Outcome {
    let (name, id) = (context.required("userid")?, context.required("tokenid")?);
    let mut state = context.world.state();
    let user = state
        .access
        .users
        .get_mut(name)
        .ok_or_else(|| no_user(name))?;
    user.tokens.remove(id).ok_or_else(|| no_token(name, id))?;
    let full = format!("{name}!{id}");
    state.access.grants.retain(|grant| grant.subject != full);
    Ok(Value::Null.into())
}

pub(crate) fn roles(context: &Context) -> Outcome {
    let state = context.world.state();
    let list: Vec<Value> = state
        .access
        .roles
        .iter()
        .map(|(name, privileges)| {
            let privileges: Vec<&str> = privileges.iter().map(String::as_str).collect();
            let mut shown = json!({ "roleid": name, "privs": privileges.join(",") });
            if state.access.special.contains(name) {
                shown["special"] = json!(1);
            }
            shown
        })
        .collect();
    Ok(json!(list).into())
}

pub(crate) fn role(context: &Context) -> Outcome {
    let name = context.required("roleid")?;
    let state = context.world.state();
    let role = state.access.roles.get(name);
    let role = role.ok_or_else(|| ApiError::new(500, format!("role '{name}' does not exist")))?;
    let shown: Map<String, Value> = role.iter().map(|name| (name.clone(), json!(1))).collect();
    Ok(Value::Object(shown).into())
}

pub(crate) fn create_role(context: &Context) -> Outcome {
    let name = context.required("roleid")?.to_owned();
    let privileges = split_list(context.text("privs").unwrap_or(""))
        .map(ToOwned::to_owned)
        .collect();
    let mut state = context.world.state();
    if state.access.roles.contains_key(&name) {
        return Err(format!("create role failed: role '{name}' already exists").into());
    }
    state.access.roles.insert(name, privileges);
    Ok(Value::Null.into())
}

pub(crate) fn change_role(context: &Context) -> Outcome {
    let name = context.required("roleid")?.to_owned();
    let wanted: Vec<String> = split_list(context.text("privs").unwrap_or(""))
        .map(ToOwned::to_owned)
        .collect();
    let append = context.flag("append");
    let mut state = context.world.state();
    if state.access.special.contains(&name) {
        return Err(format!("auto-generated role '{name}' cannot be modified").into());
    }
    let role = state
        .access
        .roles
        .get_mut(&name)
        .ok_or_else(|| ApiError::new(500, format!("role '{name}' does not exist")))?;
    if !append {
        role.clear();
    }
    role.extend(wanted);
    Ok(Value::Null.into())
}

pub(crate) fn delete_role(context: &Context) -> Outcome {
    let name = context.required("roleid")?;
    let mut state = context.world.state();
    if state.access.special.contains(name) {
        return Err(format!("auto-generated role '{name}' cannot be deleted").into());
    }
    if state.access.roles.remove(name).is_none() {
        return Err(format!("role '{name}' does not exist").into());
    }
    state.access.grants.retain(|grant| grant.role != name);
    Ok(Value::Null.into())
}

pub(crate) fn acl(context: &Context) -> Outcome {
    let state = context.world.state();
    let has =
        |path: &str, name: &str| context.is_root() || state.allows(&context.identity, path, name);
    // `Sys.Audit` shows every entry, otherwise only those the caller may change.
    let listed = |grant: &&Grant| {
        has("/access", "Sys.Audit")
            || permission::acl_privileges(&grant.path)
                .iter()
                .any(|name| has(&grant.path, name))
    };
    let list: Vec<Value> = state
        .access
        .grants
        .iter()
        .filter(listed)
        .map(|grant| {
            json!({
                "path": grant.path,
                "type": grant.kind,
                "ugid": grant.subject,
                "roleid": grant.role,
                "propagate": u8::from(grant.propagate),
            })
        })
        .collect();
    Ok(json!(list).into())
}

pub(crate) fn change_acl(context: &Context) -> Outcome {
    let given = context.required("path")?;
    let path = normalize_path(given)
        .ok_or_else(|| ApiError::parameter("path", format!("invalid ACL path '{given}'")))?;
    let propagate = context.text("propagate").is_none_or(|text| text == "1");
    let delete = context.flag("delete");
    let mut state = context.world.state();
    let mut subjects: Vec<(&'static str, String)> = Vec::new();
    for (parameter, kind) in [("users", "user"), ("groups", "group"), ("tokens", "token")] {
        for name in split_list(context.text(parameter).unwrap_or("")) {
            let known = match kind {
                "user" => state.access.users.contains_key(name),
                "group" => state.access.groups.contains_key(name),
                _ => name.split_once('!').is_some_and(|(user, token)| {
                    let user = state.access.users.get(user);
                    user.is_some_and(|user| user.tokens.contains_key(token))
                }),
            };
            if !known && !delete {
                return Err(match kind {
                    "token" => format!("no such token '{name}'").into(),
                    _ => format!("{kind} '{name}' does not exist").into(),
                });
            }
            subjects.push((kind, name.to_owned()));
        }
    }
    if subjects.is_empty() {
        let message = "either 'users', 'groups' or 'tokens' is required.";
        return Err(ApiError::parameter("users", message));
    }
    for role in split_list(context.required("roles")?) {
        if !state.access.roles.contains_key(role) {
            return Err(format!("ACL update failed: role '{role}' does not exist").into());
        }
        for (kind, subject) in &subjects {
            state.access.grants.retain(|grant| {
                !(grant.path == path
                    && grant.kind == *kind
                    && grant.subject == *subject
                    && grant.role == role)
            });
            if !delete {
                state.access.grants.push(Grant {
                    path: path.clone(),
                    kind,
                    subject: subject.clone(),
                    role: role.to_owned(),
                    propagate,
                });
            }
        }
    }
    Ok(Value::Null.into())
}

fn normalize_path(path: &str) -> Option<String> {
    if !path.starts_with('/') {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let known = [
        "nodes", "vms", "storage", "pool", "access", "sdn", "mapping",
    ];
    parts
        .first()
        .is_none_or(|first| known.contains(first))
        .then(|| format!("/{}", parts.join("/")))
}

pub(crate) fn permissions(context: &Context) -> Outcome {
    let identity = context
        .text("userid")
        .unwrap_or(&context.identity)
        .to_owned();
    let state = context.world.state();
    let mut paths: Vec<String> = [
        "/",
        "/access",
        "/access/groups",
        "/nodes",
        "/pool",
        "/sdn",
        "/storage",
        "/vms",
    ]
    .map(ToOwned::to_owned)
    .to_vec();
    // Paths of the access list with their parents, and the members of pools.
    for grant in &state.access.grants {
        let parts = grant.path.match_indices('/').skip(1);
        paths.extend(parts.map(|(at, _)| grant.path[..at].to_owned()));
        paths.push(grant.path.clone());
    }
    paths.extend(state.pool_of.keys().map(|vmid| format!("/vms/{vmid}")));
    let pooled = state.pool_storages.values().flatten();
    paths.extend(pooled.map(|storage| format!("/storage/{storage}")));
    if let Some(path) = context.text("path") {
        paths = vec![path.to_owned()];
    }
    let mut shown = Map::new();
    for path in paths {
        let has = state.privileges(&identity, &path);
        if has.is_empty() && context.text("path").is_none() {
            continue;
        }
        let listed: Map<String, Value> = PRIVILEGES
            .iter()
            .filter_map(|name| {
                has.get(*name)
                    .map(|passed| ((*name).to_owned(), json!(u8::from(*passed))))
            })
            .collect();
        shown.insert(path, Value::Object(listed));
    }
    Ok(Value::Object(shown).into())
}

pub(crate) fn groups(context: &Context) -> Outcome {
    let state = context.world.state();
    let list: Vec<Value> = state
        .access
        .groups
        .iter()
        .map(|(name, comment)| {
            let users: Vec<&str> = state
                .access
                .users
                .iter()
                .filter(|(_, user)| user.groups.contains(name))
                .map(|(user, _)| user.as_str())
                .collect();
            let mut shown = json!({ "groupid": name, "users": users.join(",") });
            if !comment.is_empty() {
                shown["comment"] = json!(comment);
            }
            shown
        })
        .collect();
    Ok(json!(list).into())
}

pub(crate) fn create_group(context: &Context) -> Outcome {
    let name = context.required("groupid")?.to_owned();
    let mut state = context.world.state();
    if state.access.groups.contains_key(&name) {
        return Err(format!("create group failed: group '{name}' already exists").into());
    }
    state
        .access
        .groups
        .insert(name, context.text("comment").unwrap_or("").to_owned());
    Ok(Value::Null.into())
}

pub(crate) fn delete_group(context: &Context) -> Outcome {
    let name = context.required("groupid")?;
    let mut state = context.world.state();
    if state.access.groups.remove(name).is_none() {
        return Err(format!("group '{name}' does not exist").into());
    }
    for user in state.access.users.values_mut() {
        user.groups.remove(name);
    }
    Ok(Value::Null.into())
}
