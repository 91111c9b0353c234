//! Which version of the dataset is in use?

use anyhow::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_api::dataset::spec::DatasetSpec;
use millrace_control::proto;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::{self, Folder};

/// The version in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionRecord {
    /// Its id.
    pub id: String,
    /// Files.
    pub objects: u64,
    /// Folders.
    pub directories: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Keys that are not shown.
    pub left_out: u64,
    /// When it was listed.
    pub since: Time,
    /// Why the buckets could not be listed since.
    pub listing_error: Option<String>,
    /// What was listed, to tell whether this is a version of the same.
    listed: Value,
}

impl VersionRecord {
    /// A version that was listed just now.
    pub fn new(made: &proto::IndexMade, spec: &DatasetSpec, now: Time) -> Self {
        Self {
            id: made.version.clone(),
            objects: made.objects,
            directories: made.directories,
            bytes: made.bytes,
            left_out: made.left_out,
            since: now,
            listing_error: None,
            listed: listed(spec),
        }
    }

    /// Whether it is a version of what the spec asks for.
    pub fn is_of(&self, spec: &DatasetSpec) -> bool {
        self.listed == listed(spec)
    }

    /// Reads it; `None` where there is none yet.
    ///
    /// # Errors
    /// Names the file.
    pub fn read(folder: &Folder) -> anyhow::Result<Option<Self>> {
        let path = folder.version_file();
        let Some(content) = folder::read_if_there(&path)? else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&content).with_context(|| format!("read {path:?}"))?))
    }

    /// Keeps it.
    ///
    /// # Errors
    /// Names the file.
    pub fn write(&self, folder: &Folder) -> anyhow::Result<()> {
        folder::write_private(&folder.version_file(), &serde_json::to_vec_pretty(self)?)
    }
}

/// What decides about the content of an index. Credentials do not.
fn listed(spec: &DatasetSpec) -> Value {
    let mut sources = serde_json::to_value(&spec.sources).unwrap_or_default();
    for source in sources.as_array_mut().into_iter().flatten() {
        if let Some(s3) = source.get_mut("s3").and_then(Value::as_object_mut) {
            s3.remove("credentials");
        }
    }
    serde_json::json!({ "sources": sources, "blockSize": spec.workers.cache.block_size().bytes() })
}
