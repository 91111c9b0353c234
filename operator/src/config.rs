//! What was this operator told to do? Arguments and environment, parsed once.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};
use millrace_api::names;
use millrace_daemon::logging::LogArgs;

/// Keeps what Datasets need in the cluster, and mounts them into pods that ask for them.
#[derive(Debug, Parser)]
#[command(name = "operator", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reconcile Datasets and serve the pod webhook until told to stop (SIGTERM).
    ///
    /// Several may run: one holds the lease and reconciles, all serve the webhook. In a pod it finds the API server by itself,
    /// elsewhere by KUBECONFIG.
    Serve(Box<ServeArgs>),
    /// Exit code 1 while there are Datasets or volumes of them, with their names: the chart asks before it is uninstalled.
    CheckUninstall,
}

/// Arguments of `serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Namespace of the operator: of its lease, its master key and its certificate.
    #[arg(long, env = "MILLRACE_NAMESPACE", default_value = names::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Name of this operator's pod: holder of the lease.
    #[arg(long, env = "POD_NAME", default_value = "operator")]
    pub pod_name: String,
    /// Image of the workers.
    #[arg(long, env = "MILLRACE_WORKER_IMAGE")]
    pub worker_image: String,
    /// When the image of workers is pulled.
    #[arg(
        long,
        env = "MILLRACE_WORKER_IMAGE_PULL_POLICY",
        default_value = "IfNotPresent",
        value_parser = ["Always", "IfNotPresent", "Never"]
    )]
    pub worker_image_pull_policy: String,
    /// Secret that holds the master key; made where there is none.
    #[arg(long, default_value = "millrace-master-key")]
    pub master_key_secret: String,
    /// Secret that holds the webhook's certificate; made where there is none.
    #[arg(long, default_value = "millrace-webhook-certificate")]
    pub webhook_certificate_secret: String,
    /// Service of the webhook: what its certificate is made out to.
    #[arg(long, default_value = names::WEBHOOK_SERVICE)]
    pub webhook_service: String,
    /// MutatingWebhookConfiguration that is told the certificate's authority.
    #[arg(long, default_value = names::WEBHOOK_CONFIGURATION)]
    pub webhook_configuration: String,
    /// Lease of the operator that reconciles.
    #[arg(long, default_value = "millrace-operator")]
    pub lease_name: String,
    /// Where the webhook is served, with TLS. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_WEBHOOK_ADDRESS", default_value = "0.0.0.0:9443")]
    pub webhook_address: SocketAddr,
    /// Where metrics, health and readiness are served. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_ADMIN_ADDRESS", default_value = "0.0.0.0:7432")]
    pub admin_address: SocketAddr,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_policy_that_no_pod_can_have_is_refused_at_the_start() {
        let parse = |policy: &str| {
            let policy = format!("--worker-image-pull-policy={policy}");
            Cli::try_parse_from(["operator", "serve", "--worker-image=x", &policy])
        };
        assert!(parse("Never").is_ok());
        let error = parse("always").unwrap_err().to_string();
        assert!(error.contains("'always'") && error.contains("IfNotPresent"), "{error}");
    }
}
