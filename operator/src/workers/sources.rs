//! How are workers told of a Dataset's sources, and which change of them needs a new listing? Pure.

use millrace_api::dataset::spec::{Addressing, Cache, DatasetSpec, Medium, Mount, Source};
use millrace_control::proto;
use serde_json::{Value, json};

use crate::build::hash_of;

/// The sources as the workers are told of them.
pub fn sources(spec: &DatasetSpec) -> Vec<proto::Source> {
    spec.sources.iter().map(source).collect()
}

fn source(source: &Source) -> proto::Source {
    let s3 = &source.s3;
    let addressing = match s3.addressing() {
        Addressing::Path => proto::Addressing::Path,
        Addressing::VirtualHosted => proto::Addressing::VirtualHosted,
    };
    proto::Source {
        path: source.path.clone(),
        endpoint: s3.endpoint.clone().unwrap_or_default(),
        bucket: s3.bucket.clone(),
        prefix: s3.prefix.clone(),
        region: s3.region().to_owned(),
        addressing: addressing.into(),
        requester_pays: s3.requester_pays,
        include: source.include.clone(),
        exclude: source.exclude.clone(),
        credentials: s3.credentials.secret_ref.as_ref().map(|secret| secret.name.clone()).unwrap_or_default(),
        anonymous: s3.credentials.anonymous.is_some(),
        profile: s3.credentials.profile.clone().unwrap_or_default(),
    }
}

/// A hash of all that says what is listed: other credentials list the same.
pub fn hash(spec: &DatasetSpec) -> String {
    let source = |source: &Source| {
        let s3 = &source.s3;
        json!([source.path, s3.bucket, s3.prefix, s3.region, s3.endpoint, source.include, source.exclude])
    };
    hash_of(&Value::Array(spec.sources.iter().map(source).collect()))
}

/// How nodes mount a version.
pub fn mount_settings(mount: &Mount, version: &str) -> proto::MountSettings {
    proto::MountSettings {
        version: version.to_owned(),
        node_cache_quota_bytes: mount.node_cache.quota.bytes(),
        uid: mount.uid,
        gid: mount.gid,
        file_mode: mount.file_mode.bits().into(),
        dir_mode: mount.dir_mode.bits().into(),
    }
}

/// Share of the blocks of one worker: its capacity in GiB, at least 1.
pub fn weight(cache: &Cache) -> u32 {
    let bytes = cache.quota_bytes(Medium::Disk).saturating_add(cache.quota_bytes(Medium::Memory));
    u32::try_from(bytes >> 30).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::tests::dataset;

    fn spec(s3: Value) -> DatasetSpec {
        dataset(json!({"sources": [{"path": "/", "s3": s3}]})).spec
    }

    #[test]
    fn other_credentials_list_the_same_and_another_bucket_does_not() {
        let plain = hash(&spec(json!({"bucket": "abc", "region": "r"})));
        let secret = json!({"bucket": "abc", "region": "r", "credentials": {"secretRef": {"name": "k"}}});
        assert_eq!(hash(&spec(secret)), plain);
        assert_ne!(hash(&spec(json!({"bucket": "abd", "region": "r"}))), plain);
    }

    #[test]
    fn a_source_travels_with_the_name_of_its_credentials() {
        let spec = spec(
            json!({"bucket": "abc", "endpoint": "http://h:9", "credentials": {"secretRef": {"name": "k"}}}),
        );
        let source = &sources(&spec)[0];
        assert_eq!((source.credentials.as_str(), source.region.as_str()), ("k", "us-east-1"));
        assert_eq!(source.addressing(), proto::Addressing::Path);
    }
}
