//! Does each rule of the Dataset refuse the object that breaks it, with the field, the value and the cure?

use kube::core::cel::Validator;
use serde_json::{Value, json};

use super::assert_says;
use crate::dataset::check::{Problem, check_object};
use crate::dataset::crd::dataset_schema;
use crate::dataset::spec::Dataset;

/// A valid Dataset with every field.
pub(super) fn valid() -> Value {
    json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": "imagenet", "namespace": "vision"},
        "spec": {
            "sources": [
                {
                    "path": "/train",
                    "s3": {
                        "bucket": "imagenet", "prefix": "train/", "region": "eu-west-1",
                        "endpoint": "https://minio.storage:9000", "addressing": "Path", "requesterPays": true,
                        "credentials": {"secretRef": {"name": "imagenet-s3"}},
                    },
                    "include": ["**/*.jpg"], "exclude": ["tmp/**"],
                },
                {"path": "/val", "s3": {"bucket": "imagenet", "prefix": "val/", "region": "eu-west-1"}},
            ],
            "workers": {"replicas": 3, "cache": {
                "blockSize": "8Mi", "eviction": "Never",
                "tiers": [
                    {"medium": "Memory", "quota": "4Gi", "volume": {"emptyDir": {}}},
                    {"medium": "Disk", "quota": "200Gi",
                     "volume": {"volumeClaimTemplate": {"storageClassName": "fast", "size": "220Gi"}}},
                ],
            }, "serviceAccountName": "reader", "template": {
                "resources": {"requests": {"cpu": 2, "memory": "1.5Gi"}, "limits": {"memory": "8Gi"}},
                "nodeSelector": {"disk": "nvme"},
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
                "affinity": {"nodeAffinity": {}}, "priorityClassName": "high",
                "imagePullSecrets": [{"name": "pull"}], "labels": {"team": "vision"}, "annotations": {"a/b": "c"},
            }},
            "warmUp": {"when": "Created", "paths": ["/train", "/val/a"]},
            "mount": {"nodeCache": {"quota": "50Gi"}, "uid": 1, "gid": 2, "fileMode": "0444", "dirMode": "0555"},
        },
    })
}

/// The valid Dataset with the value at `pointer` in place of its own; null removes it.
pub(super) fn with(pointer: &str, value: Value) -> Value {
    let mut object = valid();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Object(map) if value.is_null() => drop(map.remove(field)),
        Value::Object(map) => drop(map.insert(field.to_owned(), value)),
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
        other => panic!("{other} has no fields"),
    }
    object
}

/// What a CEL rule says of an object, as the API server would.
fn refused_by_cel(object: &Value) -> Vec<Problem> {
    let errors = Validator::new().validate(dataset_schema(), object, None).err().into_iter().flatten();
    let field = |path: &str| {
        if path.is_empty() {
            "metadata.name".to_owned()
        } else {
            path.replacen('.', "", usize::from(path.starts_with('.')))
        }
    };
    errors.map(|error| Problem::new(&field(&error.field_path), &Value::Null, error.message)).collect()
}

#[test]
fn a_valid_dataset_has_no_problem() {
    assert_eq!(check_object(&valid(), None), []);
    let dataset: Dataset = serde_json::from_value(valid()).unwrap();
    assert_eq!(dataset.check(), []);
    assert!(dataset.validate_cel().is_ok() && dataset.validate_cel_update(&dataset).is_ok());
}

