//! What is going on, for people and programs?

use indicatif::{BinaryBytes, HumanCount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use millrace_api::dataset::status::DatasetStatus;
use millrace_control::proto;
use serde_json::{Value, json};

use super::dataset_status::{self, Seen};
use super::folder::{self, Folder, Root};
use super::run_file::Run;
use super::version_file::VersionRecord;
use super::{applied, ask, identity, lock, select};
use crate::args::{Output, StatusArgs};
use crate::exit;

/// All that is told of one Dataset.
struct Report {
    folder: Folder,
    run: Option<Run>,
    is_supervised: bool,
    workers: Vec<Option<proto::WorkerStatus>>,
    status: DatasetStatus,
}

/// Prints the status of one Dataset, or of all.
///
/// # Errors
/// Where there is none of that name, or its folder cannot be read.
pub async fn status(root: &Root, args: &StatusArgs) -> anyhow::Result<()> {
    let folders = match &args.name {
        Some(name) => vec![select::one(root, Some(name))?],
        None => root.folders()?,
    };
    let mut reports = Vec::new();
    for folder in folders {
        reports.push(report(folder).await?);
    }
    let text = match (args.output, reports.as_slice()) {
        (Output::Text, []) => {
            "no dataset was ever up here: start one with `millrace local up -f FILE`\n".to_owned()
        }
        (Output::Text, reports) => reports.iter().map(text).collect::<Vec<_>>().join("\n"),
        (Output::Json, [only]) => format!("{:#}\n", value(only)?),
        (Output::Json, reports) => {
            let items = reports.iter().map(value).collect::<anyhow::Result<Vec<_>>>()?;
            format!("{:#}\n", json!({ "apiVersion": "v1", "kind": "List", "items": items }))
        }
    };
    exit::print(&text)
}

async fn report(folder: Folder) -> anyhow::Result<Report> {
    let run = Run::read(&folder)?.filter(|run| run.children().any(|(_, id)| id.is_alive()));
    let is_supervised = lock::holder(&folder.lock_file()).is_some();
    let spec = applied::spec(&folder)?;
    let version = VersionRecord::read(&folder)?;
    let mut workers = Vec::new();
    match &run {
        Some(run) => {
            let key = identity::control_key(&folder)?;
            let mut asked = tokio::task::JoinSet::new();
            for (at, worker) in run.workers.iter().cloned().enumerate() {
                let key = key.clone();
                asked.spawn(async move { (at, ask::status(&worker, &key).await.ok()) });
            }
            workers.resize(run.workers.len(), None);
            for (at, status) in asked.join_all().await {
                if let Some(place) = workers.get_mut(at) {
                    *place = status;
                }
            }
        }
        None => workers.resize(usize::try_from(spec.workers.replicas).unwrap_or(0), None),
    }
    let seen = Seen { spec: &spec, version: version.as_ref(), workers: &workers, is_up: run.is_some() };
    let told: Vec<Condition> = folder::read_if_there(&folder.conditions_file())?
        .and_then(|content| serde_json::from_slice(&content).ok())
        .unwrap_or_default();
    let status = dataset_status::of(&seen, told.clone(), &Time(Timestamp::now()));
    if told != status.conditions {
        folder::write_private(&folder.conditions_file(), &serde_json::to_vec(&status.conditions)?)?;
    }
    Ok(Report { folder, run, is_supervised, workers, status })
}

fn value(report: &Report) -> anyhow::Result<Value> {
    let Report { folder, run, is_supervised, workers, status } = report;
    let worker = |at: usize, status: &Option<proto::WorkerStatus>| {
        let run = run.as_ref().and_then(|run| run.workers.get(at));
        let store = status.as_ref().and_then(|status| status.store.clone()).unwrap_or_default();
        let origin = status.as_ref().and_then(|status| status.origin).unwrap_or_default();
        json!({
            "name": run.map(|run| &run.name),
            "pid": run.and_then(|run| run.process).map(|process| process.pid),
            "addresses": run.and_then(|run| run.addresses.as_ref()),
            "answers": status.is_some(),
            "epoch": status.as_ref().map(|status| status.epoch),
            "connections": status.as_ref().map(|status| status.connections),
            "store": {
                "bytes": store.bytes, "quotaBytes": store.quota_bytes, "files": store.files, "evictions": store.evictions,
                "corruptChunks": store.corrupt_chunks, "hits": store.hits, "misses": store.misses, "joins": store.joins,
            },
            "origin": {
                "requests": origin.requests, "bytes": origin.bytes, "retries": origin.retries,
                "throttles": origin.throttles, "errors": origin.errors,
            },
        })
    };
    let workers: Vec<Value> = workers.iter().enumerate().map(|(at, status)| worker(at, status)).collect();
    Ok(json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {
            "namespace": folder.name.namespace, "name": folder.name.name, "uid": identity::uid(folder),
        },
        "status": serde_json::to_value(status)?,
        "local": {
            "running": run.is_some(),
            "supervisor": run.as_ref().and_then(|run| run.supervisor).filter(|_| *is_supervised).map(|process| process.pid),
            "stateDir": folder.path(),
            "mount": run.as_ref().map(|run| json!({
                "point": run.mount_point, "admin": run.mount_admin,
                "pid": run.mount.map(|process| process.pid),
                "alive": run.mount.is_some_and(|process| process.is_alive()),
            })),
            "nodeStoreBytes": disk_usage(&folder.node_store_dir()),
            "workers": workers,
        },
    }))
}

