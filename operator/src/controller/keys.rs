//! When are the key Secrets of a Dataset made? They cannot be looked at: we may create Secrets and not read them.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::context::Context;
use super::error::ReconcileError;
use super::observe::Observed;
use super::{fault, trouble};
use crate::build::{Owner, secrets};
use crate::workers::fleet::Known;
use crate::workers::seen;

/// How long a worker may refuse our key before its Secret is made again: the garbage collector takes a former one away by then.
const KEY_REFUSED_LONG: Duration = Duration::from_secs(15);

/// How long a pod may wait for its volumes before its Secrets are made again.
const VOLUMES_LATE: Duration = Duration::from_secs(4);

/// Makes them once by each operator, and again for a pod that waits for its volumes.
///
/// # Errors
/// Where the API server refuses.
pub async fn ensure(
    context: &Context,
    owner: &Owner,
    observed: &Observed,
    wakes: &mut Vec<Duration>,
) -> Result<(), ReconcileError> {
    let memory = context.memory(&owner.uid);
    let mut helped = Vec::new();
    for pod in observed.pods.iter().filter(|pod| trouble::waits_for_volumes(pod)) {
        let uid = pod.uid().unwrap_or_default();
        if memory.helped_pods.contains(&uid) {
            continue;
        }
        let since = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let age = since.map_or(0, |since| Timestamp::now().as_second().saturating_sub(since.as_second()));
        let age = Duration::from_secs(u64::try_from(age).unwrap_or(0));
        if age < VOLUMES_LATE {
            wakes.push(VOLUMES_LATE - age);
        } else {
            helped.push(uid);
        }
    }
    if memory.has_secrets && helped.is_empty() {
        return Ok(());
    }
    for wanted in secrets::secrets(owner, &context.master) {
        if context.writer.ensure_secret(owner, &wanted).await? {
            tracing::info!(namespace = owner.namespace, secret = wanted.name, "secret made");
        }
        fault::point("secret")?;
    }
    let uids: BTreeSet<String> = observed.pods.iter().filter_map(|pod| pod.uid()).collect();
    context.remember(&owner.uid, |memory| {
        memory.has_secrets = true;
        memory.helped_pods.extend(helped);
        memory.helped_pods.retain(|uid| uids.contains(uid));
    });
    Ok(())
}

/// A worker that was made with the key of a former Dataset of this name: its Secret goes with that Dataset, and then a new one and
/// a new pod are made.
///
/// # Errors
/// Where the API server refuses.
pub async fn replace(
    context: &Context,
    owner: &Owner,
    known: &Known,
    wakes: &mut Vec<Duration>,
) -> Result<(), ReconcileError> {
    let helped = context.memory(&owner.uid).helped_pods;
    for seen in known.seen.values() {
        let is_refused = matches!(&seen.trouble, Some(seen::Trouble::KeyRefused(_)));
        if !is_refused || helped.contains(&seen.pod_uid) {
            continue;
        }
        let left = KEY_REFUSED_LONG.saturating_sub(seen.since.elapsed());
        if !left.is_zero() {
            wakes.push(left);
            continue;
        }
        let mut is_made = false;
        for wanted in secrets::secrets(owner, &context.master) {
            is_made |= context.writer.ensure_secret(owner, &wanted).await?;
        }
        context.remember(&owner.uid, |memory| {
            memory.helped_pods.insert(seen.pod_uid.clone());
        });
        if is_made {
            tracing::warn!(
                worker = seen.name,
                namespace = owner.namespace,
                "worker with an older key is made anew"
            );
            context.writer.delete_pod(owner, &seen.name, &seen.pod_uid).await?;
        }
    }
    Ok(())
}