#[test]
fn every_rule_of_the_crd_refuses_what_breaks_it() {
    let cases = [
        ("/metadata/name", json!("x".repeat(64)), "metadata.name", "63 characters", "a shorter one"),
        ("/spec/sources/0/path", json!("train"), "spec.sources[0].path", "\"train\"", "write \"/train\""),
        (
            "/spec/sources/0/path",
            json!("/train/"),
            "spec.sources[0].path",
            "\"/train/\"",
            "leave the last \"/\" away",
        ),
        ("/spec/sources/0/path", json!("//train"), "spec.sources[0].path", "\"//train\"", "without it"),
        ("/spec/sources/0/path", json!("/a/../b"), "spec.sources[0].path", "\"/a/../b\"", "without it"),
        ("/spec/sources/0/path", json!("/a/."), "spec.sources[0].path", "\"/a/.\"", "without it"),
        ("/spec/sources/0/path", json!("/a\tb"), "spec.sources[0].path", "control character", "without it"),
        (
            "/spec/sources/1/path",
            json!("/train"),
            "spec.sources",
            "\"/train\" and \"/train\"",
            "a folder of its own",
        ),
        (
            "/spec/sources/1/path",
            json!("/train/x"),
            "spec.sources",
            "\"/train\" and \"/train/x\"",
            "a folder of its own",
        ),
        ("/spec/sources/1/path", json!("/"), "spec.sources", "\"/train\" and \"/\"", "a folder of its own"),
        ("/spec/sources/0/include", json!(["a", "/b"]), "spec.sources[0].include", "\"/b\"", "leave it away"),
        ("/spec/sources/0/exclude", json!(["/b"]), "spec.sources[0].exclude", "\"/b\"", "leave it away"),
        (
            "/spec/sources/0/s3/bucket",
            json!("s3://x"),
            "spec.sources[0].s3.bucket",
            "\"s3://x\"",
            "3 to 63 of a-z",
        ),
        (
            "/spec/sources/0/s3/bucket",
            json!("Upper"),
            "spec.sources[0].s3.bucket",
            "\"Upper\"",
            "3 to 63 of a-z",
        ),
        (
            "/spec/sources/0/s3/bucket",
            json!("a..b"),
            "spec.sources[0].s3.bucket",
            "\"a..b\"",
            "3 to 63 of a-z",
        ),
        (
            "/spec/sources/0/s3/bucket",
            json!("10.0.0.1"),
            "spec.sources[0].s3.bucket",
            "\"10.0.0.1\"",
            "3 to 63",
        ),
        (
            "/spec/sources/0/s3/prefix",
            json!("train"),
            "spec.sources[0].s3.prefix",
            "\"train\"",
            "write \"train/\"",
        ),
        (
            "/spec/sources/0/s3/prefix",
            json!("/train/"),
            "spec.sources[0].s3.prefix",
            "\"/train/\"",
            "leave the first",
        ),
        (
            "/spec/sources/0/s3/region",
            json!("EU West"),
            "spec.sources[0].s3.region",
            "\"EU West\"",
            "eu-west-1",
        ),
        ("/spec/sources/1/s3/region", Value::Null, "spec.sources[1].s3", "\"imagenet\"", "give region"),
        (
            "/spec/sources/0/s3/endpoint",
            json!("minio:9000"),
            "spec.sources[0].s3.endpoint",
            "\"minio:9000\"",
            "http://",
        ),
        (
            "/spec/sources/0/s3/endpoint",
            json!("http://h/b"),
            "spec.sources[0].s3.endpoint",
            "\"http://h/b\"",
            "without path",
        ),
        (
            "/spec/sources/0/s3/endpoint",
            json!("http://u@h"),
            "spec.sources[0].s3.endpoint",
            "\"http://u@h\"",
            "or user",
        ),
        (
            "/spec/sources/0/s3/endpoint",
            json!("ftp://h"),
            "spec.sources[0].s3.endpoint",
            "\"ftp://h\"",
            "http://",
        ),
        (
            "/spec/sources/0/s3/credentials",
            json!({"secretRef": {"name": "a"}, "anonymous": {}}),
            "spec.sources[0].s3.credentials",
            "secretRef and anonymous",
            "keep one",
        ),
        (
            "/spec/sources/0/s3/credentials",
            json!({"profile": "p", "anonymous": {}}),
            "spec.sources[0].s3.credentials",
            "profile and anonymous",
            "keep one",
        ),
        (
            "/spec/sources/0/s3/credentials/secretRef/name",
            json!("My_Secret"),
            "spec.sources[0].s3.credentials.secretRef.name",
            "\"My_Secret\"",
            "lower-case",
        ),
        (
            "/spec/warmUp/paths",
            json!(["/train", "val"]),
            "spec.warmUp.paths",
            "\"val\"",
            "start it with \"/\"",
        ),
        (
            "/spec/warmUp/paths",
            json!(["/train/"]),
            "spec.warmUp.paths",
            "\"/train/\"",
            "without \"/\" at the end",
        ),
        (
            "/spec/warmUp/paths",
            json!(["/train/../x"]),
            "spec.warmUp.paths",
            "\"/train/../x\"",
            "\"..\" segments",
        ),
        (
            "/spec/workers/serviceAccountName",
            json!("Reader"),
            "spec.workers.serviceAccountName",
            "\"Reader\"",
            "lower-case",
        ),
        (
            "/spec/workers/cache/tiers/1/volume",
            json!({"emptyDir": {}, "volumeClaimTemplate": {}}),
            "spec.workers.cache.tiers[1].volume",
            "either emptyDir",
            "give one",
        ),
        (
            "/spec/workers/cache/tiers/1/volume",
            json!({}),
            "spec.workers.cache.tiers[1].volume",
            "either emptyDir",
            "give one",
        ),
        (
            "/spec/workers/cache/tiers/0/volume",
            json!({"volumeClaimTemplate": {}}),
            "spec.workers.cache.tiers[0]",
            "Memory has no volumeClaimTemplate",
            "leave volume away",
        ),
        ("/spec/mount/fileMode", json!("0888"), "spec.mount.fileMode", "\"0888\"", "\"0444\""),
        ("/spec/mount/dirMode", json!("r-x"), "spec.mount.dirMode", "\"r-x\"", "digits from 0 to 7"),
    ];
    for (pointer, value, field, says, cure) in cases {
        let object = with(pointer, value);
        assert_says(&refused_by_cel(&object), field, says, cure);
        assert_says(&check_object(&object, None), field, says, cure);
    }
}

