//! Chooses an id for a guest without one. Only the create call decides whether the id is free.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use homestak_engine::ports::GuestUuid;
use serde_json::Value;

use super::property::Property;
use super::quirks;

/// The ids the API accepts.
const ALLOWED: RangeInclusive<u32> = 100..=999_999_999;

/// Reads the cluster's own range from its options: `next-id: lower=..,upper=..`, as text or as an
/// object.
pub fn cluster_range(options: &Value) -> Option<RangeInclusive<u32>> {
    let value = options.get("next-id")?;
    let bound = |name: &str| match value {
        Value::String(text) => Property::parse(text)
            .field(name)
            .and_then(|text| text.parse().ok()),
        _ => value.get(name).and_then(quirks::parse_u32),
    };
    let lower = bound("lower").unwrap_or(100);
    // The API's own default; its range ends before `upper`.
    let upper = bound("upper").unwrap_or(1_000_000).saturating_sub(1);
    (lower <= upper).then_some(lower..=upper)
}

/// Narrows our range to the cluster's; where they have nothing in common, the cluster's counts,
/// unless it allows no id at all.
pub fn usable(
    ours: &RangeInclusive<u32>,
    cluster: Option<RangeInclusive<u32>>,
) -> RangeInclusive<u32> {
    let within = |range: &RangeInclusive<u32>| {
        *range.start().max(ALLOWED.start())..=*range.end().min(ALLOWED.end())
    };
    let ours = within(ours);
    let cluster = cluster.map(|range| within(&range));
    let Some(cluster) = cluster.filter(|range| !range.is_empty()) else {
        return ours;
    };
    let both = *ours.start().max(cluster.start())..=*ours.end().min(cluster.end());
    if both.is_empty() { cluster } else { both }
}

/// Chooses an id, starting at one derived from the UUID, so that a repeated call tries the same id
/// and finds a guest that the first may have created, instead of creating a second.
pub fn choose(uuid: &GuestUuid, range: &RangeInclusive<u32>, taken: &BTreeSet<u32>) -> Option<u32> {
    let (start, end) = (u64::from(*range.start()), u64::from(*range.end()));
    if start > end {
        return None;
    }
    let count = end - start + 1;
    // FNV-1a: spreads well, and is stable across versions.
    let hash = uuid
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    (0..count)
        .filter_map(|nth| u32::try_from(start + (hash % count + nth) % count).ok())
        .find(|vmid| !taken.contains(vmid))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_clusters_range_is_honoured() {
        assert_eq!(
            cluster_range(&json!({"next-id": "lower=500,upper=600"})),
            Some(500..=599)
        );
        assert_eq!(
            cluster_range(&json!({"next-id": {"lower": "500"}})),
            Some(500..=999_999)
        );
        assert_eq!(cluster_range(&json!({})), None);
        assert_eq!(usable(&(550..=700), Some(500..=599)), 550..=599);
        assert_eq!(usable(&(1000..=2000), Some(500..=599)), 500..=599);
        assert_eq!(usable(&(1..=200), None), 100..=200);
    }

    proptest! {
        #[test]
        fn a_choice_is_free_repeatable_and_in_range(seed in any::<u128>(), taken in proptest::collection::btree_set(100_u32..130, 0..31)) {
            let uuid = GuestUuid::new(&uuid::Uuid::from_u128(seed).to_string()).expect("a UUID");
            let choice = choose(&uuid, &(100..=129), &taken);
            prop_assert_eq!(choice.is_none(), taken.len() == 30);
            if let Some(vmid) = choice {
                prop_assert!((100..=129).contains(&vmid) && !taken.contains(&vmid));
                prop_assert_eq!(choose(&uuid, &(100..=129), &taken), Some(vmid));
            }
        }
    }
}
