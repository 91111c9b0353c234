//! How are paths of a Dataset loaded ahead on request? By an annotation that the operator carries out.

use std::time::Duration;

use anyhow::bail;
use kube::Api;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use millrace_api::dataset::conditions::WARM;
use millrace_api::dataset::spec::Dataset;
use millrace_api::dataset::status::WarmUpStatus;
use millrace_api::names::WARM_ANNOTATION;
use millrace_control::proto;
use millrace_control::warm_up::{Phase, WarmUp};
use serde_json::{Value, json};

use super::args::WarmArgs;
use super::connect::{self, Cluster};
use super::status_text;
use crate::exit::Told;
use crate::local::progress::{Progress, warm_up_text};

/// How often the Dataset is read: its status changes at most every few seconds.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Reads without a sign of the operator after which the user is told where to look.
const SILENT_READS: u32 = 30;

/// Failures to read in a row that are no reason to give up: an API server may be away for a minute.
const FAILED_READS: u32 = 60;

/// Most paths of a request; guess: more are better said by the folder that holds them. The operator takes a thousand.
const MAX_PATHS: usize = 64;

/// Loads paths and waits until they are; Ctrl-C stops the waiting, not the loading.
///
/// # Errors
/// Where the API server refuses, objects failed, or another request took this one's place.
pub async fn warm(args: &WarmArgs) -> anyhow::Result<()> {
    let paths = args.paths.iter().map(|path| path_of(path)).collect::<anyhow::Result<Vec<_>>>()?;
    if paths.len() > MAX_PATHS {
        bail!(
            "{} paths are more than the {MAX_PATHS} of one request: warm a folder that holds them",
            paths.len()
        );
    }
    let Cluster { client, namespace } = connect::connect(&args.cluster).await?;
    let api: Api<Dataset> = Api::namespaced(client, &namespace);
    let name = args.dataset.strip_prefix("dataset/").unwrap_or(&args.dataset);
    let id = uuid::Uuid::new_v4().to_string();
    let params = PatchParams { field_manager: Some("kubectl-millrace".to_owned()), ..PatchParams::default() };
    let told = |error| connect::told(error, &format!("patch dataset {name:?} of namespace {namespace:?}"));
    api.patch(name, &params, &Patch::Merge(annotation(&id, &paths))).await.map_err(told)?;
    if args.no_wait {
        eprintln!("asked for; `millrace status {name} -n {namespace}` tells how far it is");
        return Ok(());
    }
    let end = follow(&api, name, &id).await?;
    for failure in &end.failures {
        eprintln!("failed: {}: {}", failure.path, failure.message);
    }
    if is_loaded(&end) { Ok(()) } else { Err(Told.into()) }
}

/// Whether all that was asked for is loaded. A path that the dataset does not have is a failure of no object.
fn is_loaded(end: &WarmUp) -> bool {
    end.phase == Phase::Done && end.failed == 0 && end.failures.is_empty()
}

