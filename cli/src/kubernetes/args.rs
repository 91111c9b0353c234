//! What can be asked about Datasets of a cluster?

use std::path::PathBuf;

use clap::Args;

use crate::args::Output;

/// Which cluster, and where in it; as for kubectl.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterArgs {
    /// Namespace [default: that of the context].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the service account where it runs in a pod].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the Dataset; a list of all without.
    #[arg(value_name = "DATASET")]
    pub name: Option<String>,
    /// Those of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["name", "namespace"])]
    pub all_namespaces: bool,
    /// For people, or JSON: a Dataset without its spec, or a List of them.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A pod or a Dataset: NAME, or pod/NAME or dataset/NAME where both have it.
    #[arg(value_name = "POD|DATASET")]
    pub subject: String,
    /// For people, or JSON; its shape is in --help.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Arguments of `warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// Name of the Dataset.
    #[arg(value_name = "DATASET")]
    pub dataset: String,
    /// Files or folders in the dataset, such as /train; `/` is all.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<String>,
    /// Ask for it and do not wait.
    #[arg(long)]
    pub no_wait: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// For the end of `status --help`.
pub const STATUS_HELP: &str = "Examples:\n  \
    millrace status\n  \
    millrace status imagenet -n vision\n  \
    millrace status imagenet -o json | jq '.status.conditions[] | select(.type == \"Ready\").status'\n\n\
    JSON: {\"apiVersion\", \"kind\": \"Dataset\", \"metadata\": {\"namespace\", \"name\", \"uid\", \"generation\"}, \"status\"}, where\n\
    status is that of the Dataset (`kubectl explain dataset.status`); without a name {\"kind\": \"List\", \"items\": [...]}.\n\
    Needs the right to get (one) or list (all) datasets.";

/// For the end of `why --help`.
pub const WHY_HELP: &str = "Examples:\n  \
    millrace why train-7xk2p\n  \
    millrace why dataset/imagenet -n vision -o json | jq .broken\n\n\
    Walks from the pod over annotation, webhook, claim, volume, node and workers to the bucket, and names the first link that is\n\
    broken with its cure. Exit code 1 where one is. What you may not read is told as unknown, and the walk goes on.\n\n\
    JSON: {\"subject\": {\"kind\", \"namespace\", \"name\"}, \"links\": [{\"link\", \"of\", \"state\", \"says\", \"cure\"}], \"broken\"}: state is ok,\n\
    waiting (for another link), broken or unknown; of names the Dataset (null: the pod's own); cure may be null; broken is the\n\
    first broken link, or null.";

/// For the end of `warm --help`.
pub const WARM_HELP: &str = "Examples:\n  \
    millrace warm imagenet /train\n  \
    millrace warm imagenet /train/n01440764 /val -n vision\n\n\
    The request is an annotation of the Dataset, millrace.dev/warm: {\"id\", \"paths\"}; the operator carries it out and tells how\n\
    far it is in status.warmUp. So only the rights to get and patch datasets are needed. Ctrl-C stops the waiting, not the\n\
    loading. A later request takes the place of an earlier one. Exit code 1 where objects failed,\n\
    a path is not in the dataset, or another request took its place.";