fn text(report: &Report) -> String {
    let Report { folder, run, is_supervised, workers, status } = report;
    let mut text = format!("dataset: {}\n", folder.name);
    let mut line = |name: &str, value: String| text.push_str(&format!("{name}: {value}\n"));
    match run {
        None => line("running", "no; start it with `millrace local up -f FILE`".to_owned()),
        Some(_) if !is_supervised => line(
            "running",
            "without a supervisor, which has died; `millrace local up` starts anew, `millrace local down` cleans up".to_owned(),
        ),
        Some(run) => line("running", format!("yes, supervised by process {}", run.supervisor.map_or(0, |process| process.pid))),
    }
    if let Some(version) = &status.version {
        line(
            "version",
            format!(
                "{} ({} objects, {}, {} keys left out) of {}",
                version.id,
                HumanCount(version.objects.cast_unsigned()),
                BinaryBytes(version.bytes.cast_unsigned()),
                HumanCount(version.left_out.cast_unsigned()),
                version.since.0
            ),
        );
    }
    if let Some(cached) = &status.cached {
        line(
            "cached",
            format!(
                "{} %, {}, {} objects whole",
                cached.percent,
                BinaryBytes(cached.bytes.cast_unsigned()),
                HumanCount(cached.objects.cast_unsigned())
            ),
        );
    }
    if let Some(run) = run {
        let is_alive = run.mount.is_some_and(|process| process.is_alive());
        line("mount", format!("{}{}", run.mount_point.display(), if is_alive { "" } else { " (down)" }));
        line("node store", BinaryBytes(disk_usage(&folder.node_store_dir())).to_string());
        for (worker, status) in run.workers.iter().zip(workers) {
            line(&format!("worker {}", worker.name), worker_text(status.as_ref()));
        }
    }
    for Condition { type_, status, reason, message, .. } in &status.conditions {
        line(type_, format!("{status} ({reason}{}{message})", if message.is_empty() { "" } else { ": " }));
    }
    for failure in status.warm_up.iter().flat_map(|warm_up| &warm_up.failures) {
        line("warm-up failed", format!("{}: {}", failure.key, failure.reason));
    }
    line("state", folder.path().display().to_string());
    text
}

fn worker_text(status: Option<&proto::WorkerStatus>) -> String {
    let Some(status) = status else { return "does not answer".to_owned() };
    let store = status.store.clone().unwrap_or_default();
    let origin = status.origin.unwrap_or_default();
    format!(
        "{} of {} used; S3: {} requests, {}, {} retries, {} errors; {} connections",
        BinaryBytes(store.bytes),
        BinaryBytes(store.quota_bytes),
        HumanCount(origin.requests),
        BinaryBytes(origin.bytes),
        origin.retries,
        origin.errors,
        status.connections
    )
}

/// Bytes that the files of a folder take on disk. What comes and goes meanwhile is not missed.
fn disk_usage(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0u64;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => dirs.push(entry.path()),
                Ok(metadata) => bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512)),
                Err(_) => {}
            }
        }
    }
    bytes
}
