//! How does all that was made for a Dataset go again? In order: first the claim, which goes only when no pod uses it; readers keep
//! their workers until then. Only what carries our label is deleted.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt as _};
use millrace_api::dataset::conditions::{self, Holds, Verdict, reason};
use millrace_api::dataset::spec::Dataset;
use millrace_api::dataset::status::DatasetStatus;
use millrace_api::names;
use serde::de::DeserializeOwned;

use super::apply::{Write, dynamic};
use super::context::Context;
use super::error::ReconcileError;
use super::{fault, reconcile};
use crate::build::{Kind, Owner};

/// While pods end, which no watch of ours tells.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// Pods that are named in a message.
const NAMED: usize = 5;

/// Objects that are looked at in one list.
const PAGE: u32 = 500;

/// The order in which kinds go. A kind goes when nothing of those before it is left.
const ORDER: [Kind; 5] = [
    Kind::PersistentVolumeClaim,
    Kind::PersistentVolume,
    Kind::StatefulSet,
    Kind::PodDisruptionBudget,
    Kind::Service,
];

/// Removes what was made for a Dataset that is deleted, as far as its readers allow.
///
/// # Errors
/// What stopped it; the next one starts from what is there.
pub async fn clean(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    told: &DatasetStatus,
) -> Result<Action, ReconcileError> {
    if !dataset.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER) {
        context.forget(&owner.uid);
        return Ok(Action::await_change());
    }
    let client = context.writer.client();
    for kind in ORDER {
        // Claims of workers have the label too, and go with their StatefulSet.
        let left = list(client, kind, Some(owner)).await?;
        let left: Vec<DynamicObject> = left
            .into_iter()
            .filter(|object| {
                kind != Kind::PersistentVolumeClaim || object.name_any() == names::claim(&owner.name)
            })
            .collect();
        fault::point("cleanup")?;
        if left.is_empty() {
            continue;
        }
        for object in left.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
            delete(context, kind, object).await?;
        }
        return if kind == Kind::PersistentVolumeClaim {
            wait_for_readers(context, owner, dataset, told).await
        } else {
            tell(
                context,
                owner,
                dataset,
                told,
                reason::REMOVING,
                format!("{}s are being removed", kind.as_str()),
            )
            .await?;
            Ok(Action::requeue(LOOK_AGAIN))
        };
    }
    for object in list(client, Kind::PersistentVolumeClaim, Some(owner)).await? {
        delete(context, Kind::PersistentVolumeClaim, &object).await?;
    }
    let finalizers: Vec<String> =
        dataset.finalizers().iter().filter(|finalizer| *finalizer != names::FINALIZER).cloned().collect();
    context.writer.set_finalizers(owner, dataset, &finalizers).await?;
    tracing::info!(dataset = owner.name, namespace = owner.namespace, "dataset is gone");
    context.forget(&owner.uid);
    Ok(Action::await_change())
}

/// Serves those who read, and says who they are.
async fn wait_for_readers(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    told: &DatasetStatus,
) -> Result<Action, ReconcileError> {
    let served = reconcile::serve(context, owner, dataset, told, true).await?;
    // A large namespace has many pods: not asked for where workers know who reads.
    let pods = if served.mounts.is_empty() {
        pods_with_claim(context.writer.client(), owner).await?
    } else {
        BTreeSet::new()
    };
    let who = if !served.mounts.is_empty() {
        format!("mounted by {}", served.mounts.text())
    } else if pods.is_empty() {
        "the claim is being removed".to_owned()
    } else {
        let named: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
        let more = if pods.len() > NAMED { ", ..." } else { "" };
        let plural = if pods.len() == 1 { "" } else { "s" };
        format!("used by {} pod{plural}: {}{more}", pods.len(), named.join(", "))
    };
    let is_used = !served.mounts.is_empty() || !pods.is_empty();
    let why = if is_used { reason::WAITING_FOR_PODS } else { reason::REMOVING };
    tell(context, owner, dataset, &served.status, why, who).await?;
    served.take_listing(context, owner);
    Ok(Action::requeue(served.wake.map_or(LOOK_AGAIN, |wake| wake.min(LOOK_AGAIN))))
}

