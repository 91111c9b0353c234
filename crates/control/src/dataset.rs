//! How does what a Dataset wants go over the control port?

use millrace_api::dataset::mount::Mount;
use millrace_api::dataset::spec::{Addressing, DatasetSpec, Source};

use crate::proto;

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

/// How nodes mount a version.
pub fn mount_settings(mount: &Mount, version: &str) -> proto::MountSettings {
    proto::MountSettings {
        version: version.to_owned(),
        node_cache_quota_bytes: mount.node_cache.quota.bytes(),
        uid: mount.uid,
        gid: mount.gid,
        file_mode: mount.file_mode.bits().into(),
        dir_mode: mount.dir_mode.bits().into(),
        mode: mount.mode.to_wire().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_travel_with_their_credentials_by_name() {
        let spec = serde_json::json!({"sources": [
            {"path": "/a", "s3": {"bucket": "abc", "endpoint": "http://h:9", "prefix": "p/", "credentials": {"secretRef": {"name": "k"}}}},
            {"path": "/b", "s3": {"bucket": "abd", "region": "eu-west-1", "credentials": {"anonymous": {}}}},
            {"path": "/c", "s3": {"bucket": "abe", "region": "eu-west-1", "credentials": {"profile": "text"}}},
        ]});
        let sources = sources(&serde_json::from_value(spec).unwrap());
        assert_eq!((sources[0].credentials.as_str(), sources[0].region.as_str()), ("k", "us-east-1"));
        assert_eq!(sources[0].addressing(), proto::Addressing::Path);
        assert_eq!(sources[2].profile, "text");
        assert!(sources[1].anonymous && sources[1].addressing() == proto::Addressing::VirtualHosted);
    }
}