async fn follow(api: &Api<Dataset>, name: &str, id: &str) -> anyhow::Result<WarmUp> {
    let mut progress = Progress::new("warm-up");
    let (mut silent, mut failed) = (0, 0);
    loop {
        match api.get(name).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                bail!("dataset {name:?} was deleted meanwhile")
            }
            Err(error) => {
                failed += 1;
                if failed > FAILED_READS {
                    return Err(connect::told(error, &format!("get dataset {name:?}")));
                }
            }
            Ok(dataset) => {
                failed = 0;
                match state(&dataset, id) {
                    State::Replaced => bail!(
                        "another `millrace warm` took the place of this one: what it loaded so far stays; ask for this again when it is through"
                    ),
                    State::NotTaken => {
                        silent += 1;
                        if silent == SILENT_READS {
                            eprintln!("{}", not_taken(&dataset));
                        }
                    }
                    State::At(now) if now.phase == Phase::Running => progress.warm_up(&now),
                    State::At(end) => {
                        let word = if end.phase == Phase::Done { "done" } else { "ended" };
                        progress.finish(&format!("warm-up {word}: {}", warm_up_text(&end, 0)));
                        return Ok(end);
                    }
                }
            }
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

/// What a Dataset says about a request.
#[derive(Debug, PartialEq)]
enum State {
    /// Nothing yet.
    NotTaken,
    /// Another one came after it.
    Replaced,
    /// How far it is.
    At(WarmUp),
}

fn state(dataset: &Dataset, id: &str) -> State {
    let status = dataset.status.as_ref();
    let Some(warm_up) = status.and_then(|status| status.warm_up.as_ref()) else {
        return if is_asked(dataset, id) { State::NotTaken } else { State::Replaced };
    };
    let WarmUpStatus { id: running, completed_id, bytes_done, bytes_total, objects_failed, failures } =
        warm_up;
    let is_complete = completed_id.as_deref() == Some(id);
    if !is_complete && running.as_deref() != Some(id) {
        return if is_asked(dataset, id) { State::NotTaken } else { State::Replaced };
    }
    let failures = failures.iter().map(|failure| proto::ObjectFailure {
        path: failure.key.clone(),
        message: failure.reason.clone(),
        ..Default::default()
    });
    State::At(WarmUp {
        phase: if is_complete { Phase::Done } else { Phase::Running },
        bytes_done: bytes_done.cast_unsigned(),
        bytes_total: bytes_total.cast_unsigned(),
        failed: objects_failed.cast_unsigned(),
        failures: failures.collect(),
    })
}

/// Whether the annotation is still this request's.
fn is_asked(dataset: &Dataset, id: &str) -> bool {
    let annotation = dataset.annotations().get(WARM_ANNOTATION);
    let value = annotation.and_then(|annotation| serde_json::from_str::<Value>(annotation).ok());
    value.is_some_and(|value| value.get("id").and_then(Value::as_str) == Some(id))
}

fn not_taken(dataset: &Dataset) -> String {
    let status = dataset.status.clone().unwrap_or_default();
    let why = status_text::behind(dataset, &status).or_else(|| {
        let warm = status_text::condition(&status, WARM)?;
        Some(format!("Warm is {} ({}: {})", warm.status, warm.reason, warm.message))
    });
    format!(
        "still waiting for the operator to begin: {}",
        why.unwrap_or_else(|| "see `millrace why` of the dataset".to_owned())
    )
}

fn annotation(id: &str, paths: &[String]) -> Value {
    let request = json!({ "id": id, "paths": paths }).to_string();
    json!({ "metadata": { "annotations": { WARM_ANNOTATION: request } } })
}

/// A path as the dataset has it.
fn path_of(path: &str) -> anyhow::Result<String> {
    let inside = path.trim_matches('/');
    if path.is_empty()
        || (!inside.is_empty() && inside.split('/').any(|part| matches!(part, "" | "." | "..")))
    {
        bail!("{path:?} is no path in the dataset: write for example /train/n01440764, or / for all");
    }
    Ok(format!("/{inside}"))
}

#[cfg(test)]
mod tests {
    use super::super::status_text::tests::dataset;
    use super::*;

    fn asked(mut dataset: Dataset, id: &str) -> Dataset {
        let request = annotation(id, &["/".to_owned()]);
        let annotations = serde_json::from_value(request["metadata"]["annotations"].clone()).unwrap();
        dataset.metadata.annotations = Some(annotations);
        dataset
    }

    fn warm_up(id: Option<&str>, completed: Option<&str>) -> Dataset {
        dataset(json!({"warmUp": {
            "id": id, "completedId": completed, "bytesDone": 5, "bytesTotal": 10, "objectsFailed": 1,
            "failures": [{"key": "a", "reason": "gone"}],
        }}))
    }

    #[test]
    fn paths_are_those_of_the_dataset() {
        for (given, path) in [("/train/", "/train"), ("train/a", "/train/a"), ("/", "/")] {
            assert_eq!(path_of(given).unwrap(), path);
        }
        for wrong in ["", "/a//b", "../a", "/a/./b"] {
            assert!(path_of(wrong).unwrap_err().to_string().contains("/train/n01440764"), "{wrong}");
        }
    }

    #[test]
    fn a_request_is_not_taken_then_runs_then_is_through() {
        assert_eq!(state(&asked(dataset(json!({})), "x"), "x"), State::NotTaken);
        assert_eq!(state(&asked(warm_up(Some("older"), None), "x"), "x"), State::NotTaken);
        let State::At(now) = state(&warm_up(Some("x"), None), "x") else { panic!() };
        assert_eq!((now.phase, now.bytes_done, now.bytes_total, now.failed), (Phase::Running, 5, 10, 1));
        let State::At(end) = state(&warm_up(None, Some("x")), "x") else { panic!() };
        assert_eq!((end.phase, end.failures[0].message.as_str()), (Phase::Done, "gone"));
    }

    #[test]
    fn a_path_that_the_dataset_does_not_have_is_not_loaded() {
        let end = |failures: Value| {
            let status = json!({"warmUp": {
                "completedId": "x", "bytesDone": 0, "bytesTotal": 0, "objectsFailed": 0, "failures": failures,
            }});
            let State::At(end) = state(&dataset(status), "x") else { panic!() };
            end
        };
        assert!(is_loaded(&end(json!([]))));
        assert!(!is_loaded(&end(
            json!([{"key": "/trian", "reason": "NoSuchPath: the dataset has no such file or folder"}])
        )));
    }

    #[test]
    fn a_request_that_another_took_the_place_of_is_told() {
        assert_eq!(state(&asked(warm_up(Some("y"), None), "y"), "x"), State::Replaced);
        assert_eq!(state(&asked(dataset(json!({})), "y"), "x"), State::Replaced);
    }
}