async fn tell(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    told: &DatasetStatus,
    why: &'static str,
    message: String,
) -> Result<(), ReconcileError> {
    let before = context.memory(&owner.uid).told.or_else(|| dataset.status.clone()).unwrap_or_default();
    let mut status = told.clone();
    // These two say what they said before, not what they would say of a Dataset that stays: or each look would be a transition.
    status.conditions.retain(|condition| {
        ![conditions::READY, conditions::TERMINATING].contains(&condition.type_.as_str())
    });
    for kind in [conditions::READY, conditions::TERMINATING] {
        status.conditions.extend(before.conditions.iter().find(|condition| condition.type_ == kind).cloned());
    }
    let now = Time(Timestamp::now());
    let generation = dataset.metadata.generation;
    let terminating = Verdict { kind: conditions::TERMINATING, holds: Holds::True, reason: why, message };
    let ready = Verdict {
        kind: conditions::READY,
        holds: Holds::False,
        reason: reason::DELETING,
        message: "the Dataset is being deleted: no new pod can mount it".to_owned(),
    };
    conditions::set(&mut status.conditions, ready, generation, &now);
    conditions::set(&mut status.conditions, terminating, generation, &now);
    reconcile::publish(context, owner, dataset, &before, status).await?;
    Ok(())
}

/// Pods of the namespace that name the claim. Kubernetes keeps a claim for those that have ended too, until they are deleted.
async fn pods_with_claim(client: &Client, owner: &Owner) -> Result<BTreeSet<String>, ReconcileError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &owner.namespace);
    let pods = pages(&api, ListParams::default(), || format!("pods of {}", owner.namespace)).await?;
    let claim = names::claim(&owner.name);
    let uses = |pod: &&Pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        claims.any(|used| used.claim_name == claim)
    };
    let in_words = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let ended = if matches!(phase, Some("Succeeded" | "Failed")) { " (ended: delete it)" } else { "" };
        format!("{}/{}{ended}", owner.namespace, pod.name_any())
    };
    Ok(pods.iter().filter(uses).map(in_words).collect())
}

/// Objects of ours: of one Dataset, or of all.
async fn list(
    client: &Client,
    kind: Kind,
    owner: Option<&Owner>,
) -> Result<Vec<DynamicObject>, ReconcileError> {
    let (namespace, selector) = match owner {
        Some(owner) => (
            (kind != Kind::PersistentVolume).then_some(owner.namespace.as_str()),
            format!("{},{}={}", names::MANAGED_SELECTOR, names::DATASET_UID_LABEL, owner.uid),
        ),
        None => (None, format!("{},{}", names::MANAGED_SELECTOR, names::DATASET_UID_LABEL)),
    };
    let params = ListParams::default().labels(&selector);
    pages(&dynamic(client, kind, namespace), params, || format!("{}s that carry our label", kind.as_str()))
        .await
}

/// All objects of a list, page by page. `what` says which, where they cannot be read.
async fn pages<K>(
    api: &Api<K>,
    params: ListParams,
    what: impl Fn() -> String,
) -> Result<Vec<K>, ReconcileError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = params.limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api
            .list(&params)
            .await
            .map_err(|source| ReconcileError::Read { what: what(), source: Box::new(source) })?;
        found.extend(page.items);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(found),
        }
    }
}

async fn delete(context: &Context, kind: Kind, object: &DynamicObject) -> Result<(), ReconcileError> {
    context.writer.may_write()?;
    let api = dynamic(context.writer.client(), kind, object.metadata.namespace.as_deref());
    let name = object.name_any();
    let preconditions = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match api.delete(&name, &params).await {
        Ok(_) => {
            tracing::info!(kind = kind.as_str(), name, namespace = object.metadata.namespace, "removed");
            Ok(fault::point("deleted")?)
        }
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(ReconcileError::Write(Write::Ask {
            step: "delete",
            what: format!("{} {name}", kind.as_str()),
            source: Box::new(source),
        })),
    }
}

/// Removes what belongs to Datasets that are no more: they were deleted with their finalizer taken away by hand.
///
/// # Errors
/// Where the API server does not answer.
pub async fn sweep(context: &Context) -> Result<usize, ReconcileError> {
    let client = context.writer.client();
    let mut orphans = Vec::new();
    for kind in ORDER {
        orphans.extend(list(client, kind, None).await?.into_iter().map(|object| (kind, object)));
    }
    // After the objects: a Dataset is there before anything of it is.
    let datasets: Api<Dataset> = Api::all(client.clone());
    let datasets = datasets.list(&ListParams::default()).await.map_err(|source| ReconcileError::Read {
        what: "all Datasets".to_owned(),
        source: Box::new(source),
    })?;
    let uids: BTreeSet<String> =
        datasets.items.iter().filter_map(|dataset| dataset.metadata.uid.clone()).collect();
    orphans.retain(|(_, object)| {
        object.labels().get(names::DATASET_UID_LABEL).is_some_and(|uid| !uids.contains(uid))
            && object.metadata.deletion_timestamp.is_none()
    });
    for (kind, object) in &orphans {
        delete(context, *kind, object).await?;
    }
    Ok(orphans.len())
}
