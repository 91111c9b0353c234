//! Who has asked the API server for what?

use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

use super::cluster::{Cluster, SYSTEM};

/// The audit log from a moment on.
#[derive(Debug)]
pub struct Audit {
    file: PathBuf,
    from: u64,
}

/// A request of one of Millrace's service accounts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Name of the service account.
    pub account: String,
    /// `get`, `list`, `watch`, `create`, ...
    pub verb: String,
    /// Group and resource, such as `apps/statefulsets`.
    pub resource: String,
    /// Namespace, if any.
    pub namespace: String,
    /// Name, if any.
    pub name: String,
    /// Whether it asks for objects with a label or a field of some value only.
    pub has_selector: bool,
}

impl Request {
    /// Whether it changes something.
    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb.as_str())
    }
}

impl Audit {
    /// From now on.
    pub fn from_now(cluster: &Cluster) -> Self {
        let file = cluster.paths.logs.join("audit.jsonl");
        let from = file.metadata().map(|metadata| metadata.len()).unwrap_or(0);
        Self { file, from }
    }

    /// From the start of the cluster, or of the newest file of the log.
    pub fn whole(cluster: &Cluster) -> Self {
        Self { from: 0, ..Self::from_now(cluster) }
    }

    /// What Millrace's own accounts have asked for since.
    pub fn requests(&self) -> Vec<Request> {
        let mut file = std::fs::File::open(&self.file).unwrap();
        assert!(file.metadata().unwrap().len() >= self.from, "the audit log was rotated meanwhile");
        file.seek(SeekFrom::Start(self.from)).unwrap();
        let account = format!("system:serviceaccount:{SYSTEM}:");
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        // The last line may be half written.
        let entries = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        entries.filter_map(|entry| request(&entry, &account)).collect()
    }
}

fn request(entry: &Value, account: &str) -> Option<Request> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let account = entry["user"]["username"].as_str()?.strip_prefix(account)?.to_owned();
    let object = &entry["objectRef"];
    let group = text(&object["apiGroup"]);
    let resource = text(&object["resource"]);
    let resource = if group.is_empty() { resource } else { format!("{group}/{resource}") };
    let (verb, namespace, name) = (text(&entry["verb"]), text(&object["namespace"]), text(&object["name"]));
    let asked = entry["requestURI"].as_str().unwrap_or_default();
    let has_selector = asked.contains("labelSelector=") || asked.contains("fieldSelector=");
    Some(Request { account, verb, resource, namespace, name, has_selector })
}
