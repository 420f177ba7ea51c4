//! The table of requests against the API schema: an extract, or the whole schema if available.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_providers::pve::requests::{ALL, Method};
use serde_json::Value;

#[derive(Default)]
struct Described {
    required: BTreeSet<String>,
    optional: BTreeSet<String>,
}

type Description = BTreeMap<(String, String), Described>;

fn extract() -> Description {
    let mut description = Description::new();
    for line in include_str!("data/api.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let names = |text: &str| {
            let names = text.split(',').filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        };
        description.insert(
            (fields[0].to_owned(), fields[1].to_owned()),
            Described {
                required: names(fields[2]),
                optional: names(fields[3]),
            },
        );
    }
    description
}

fn whole() -> Option<Description> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = here
        .ancestors()
        .map(|above| above.join("shared/reference/pve-api.json"))
        .find(|path| path.exists())?;
    let json: Value = serde_json::from_slice(&fs_err::read(file).ok()?).ok()?;
    let mut description = Description::new();
    collect(&json, &mut description);
    Some(description)
}

fn collect(nodes: &Value, into: &mut Description) {
    for node in nodes.as_array().into_iter().flatten() {
        let path = node["path"].as_str().unwrap_or_default();
        for (method, info) in node["info"].as_object().into_iter().flatten() {
            let mut described = Described::default();
            for (name, property) in info["parameters"]["properties"]
                .as_object()
                .into_iter()
                .flatten()
            {
                if path.contains(&format!("{{{name}}}")) {
                    continue;
                }
                let optional = property["optional"].as_u64() == Some(1);
                let set = if optional {
                    &mut described.optional
                } else {
                    &mut described.required
                };
                set.insert(name.clone());
            }
            into.insert((method.clone(), path.to_owned()), described);
        }
        collect(&node["children"], into);
    }
}

fn compare(description: &Description) {
    for request in ALL {
        let method = match request.method {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        };
        let key = (method.to_owned(), request.path.to_owned());
        let described = description
            .get(&key)
            .unwrap_or_else(|| panic!("{key:?} is not described"));
        for name in request.required.iter().chain(request.optional) {
            let bare = name.trim_end_matches(|last: char| last.is_ascii_digit());
            let known = [(*name).to_owned(), format!("{bare}[n]")]
                .iter()
                .any(|name| described.required.contains(name) || described.optional.contains(name));
            assert!(known, "{key:?} has no parameter `{name}`");
        }
        for name in &described.required {
            assert!(
                request.required.contains(&name.as_str()),
                "{key:?} needs `{name}`"
            );
        }
    }
}

#[test]
fn every_request_is_in_the_schema_extract() {
    compare(&extract());
}

#[test]
fn every_request_is_in_the_whole_schema() {
    match whole() {
        Some(description) => compare(&description),
        None => eprintln!("SKIPPED: the whole description is not there"),
    }
}
