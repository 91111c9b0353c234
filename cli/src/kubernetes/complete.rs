//! What may come next on the command line, when kubectl asks?
//!
//! kubectl calls `kubectl_complete-millrace` with the words so far, the last of which is being typed, and reads one candidate a line
//! and a closing `:4`, which forbids the names of files (cobra's form).

use std::time::Duration;

use clap::CommandFactory;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names::CONSUMER_LABEL;

use super::args::ClusterArgs;
use super::connect::{self, Cluster};
use crate::args::Cli;
use crate::exit;

/// A user who presses the tab key waits no longer.
const DEADLINE: Duration = Duration::from_secs(2);

/// Candidates of the cluster.
const MAX_NAMES: u32 = 500;

/// Prints the candidates; none where the cluster does not say.
///
/// # Errors
/// Where stdout cannot be written.
pub async fn complete(words: &[String]) -> anyhow::Result<()> {
    let typed = words.last().map_or("", String::as_str);
    let before = words.get(..words.len().saturating_sub(1)).unwrap_or_default();
    let candidates = match asks_for(before) {
        Asked::Command => commands(),
        Asked::Names { with_pods } => {
            let cluster = cluster_of(before);
            tokio::time::timeout(DEADLINE, names(&cluster, with_pods))
                .await
                .ok()
                .and_then(Result::ok)
                .unwrap_or_default()
        }
        Asked::Nothing => Vec::new(),
    };
    let mut text = String::new();
    for candidate in candidates.iter().filter(|candidate| candidate.starts_with(typed)) {
        text.push_str(candidate);
        text.push('\n');
    }
    exit::print(&format!("{text}:4\n"))
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Command,
    Names { with_pods: bool },
    Nothing,
}

fn asks_for(before: &[String]) -> Asked {
    let mut words = Vec::new();
    let mut is_value = false;
    for word in before {
        if is_value {
            is_value = false;
        } else if word.starts_with('-') {
            is_value =
                ["-n", "--namespace", "--context", "--kubeconfig", "-o", "--output"].contains(&word.as_str());
        } else {
            words.push(word.as_str());
        }
    }
    match (words.as_slice(), is_value) {
        (_, true) => Asked::Nothing,
        ([], false) => Asked::Command,
        (["status" | "warm"], false) => Asked::Names { with_pods: false },
        (["why"], false) => Asked::Names { with_pods: true },
        _ => Asked::Nothing,
    }
}

fn commands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

fn cluster_of(before: &[String]) -> ClusterArgs {
    let value = |names: &[&str]| {
        let at = before.iter().position(|word| names.contains(&word.as_str()))?;
        before.get(at + 1).cloned()
    };
    ClusterArgs {
        namespace: value(&["-n", "--namespace"]),
        context: value(&["--context"]),
        kubeconfig: value(&["--kubeconfig"]).map(Into::into),
    }
}

async fn names(args: &ClusterArgs, with_pods: bool) -> anyhow::Result<Vec<String>> {
    let Cluster { client, namespace } = connect::connect(args).await?;
    let some = ListParams::default().limit(MAX_NAMES);
    let datasets = Api::<Dataset>::namespaced(client.clone(), &namespace).list(&some).await?;
    let mut names: Vec<String> = datasets.iter().map(ResourceExt::name_any).collect();
    if with_pods {
        let ours = some.labels(&format!("{CONSUMER_LABEL}=true"));
        let pods = Api::<Pod>::namespaced(client, &namespace).list_metadata(&ours).await?;
        names.extend(pods.iter().map(ResourceExt::name_any));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Asked {
        asks_for(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_asked_for_follows_from_the_words_before() {
        assert_eq!(asked(&[]), Asked::Command);
        assert_eq!(asked(&["status"]), Asked::Names { with_pods: false });
        assert_eq!(asked(&["-n", "vision", "why"]), Asked::Names { with_pods: true });
        assert_eq!(asked(&["status", "-n"]), Asked::Nothing);
        assert_eq!(asked(&["warm", "imagenet"]), Asked::Nothing);
        assert!(commands().contains(&"why".to_owned()));
        let args = cluster_of(&["-n".to_owned(), "vision".to_owned()]);
        assert_eq!(args.namespace.as_deref(), Some("vision"));
    }
}
