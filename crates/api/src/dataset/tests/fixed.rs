//! What of a Dataset may change, and what is refused even by removing and adding it again?

use serde_json::{Value, json};

use super::assert_says;
use super::rules::{valid, with};
use crate::dataset::check::check_object;
use crate::dataset::spec::Dataset;

#[test]
fn block_size_and_media_are_fixed_even_by_removing_them() {
    let old = with("/spec/workers/cache/blockSize", json!("16Mi"));
    let field = "spec.workers.cache.blockSize";
    for (pointer, value) in [
        ("/spec/workers/cache/blockSize", json!("8Mi")),
        ("/spec/workers/cache/blockSize", Value::Null),
        ("/spec/workers/cache", Value::Null),
        ("/spec/workers", Value::Null),
    ] {
        assert_says(&check_object(&with(pointer, value), Some(&old)), field, "\"8Mi\"", "not the \"16Mi\"");
    }
    // What was left out at creation is fixed at its default.
    let absent = with("/spec/workers/cache/blockSize", Value::Null);
    assert_says(&check_object(&old, Some(&absent)), field, "\"16Mi\"", "create another Dataset");

    let field = "spec.workers.cache.tiers";
    for (pointer, value) in [
        ("/spec/workers/cache/tiers/0/medium", json!("Disk")),
        ("/spec/workers/cache/tiers", json!([{"medium": "Memory", "quota": "4Gi"}])),
        ("/spec/workers/cache/tiers", Value::Null),
        ("/spec/workers", Value::Null),
    ] {
        assert_says(
            &check_object(&with(pointer, value), Some(&valid())),
            field,
            "not the Memory, Disk",
            "quotas only",
        );
    }
}

#[test]
fn volumes_of_tiers_are_fixed_even_by_removing_them() {
    for (pointer, value) in [
        ("/spec/workers/cache/tiers/1/volume", Value::Null),
        ("/spec/workers/cache/tiers/1/volume", json!({"emptyDir": {}})),
        ("/spec/workers/cache/tiers/1/volume/volumeClaimTemplate/storageClassName", json!("slow")),
        ("/spec/workers/cache/tiers/1/volume/volumeClaimTemplate/storageClassName", Value::Null),
    ] {
        assert_says(
            &check_object(&with(pointer, value), Some(&valid())),
            "spec.workers.cache.tiers",
            "volume of a tier",
            "create another Dataset",
        );
    }
    let without = with("/spec/workers/cache/tiers/0/volume", Value::Null);
    assert_eq!(check_object(&without, Some(&valid())), [], "emptyDir is the default");
}

#[test]
fn quotas_sources_and_the_rest_may_change() {
    for (pointer, value) in [
        ("/spec/workers/cache/tiers/0/quota", json!("1Gi")),
        ("/spec/workers/cache/eviction", json!("LRU")),
        ("/spec/workers/replicas", json!(9)),
        ("/spec/sources/0/s3/bucket", json!("other")),
        ("/spec/mount/uid", json!(7)),
        ("/spec/workers/serviceAccountName", json!("other")),
        ("/spec/workers/template", Value::Null),
    ] {
        let (new, old) = (with(pointer, value), valid());
        assert_eq!(check_object(&new, Some(&old)), []);
        let (new, old): (Dataset, Dataset) =
            (serde_json::from_value(new).unwrap(), serde_json::from_value(old).unwrap());
        assert_eq!(new.check_update(&old), []);
    }
}
