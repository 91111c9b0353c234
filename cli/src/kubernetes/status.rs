//! What is going on with the Datasets of a cluster?

use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use millrace_api::dataset::spec::Dataset;
use serde_json::{Value, json};

use super::args::StatusArgs;
use super::connect::{self, Cluster};
use super::status_text;
use crate::args::Output;
use crate::exit;

/// Prints one Dataset, or a list of them.
///
/// # Errors
/// Where there is none of that name, or the API server refuses.
pub async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let Cluster { client, namespace } = connect::connect(&args.cluster).await?;
    let api: Api<Dataset> =
        if args.all_namespaces { Api::all(client) } else { Api::namespaced(client, &namespace) };
    let text = match &args.name {
        Some(name) => {
            let name = name.strip_prefix("dataset/").unwrap_or(name);
            let told =
                |error| connect::told(error, &format!("get dataset {name:?} of namespace {namespace:?}"));
            let dataset = api.get(name).await.map_err(told)?;
            match args.output {
                Output::Text => status_text::one(&dataset, Timestamp::now()),
                Output::Json => format!("{:#}\n", value(&dataset)?),
            }
        }
        None => {
            let list = api.list(&ListParams::default()).await;
            let datasets = list.map_err(|error| connect::told(error, "list datasets"))?.items;
            match args.output {
                Output::Text => status_text::list(&datasets, args.all_namespaces, Timestamp::now()),
                Output::Json => {
                    let items = datasets.iter().map(value).collect::<anyhow::Result<Vec<_>>>()?;
                    format!("{:#}\n", json!({ "apiVersion": "v1", "kind": "List", "items": items }))
                }
            }
        }
    };
    exit::print(&text)
}

/// The same shape as `millrace local status` has, so that scripts serve both.
fn value(dataset: &Dataset) -> anyhow::Result<Value> {
    let metadata = &dataset.metadata;
    Ok(json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {
            "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid, "generation": metadata.generation,
        },
        "status": serde_json::to_value(dataset.status.clone().unwrap_or_default())?,
    }))
}
