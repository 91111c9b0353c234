//! Why does a pod wait, or a Dataset not serve?

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use millrace_api::dataset::spec::Dataset;

use super::args::WhyArgs;
use super::connect::{self, Cluster, told};
use super::evidence::{self, Evidence};
use super::links::{first_broken, links};
use super::why_text;
use crate::args::Output;
use crate::exit::{self, Told};

/// What is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pod.
    Pod,
    /// A Dataset.
    Dataset,
}

/// Walks from pod or Dataset to the bucket, and tells which links hold.
///
/// # Errors
/// Where there is neither pod nor Dataset of the name; [`Told`] where a link is broken.
pub async fn why(args: &WhyArgs) -> anyhow::Result<()> {
    let Cluster { client, namespace } = connect::connect(&args.cluster).await?;
    let (kind, name) = parse(&args.subject)?;
    let (kind, evidence) = gather(&client, &namespace, kind, name).await?;
    let links = links(&evidence);
    let text = match args.output {
        Output::Text => why_text::text(kind, &namespace, name, &links),
        Output::Json => format!("{:#}\n", why_text::value(kind, &namespace, name, &links)),
    };
    exit::print(&text)?;
    if first_broken(&links).is_some() { Err(Told.into()) } else { Ok(()) }
}

async fn gather(
    client: &Client,
    namespace: &str,
    kind: Option<Kind>,
    name: &str,
) -> anyhow::Result<(Kind, Evidence)> {
    let pod = match kind {
        Some(Kind::Dataset) => None,
        Some(Kind::Pod) | None => {
            let pod = Api::<Pod>::namespaced(client.clone(), namespace).get_opt(name).await;
            pod.map_err(|error| told(error, &format!("get pod {name:?} of namespace {namespace:?}")))?
        }
    };
    let dataset = match kind {
        Some(Kind::Pod) => None,
        Some(Kind::Dataset) | None => {
            let dataset = Api::<Dataset>::namespaced(client.clone(), namespace).get_opt(name).await;
            dataset
                .map_err(|error| told(error, &format!("get dataset {name:?} of namespace {namespace:?}")))?
        }
    };
    match (pod, dataset) {
        (Some(_), Some(_)) => {
            bail!(
                "{name:?} is both a pod and a dataset of namespace {namespace:?}: write pod/{name} or dataset/{name}"
            )
        }
        (Some(pod), None) => Ok((Kind::Pod, evidence::of_pod(client, namespace, pod).await)),
        (None, Some(_)) => {
            let datasets = vec![evidence::of_dataset(client, namespace, name).await];
            Ok((Kind::Dataset, Evidence { namespace: namespace.to_owned(), pod: None, datasets }))
        }
        (None, None) => {
            let what = match kind {
                Some(Kind::Pod) => "no pod",
                Some(Kind::Dataset) => "no dataset",
                None => "neither a pod nor a dataset",
            };
            bail!(
                "there is {what} {name:?} in namespace {namespace:?}: choose another with -n; `millrace status -A` lists datasets"
            )
        }
    }
}

/// `NAME`, `pod/NAME` or `dataset/NAME`.
fn parse(subject: &str) -> anyhow::Result<(Option<Kind>, &str)> {
    let Some((kind, name)) = subject.split_once('/') else { return Ok((None, subject)) };
    let kind = match kind {
        "pod" | "pods" | "po" => Some(Kind::Pod),
        "dataset" | "datasets" | "dts" => Some(Kind::Dataset),
        _ => None,
    };
    let kind = kind.with_context(|| {
        format!("{subject:?} is neither pod/NAME nor dataset/NAME; for a file of a dataset on this machine see `millrace local why`")
    })?;
    Ok((Some(kind), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_may_say_what_it_is() {
        assert_eq!(parse("train").unwrap(), (None, "train"));
        assert_eq!(parse("pod/train").unwrap(), (Some(Kind::Pod), "train"));
        assert_eq!(parse("dts/imagenet").unwrap(), (Some(Kind::Dataset), "imagenet"));
        assert!(parse("/train/a.jpg").unwrap_err().to_string().contains("millrace local why"));
    }
}
