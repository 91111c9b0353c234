//! How does the process run: lease, controller, webhook, admin port, stop?

use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use kube::{Client, Config};
use millrace_api::keys::Key;
use millrace_daemon::admin::{Admin, AdminError, AdminPort, BuildInfo};
use millrace_daemon::readiness::Readiness;
use millrace_daemon::shutdown::{ShutdownError, Tasks};
use prometheus::Registry;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::build::WorkerImage;
use crate::config::ServeArgs;
use crate::controller::run::{Setup, run};
use crate::lease::{Held, Keeper, RENEW_EVERY};
use crate::master_key::{self, MasterKeyError};
use crate::metrics::Metrics;
use crate::webhook::metrics::WebhookMetrics;
use crate::webhook::{self, Webhook, WebhookConfig, WebhookError, WebhookPort};

/// How long reconciles that run may take to end, within the grace of the process.
const END: Duration = Duration::from_secs(3);

/// To connect to the API server.
const CONNECT: Duration = Duration::from_secs(5);

/// For an answer of the API server; watches are longer, and renewed within this.
const ANSWER: Duration = Duration::from_secs(295);

/// Why the operator does not run.
#[derive(Debug, thiserror::Error)]
pub enum Serve {
    /// Nothing says where the API server is.
    #[error("find the API server: run in a pod, or set KUBECONFIG")]
    Find(#[source] kube::config::InferConfigError),
    /// It cannot be talked to.
    #[error("set up a client of the API server")]
    Client(#[source] kube::Error),
    /// There is no master key.
    #[error("get the master key")]
    MasterKey(#[source] MasterKeyError),
    /// The admin port.
    #[error("open the admin port")]
    Admin(#[source] AdminError),
    /// The webhook's port.
    #[error("open the webhook's port")]
    Webhook(#[source] WebhookError),
    /// A metric is registered twice.
    #[error("register metrics")]
    Metrics(#[source] prometheus::Error),
    /// The process ended otherwise than asked.
    #[error("run")]
    Run(#[source] ShutdownError),
}

/// Serves until told to stop.
///
/// # Errors
/// See [`Serve`]; each names what to change.
pub async fn serve(args: ServeArgs) -> Result<(), Serve> {
    let mut config = Config::infer().await.map_err(Serve::Find)?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(ANSWER);
    let client = Client::try_from(config).map_err(Serve::Client)?;
    let tasks = Tasks::new();
    let registry = Registry::new();
    let build = BuildInfo::new("operator");
    build.register(&registry).map_err(Serve::Metrics)?;
    millrace_daemon::process_metrics::register(&registry, std::path::Path::new("/"))
        .map_err(Serve::Metrics)?;
    let metrics = Arc::new(Metrics::register(&registry).map_err(Serve::Metrics)?);
    let webhook_metrics = WebhookMetrics::register(&registry).map_err(Serve::Metrics)?;
    let readiness = Readiness::new();
    let key_condition = readiness.condition("master-key", "not read yet");
    let certificate = readiness.condition("certificate", "there is none yet");
    let trust = readiness.condition("trust", "whom the API server trusts is not known yet");
    let held = Held::default();
    let admin = AdminPort::bind(args.admin_address).await.map_err(Serve::Admin)?;
    let port = WebhookPort::bind(args.webhook_address).await.map_err(Serve::Webhook)?;
    tracing::info!(admin = %admin.address(), webhook = %port.address(), "operator serves");
    let token = tasks.token();
    tasks.spawn_essential("admin-port", async move {
        Ok(admin.serve(Admin { registry, readiness, build }, token).await?)
    });
    let webhook = Webhook {
        client: client.clone(),
        config: WebhookConfig {
            namespace: args.namespace.clone(),
            certificate_secret: args.webhook_certificate_secret.clone(),
            service: args.webhook_service.clone(),
            configuration: args.webhook_configuration.clone(),
        },
        metrics: webhook_metrics,
        certificate,
        trust,
        lease: held.clone(),
    };
    let token = tasks.token();
    tasks.spawn_essential("webhook", async move { Ok(webhook::run(webhook, port, token).await?) });
    let token = tasks.token();
    tasks.spawn_essential("controller", async move {
        let key = tokio::select! {
            key = master_key::ensure(&client, &args.namespace, &args.master_key_secret) => key?,
            () = token.cancelled() => return Ok(()),
        };
        key_condition.met();
        lead(&client, &args, key, &metrics, held, token).await;
        Ok(())
    });
    tasks.run_until_stopped().await.map_err(Serve::Run)
}

/// Waits for the lease, reconciles while it is ours, and gives it back.
async fn lead(
    client: &Client,
    args: &ServeArgs,
    master: Key,
    metrics: &Arc<Metrics>,
    held: Held,
    stop: CancellationToken,
) {
    // Another start of the same pod is another holder.
    let holder = format!("{}_{:08x}", args.pod_name, rand::random::<u32>());
    let api = Api::namespaced(client.clone(), &args.namespace);
    let mut keeper = Keeper::new(api, args.lease_name.clone(), holder, held.clone());
    let setup = Setup {
        instance: args.pod_name.clone(),
        image: WorkerImage {
            image: args.worker_image.clone(),
            pull_policy: args.worker_image_pull_policy.clone(),
        },
        master,
        held: held.clone(),
        metrics: Arc::clone(metrics),
    };
    let mut beat = interval(RENEW_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leading: Option<(CancellationToken, tokio::task::JoinHandle<()>)> = None;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => break,
        }
        if let Err(error) = keeper.look().await {
            tracing::warn!(error = %error, cause = ?std::error::Error::source(&error).map(ToString::to_string), "lease not looked at");
        }
        let is_ended = leading.as_ref().is_some_and(|(_, task)| task.is_finished());
        if (!held.is_held() || is_ended) && leading.is_some() {
            tracing::warn!("no longer the one that reconciles");
            end(leading.take()).await;
        }
        metrics.is_leader.set(i64::from(held.is_held()));
        if held.is_held() && leading.is_none() {
            tracing::info!(lease = args.lease_name, "the one that reconciles");
            let token = stop.child_token();
            let task = tokio::spawn(run(client.clone(), setup.clone(), token.clone()));
            leading = Some((token, task));
        }
    }
    end(leading.take()).await;
    keeper.release().await;
}

async fn end(leading: Option<(CancellationToken, tokio::task::JoinHandle<()>)>) {
    let Some((token, mut task)) = leading else { return };
    token.cancel();
    match timeout(END, &mut task).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(error = %error, "the controller panicked"),
        Err(_) => {
            tracing::warn!("reconciles did not end in time");
            task.abort();
        }
    }
}
