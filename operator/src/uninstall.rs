//! May the operator be removed? Not while there is a Dataset, whose finalizer only the operator takes away, or a volume of one,
//! which pods may have mounted.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, ListParams};
use kube::{Client, Config, ResourceExt as _};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names;

/// Objects that are looked at; one is enough to refuse.
const LOOKED_AT: u32 = 500;

/// Objects that are named in the message.
const NAMED: usize = 10;

/// For each answer of the API server: the hook that asks has two minutes.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why it may not be removed, or nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum CheckUninstall {
    /// Nothing says where the API server is.
    #[error("find the API server: run in a pod, or set KUBECONFIG")]
    Find(#[source] kube::config::InferConfigError),
    /// It cannot be talked to.
    #[error("set up a client of the API server")]
    Client(#[source] kube::Error),
    /// It does not say.
    #[error("list {what}")]
    List {
        /// What.
        what: &'static str,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// Something is left.
    #[error("{0}")]
    Left(String),
}

/// Succeeds when nothing is left.
///
/// # Errors
/// [`CheckUninstall::Left`] says what is left and what to do; the others that it could not be found out.
pub async fn check() -> Result<(), CheckUninstall> {
    let mut config = Config::infer().await.map_err(CheckUninstall::Find)?;
    config.connect_timeout = Some(DEADLINE);
    config.read_timeout = Some(DEADLINE);
    let client = Client::try_from(config).map_err(CheckUninstall::Client)?;
    check_with(client).await
}

/// The same, with a client.
///
/// # Errors
/// As [`check`].
pub async fn check_with(client: Client) -> Result<(), CheckUninstall> {
    let some = ListParams::default().limit(LOOKED_AT);
    let datasets = match Api::<Dataset>::all(client.clone()).list(&some).await {
        Ok(list) => list.items,
        // Without the definition there can be none.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(source) => return Err(list("Datasets", source)),
    };
    let volumes =
        Api::<PersistentVolume>::all(client).list_metadata(&some.labels(names::MANAGED_SELECTOR)).await;
    let volumes = volumes.map_err(|source| list("volumes", source))?;
    let volumes: Vec<String> = volumes.items.iter().map(|volume| volume.name_any()).collect();
    left(&datasets, &volumes).map_or(Ok(()), |left| Err(CheckUninstall::Left(left)))
}

fn list(what: &'static str, source: kube::Error) -> CheckUninstall {
    CheckUninstall::List { what, source: Box::new(source) }
}

/// What is left, in words that say what to do; nothing when nothing is. Pure.
fn left(datasets: &[Dataset], volumes: &[String]) -> Option<String> {
    if let Some(first) = datasets.first() {
        let named: Vec<String> = datasets.iter().map(in_words).collect();
        let (namespace, name) = (first.namespace().unwrap_or_default(), first.name_any());
        return Some(format!(
            "{} are still there: {}; delete them first (kubectl -n {namespace} delete dataset {name}), each goes when the pods that \
             read it have ended; helm uninstall --no-hooks goes on all the same, and leaves them without anybody to serve or remove them",
            count(datasets.len(), "Datasets"),
            some(&named)
        ));
    }
    if volumes.is_empty() {
        return None;
    }
    Some(format!(
        "{} are still being removed: {}; try again in a moment",
        count(volumes.len(), "volumes"),
        some(volumes)
    ))
}

fn in_words(dataset: &Dataset) -> String {
    let name = format!("{}/{}", dataset.namespace().unwrap_or_default(), dataset.name_any());
    let mounts = dataset.status.as_ref().and_then(|status| status.mounts.as_ref());
    match mounts {
        Some(mounts) if mounts.pods > 0 => format!("{name} (mounted in {} pods)", mounts.pods),
        _ => name,
    }
}

fn count(count: usize, what: &str) -> String {
    // The list ends there.
    if count as u64 >= u64::from(LOOKED_AT) {
        format!("{count} {what} or more")
    } else {
        format!("{count} {what}")
    }
}

fn some(names: &[String]) -> String {
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED { format!("{named}, ...") } else { named }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dataset(name: &str, pods: i32) -> Dataset {
        serde_json::from_value(json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": name, "namespace": "vision"},
            "spec": {"sources": [{"path": "/", "s3": {"bucket": "abc", "region": "eu-west-1"}}]},
            "status": {"mounts": {"nodes": 1, "pods": pods}},
        }))
        .unwrap()
    }

    #[test]
    fn a_dataset_is_named_with_who_reads_it_and_what_to_do() {
        let left = left(&[dataset("imagenet", 3), dataset("idle", 0)], &[]).unwrap();
        assert!(
            left.starts_with("2 Datasets are still there: vision/imagenet (mounted in 3 pods), vision/idle;"),
            "{left}"
        );
        assert!(left.contains("kubectl -n vision delete dataset imagenet"), "{left}");
    }

    #[test]
    fn a_volume_that_is_left_refuses_too() {
        assert!(left(&[], &["millrace-6e9f".to_owned()]).unwrap().contains("millrace-6e9f"));
        assert_eq!(left(&[], &[]), None);
    }

    #[test]
    fn a_long_list_is_cut() {
        let volumes: Vec<String> = (0..20).map(|at| format!("v{at}")).collect();
        let left = left(&[], &volumes).unwrap();
        assert!(left.contains("20 volumes") && left.contains("v9, ...") && !left.contains("v10"), "{left}");
    }
}
