//! Which change of a Dataset's sources needs a new listing? Pure.

use millrace_api::dataset::spec::{DatasetSpec, Source};
use serde_json::{Value, json};

use crate::build::hash_of;

/// A hash of all that says what is listed: other credentials list the same.
pub fn hash(spec: &DatasetSpec) -> String {
    let source = |source: &Source| {
        let s3 = &source.s3;
        json!([source.path, s3.bucket, s3.prefix, s3.region, s3.endpoint, source.include, source.exclude])
    };
    hash_of(&Value::Array(spec.sources.iter().map(source).collect()))
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
}
