//! How is the API server reached, and what does its refusal mean for the user?

use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::args::ClusterArgs;

/// For a connection: an API server that is there answers in milliseconds.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// For an answer.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// A cluster and the namespace that is meant.
pub struct Cluster {
    /// Reaches the API server.
    pub client: Client,
    /// As given, else that of the context, else `default`.
    pub namespace: String,
}

/// Connects as kubectl would.
///
/// # Errors
/// Where no kubeconfig can be read and this is no pod.
pub async fn connect(args: &ClusterArgs) -> anyhow::Result<Cluster> {
    // Of several calls in one process the first installs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ClusterArgs { namespace, context, kubeconfig } = args;
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let mut config = match (kubeconfig, context) {
        (Some(file), _) => {
            let kubeconfig =
                Kubeconfig::read_from(file).with_context(|| format!("read kubeconfig {file:?}"))?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .with_context(|| format!("use kubeconfig {file:?}"))?
        }
        (None, Some(context)) => Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("use context {context:?} of the kubeconfig"))?,
        (None, None) => Config::infer()
            .await
            .map_err(|error| anyhow!("no cluster: {error}: set KUBECONFIG, or give --kubeconfig FILE"))?,
    };
    config.connect_timeout = Some(CONNECT_DEADLINE);
    config.read_timeout = Some(READ_DEADLINE);
    let namespace = namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).context("use the kubeconfig")?;
    Ok(Cluster { client, namespace })
}

/// What an error of the API server means, for the user.
pub fn told(error: kube::Error, what: &str) -> anyhow::Error {
    match &error {
        kube::Error::Api(status)
            if status.code == 404 && status.message.contains("the server could not find") =>
        {
            anyhow!(
                "{what}: the cluster knows no Datasets: install Millrace (helm install), or use another context"
            )
        }
        kube::Error::Api(status) => anyhow!("{what}: {}", status.message),
        _ => anyhow::Error::from(error).context(format!("{what}: no answer of the API server")),
    }
}