#[test]
fn the_schema_refuses_what_is_out_of_bounds() {
    let many = |n: usize| {
        json!(
            (0..n)
                .map(|i| json!({"path": format!("/{i}"), "s3": {"bucket": "abc", "region": "r"}}))
                .collect::<Vec<_>>()
        )
    };
    let cases = [
        ("/spec/sources", json!([]), "spec.sources", "0 entries", "1 to 16"),
        ("/spec/sources", many(17), "spec.sources", "17 entries", "1 to 16"),
        ("/spec/sources", Value::Null, "spec", "\"sources\" is missing", "add it"),
        (
            "/spec/sources/0/path",
            json!(format!("/{}", "x".repeat(512))),
            "spec.sources[0].path",
            "513",
            "1 to 512",
        ),
        ("/spec/sources/0/s3/bucket", Value::Null, "spec.sources[0].s3", "\"bucket\" is missing", "add it"),
        ("/spec/sources/0/s3/bucket", json!("ab"), "spec.sources[0].s3.bucket", "2 characters", "3 to 63"),
        (
            "/spec/sources/0/s3/prefix",
            json!("x".repeat(1025)),
            "spec.sources[0].s3.prefix",
            "1025",
            "at most 1024",
        ),
        (
            "/spec/sources/0/s3/addressing",
            json!("path"),
            "spec.sources[0].s3.addressing",
            "\"path\"",
            "Path, VirtualHosted",
        ),
        (
            "/spec/sources/0/s3/requesterPays",
            json!("yes"),
            "spec.sources[0].s3.requesterPays",
            "\"yes\"",
            "true nor false",
        ),
        (
            "/spec/sources/0/include",
            json!(vec!["a"; 33]),
            "spec.sources[0].include",
            "33 entries",
            "at most 32",
        ),
        (
            "/spec/sources/0/include",
            json!(["a".repeat(257)]),
            "spec.sources[0].include[0]",
            "257",
            "1 to 256",
        ),
        ("/spec/workers/replicas", json!(257), "spec.workers.replicas", "257", "0 to 256"),
        ("/spec/workers/replicas", json!(-1), "spec.workers.replicas", "-1", "0 to 256"),
        ("/spec/workers/replicas", json!("3"), "spec.workers.replicas", "\"3\"", "without quotes"),
        (
            "/spec/workers/cache/blockSize",
            json!("3Mi"),
            "spec.workers.cache.blockSize",
            "\"3Mi\"",
            "1Mi, 2Mi, 4Mi",
        ),
        (
            "/spec/workers/cache/blockSize",
            json!("128Mi"),
            "spec.workers.cache.blockSize",
            "\"128Mi\"",
            "64Mi",
        ),
        (
            "/spec/workers/cache/eviction",
            json!("Lru"),
            "spec.workers.cache.eviction",
            "\"Lru\"",
            "Never, LRU",
        ),
        ("/spec/workers/cache/tiers", json!([]), "spec.workers.cache.tiers", "0 entries", "1 to 4"),
        (
            "/spec/workers/cache/tiers/0/medium",
            json!("SSD"),
            "spec.workers.cache.tiers[0].medium",
            "\"SSD\"",
            "Disk, Memory",
        ),
        (
            "/spec/workers/cache/tiers/0/quota",
            json!("4GB"),
            "spec.workers.cache.tiers[0].quota",
            "\"4GB\"",
            "50Gi",
        ),
        ("/spec/workers/cache/tiers/0/quota", json!(-1), "spec.workers.cache.tiers[0].quota", "-1", "50Gi"),
        ("/spec/warmUp/when", json!("Always"), "spec.warmUp.when", "\"Always\"", "Created, Never"),
        ("/spec/warmUp/paths", json!([]), "spec.warmUp.paths", "0 entries", "1 to 64"),
        ("/spec/mount/uid", json!(-1), "spec.mount.uid", "-1", "0 to 4294967294"),
        ("/spec/mount/gid", json!(4_294_967_295u32), "spec.mount.gid", "4294967295", "0 to 4294967294"),
        ("/spec/mount/fileMode", json!(444), "spec.mount.fileMode", "444", "in quotes"),
        ("/spec/mount/nodeCache/quota", json!("a lot"), "spec.mount.nodeCache.quota", "\"a lot\"", "50Gi"),
    ];
    for (pointer, value, field, says, cure) in cases {
        assert_says(&check_object(&with(pointer, value), None), field, says, cure);
    }
}

