//! What is there of a Dataset? Reads what the watches have brought, and asks the API server only for what no watch brings.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    Event, PersistentVolume, PersistentVolumeClaim, Pod, Service, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt as _};
use millrace_api::names;
use serde::Serialize;
use serde_json::Value;

use super::context::{Context, Stores};
use super::error::ReconcileError;
use super::trouble::Refusal;
use crate::build::stateful_set::WebIdentity;
use crate::build::{Kind, Owner};
use crate::workers::steer::WorkerPod;

/// Events that are looked at; the newest tell enough.
const MAX_EVENTS: u32 = 100;

/// Audience of a token where the service account names none.
const AUDIENCE: &str = "sts.amazonaws.com";

/// What is there of a Dataset, as ours.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The workers.
    pub stateful_set: Option<Arc<StatefulSet>>,
    /// Their name.
    pub service: Option<Arc<Service>>,
    /// The limit of drains.
    pub budget: Option<Arc<PodDisruptionBudget>>,
    /// What pods mount.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// What nodes mount.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The workers' pods, by name.
    pub pods: Vec<Arc<Pod>>,
}

impl Observed {
    /// What the watches have brought.
    pub fn of(stores: &Stores, owner: &Owner) -> Self {
        let workers = names::workers(&owner.name);
        let mut pods = stores.pods.state_filter(|pod| is_of(pod, owner));
        pods.sort_by_key(|pod| ordinal(&pod.name_any()));
        Self {
            stateful_set: ours(&stores.stateful_sets, &workers, owner),
            service: ours(&stores.services, &workers, owner),
            budget: ours(&stores.budgets, &workers, owner),
            claim: ours(&stores.claims, names::claim(&owner.name), owner),
            volume: stores
                .volumes
                .get(&ObjectRef::new(&names::volume(&owner.uid)))
                .filter(|volume| is_of(volume.as_ref(), owner)),
            pods,
        }
    }

    /// An object as the API has it.
    pub fn object(&self, kind: Kind) -> Option<Value> {
        match kind {
            Kind::Service => value(self.service.as_deref()),
            Kind::StatefulSet => value(self.stateful_set.as_deref()),
            Kind::PodDisruptionBudget => value(self.budget.as_deref()),
            Kind::PersistentVolume => value(self.volume.as_deref()),
            Kind::PersistentVolumeClaim => value(self.claim.as_deref()),
        }
    }

    /// The workers' pods that have an address and have not ended.
    pub fn worker_pods(&self) -> Vec<WorkerPod> {
        let pod = |pod: &Arc<Pod>| {
            let status = pod.status.as_ref()?;
            if !matches!(status.phase.as_deref(), Some("Running")) {
                return None;
            }
            Some(WorkerPod {
                name: pod.name_any(),
                uid: pod.uid()?,
                ip: status.pod_ip.clone()?,
                control_port: control_port(pod).unwrap_or(names::WORKER_CONTROL_PORT),
                is_leaving: pod.metadata.deletion_timestamp.is_some(),
            })
        };
        self.pods.iter().filter_map(pod).collect()
    }
}

/// What the pod itself says: it may be made by another build.
fn control_port(pod: &Pod) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some("control"))?;
    u16::try_from(port.container_port).ok()
}

fn value<K: Serialize>(object: Option<&K>) -> Option<Value> {
    object.map(|object| serde_json::to_value(object).expect("what came as JSON goes as JSON"))
}

fn ours<K>(store: &Store<K>, name: &str, owner: &Owner) -> Option<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(name).within(&owner.namespace)).filter(|object| is_of(object.as_ref(), owner))
}

/// Whether an object is of this Dataset, and not of a former one of its name.
pub fn is_of(object: &impl Resource<DynamicType = ()>, owner: &Owner) -> bool {
    object.labels().get(names::DATASET_UID_LABEL) == Some(&owner.uid)
}

fn ordinal(name: &str) -> u32 {
    name.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse().ok()).unwrap_or(u32::MAX)
}

/// The role of a service account: `Ok(None)` where it names none.
///
/// # Errors
/// Where it cannot be read.
pub async fn web_identity(
    context: &Context,
    owner: &Owner,
    account: Option<&str>,
) -> Result<Option<WebIdentity>, ReconcileError> {
    let Some(account) = account else { return Ok(None) };
    let api: Api<ServiceAccount> = Api::namespaced(context.writer.client().clone(), &owner.namespace);
    let account = api.get_opt(account).await.map_err(|source| ReconcileError::Read {
        what: format!("ServiceAccount {}/{account}", owner.namespace),
        source: Box::new(source),
    })?;
    let annotation = |key: &str| account.as_ref().and_then(|account| account.annotations().get(key).cloned());
    Ok(annotation(names::ROLE_ARN_ANNOTATION).map(|role_arn| WebIdentity {
        role_arn,
        audience: annotation(names::ROLE_AUDIENCE_ANNOTATION).unwrap_or_else(|| AUDIENCE.to_owned()),
        sts_endpoint: annotation(names::STS_ENDPOINT_ANNOTATION),
    }))
}

/// What keeps the StatefulSet's controller from making pods, newest first.
///
/// # Errors
/// Where the events cannot be read.
pub async fn refusals(context: &Context, owner: &Owner, uid: &str) -> Result<Vec<Refusal>, ReconcileError> {
    let api: Api<Event> = Api::namespaced(context.writer.client().clone(), &owner.namespace);
    let params = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(MAX_EVENTS);
    let events = api.list(&params).await.map_err(|source| ReconcileError::Read {
        what: format!("events of the StatefulSet of {}/{}", owner.namespace, owner.name),
        source: Box::new(source),
    })?;
    let mut refusals: Vec<(String, Refusal)> = events
        .items
        .into_iter()
        .filter(|event| event.type_.as_deref() == Some("Warning"))
        .map(|event| {
            let at = event
                .last_timestamp
                .map(|time| time.0.to_string())
                .or_else(|| event.event_time.map(|time| time.0.to_string()));
            let reason = event.reason.unwrap_or_default();
            (at.unwrap_or_default(), Refusal { reason, message: event.message.unwrap_or_default() })
        })
        .collect();
    refusals.sort_by(|a, b| b.0.cmp(&a.0));
    Ok(refusals.into_iter().map(|(_, refusal)| refusal).collect())
}