#[test]
fn what_cel_cannot_say_is_checked_too() {
    let long = format!("/{}", "ä".repeat(128));
    let cases = [
        ("/metadata/name", json!("Image_Net"), "metadata.name", "\"Image_Net\"", "use a-z"),
        ("/metadata/namespace", json!("../x"), "metadata.namespace", "\"../x\"", "use up to 63"),
        ("/spec/sources/0/path", json!(long), "spec.sources[0].path", "256 bytes", "at most 255"),
        (
            "/spec/sources/0/include",
            json!(["a", "[b"]),
            "spec.sources[0].include[1]",
            "\"[b\"",
            "is none (unclosed",
        ),
        (
            "/spec/sources/0/exclude",
            json!(["{b"]),
            "spec.sources[0].exclude[0]",
            "\"{b\"",
            "put \"\\\" before",
        ),
        (
            "/spec/workers/cache/tiers/0/quota",
            json!("8388607"),
            "spec.workers.cache.tiers[0].quota",
            "8388607",
            "give more",
        ),
        (
            "/spec/mount/nodeCache/quota",
            json!("1Mi"),
            "spec.mount.nodeCache.quota",
            "1Mi",
            "or 0 to keep nothing",
        ),
        (
            "/spec/warmUp/paths",
            json!(["/train", "/trian"]),
            "spec.warmUp.paths[1]",
            "\"/trian\"",
            "/train, /val",
        ),
    ];
    for (pointer, value, field, says, cure) in cases {
        let dataset: Dataset = serde_json::from_value(with(pointer, value)).unwrap();
        assert_says(&dataset.check(), field, says, cure);
    }
}

#[test]
fn the_edges_of_rules_are_allowed() {
    for (pointer, value) in [
        ("/metadata/name", json!("x".repeat(63))),
        ("/spec/sources/1/path", json!("/training")),
        ("/spec/sources/1/path", json!("/a.b/..c/d..")),
        ("/spec/sources/0/s3/prefix", json!("")),
        ("/spec/sources/0/s3/bucket", json!("a.b-c.9")),
        ("/spec/sources/0/s3/endpoint", json!("http://[::1]:9000")),
        ("/spec/sources/0/s3/endpoint", json!("http://127.0.0.1:1")),
        ("/spec/sources/0/s3/region", Value::Null),
        ("/spec/sources/0/s3/credentials", json!({})),
        ("/spec/sources/0/s3/credentials", json!({"anonymous": {}})),
        ("/spec/workers/replicas", json!(0)),
        ("/spec/workers/cache/tiers/0/quota", json!("8Mi")),
        ("/spec/workers/cache/tiers/0/quota", json!(8_388_608)),
        ("/spec/mount/nodeCache/quota", json!(0)),
        ("/spec/mount/uid", json!(4_294_967_294u32)),
        ("/spec/mount/fileMode", json!("440")),
    ] {
        let mut object = with(pointer, value);
        object["spec"]["warmUp"] = json!({"paths": ["/"]});
        assert_eq!(check_object(&object, None), [], "{object}");
        let dataset: Dataset = serde_json::from_value(object).unwrap();
        assert_eq!(dataset.check().iter().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
    }
    let mut alone = with("/spec/sources/0/path", json!("/"));
    alone.pointer_mut("/spec/sources").unwrap().as_array_mut().unwrap().truncate(1);
    assert_eq!(check_object(&alone, None), []);
}

#[test]
fn typed_datasets_are_refused_by_the_derived_checks_too() {
    let new: Dataset = serde_json::from_value(with("/spec/workers/cache/blockSize", json!("16Mi"))).unwrap();
    let old: Dataset = serde_json::from_value(valid()).unwrap();
    assert!(new.validate_cel().is_ok());
    assert!(
        new.validate_cel_update(&old)
            .unwrap_err()
            .to_string()
            .contains("blockSize \"16Mi\" is not the \"8Mi\"")
    );
    assert_says(&new.check_update(&old), "spec.workers.cache.blockSize", "16Mi", "8Mi");
}
