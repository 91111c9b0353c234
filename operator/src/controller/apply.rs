//! How does what we want come to be in the API server? The only module that writes there, with [`super::cleanup`].
//!
//! An object is created by POST, so that one of the same name that is not ours is never taken over; ours is applied with its UID.
//! Reads nothing but what stands in the way of a creation.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::{Client, ResourceExt as _};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names;
use serde_json::{Value, json};

use super::diff::is_applied;
use super::events::is_going;
use super::fault::{self, Fault};
use crate::build::secrets::WantedSecret;
use crate::build::{Kind, Owner, Wanted};
use crate::lease::Held;

/// Annotation of an object: when its controller was made to try again.
const NUDGED_ANNOTATION: &str = "millrace.dev/tried-again";

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum Write {
    /// Another operator may hold the lease.
    #[error("the lease is not held")]
    NotLeader,
    /// The API server refused.
    #[error("{step} {what}")]
    Ask {
        /// What was tried.
        step: &'static str,
        /// With what.
        what: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// A test asked for it.
    #[error("{0}")]
    Fault(Fault),
}

impl From<Fault> for Write {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What came of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was as wanted.
    Unchanged,
    /// It was created or changed.
    Written,
    /// One of the same name is not ours.
    NameConflict {
        /// In words: kind, name and cure.
        message: String,
        /// Whether it is of a former Dataset, so that our watches tell of its end.
        is_former: bool,
    },
    /// The API server does not take it.
    Refused {
        /// In its words.
        message: String,
    },
    /// A former one is still going.
    Going,
}

/// Writes, as long as the lease is held.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    held: Held,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("held", &self.held.is_held()).finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes with this client while `held`.
    pub fn new(client: Client, held: Held) -> Self {
        Self { client, held }
    }

    /// The client, for reading.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether something may be written now.
    ///
    /// # Errors
    /// [`Write::NotLeader`].
    pub fn may_write(&self) -> Result<(), Write> {
        if self.held.is_held() { Ok(()) } else { Err(Write::NotLeader) }
    }

    /// Makes an object as wanted. `observed` is ours as it was last seen.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn ensure(
        &self,
        owner: &Owner,
        wanted: &Wanted,
        observed: Option<&Value>,
    ) -> Result<Outcome, Write> {
        let Some(observed) = observed else { return self.create(owner, wanted).await };
        if observed.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(Outcome::Going);
        }
        if is_applied(&wanted.object, observed) {
            return Ok(Outcome::Unchanged);
        }
        self.may_write()?;
        let api = self.api(wanted);
        let step = "apply";
        self.hand_over_creation(&api, wanted, observed).await?;
        let mut object = wanted.object.clone();
        // With it, a server that meanwhile has another object of this name refuses.
        if let Some(uid) = observed.pointer("/metadata/uid") {
            object["metadata"]["uid"] = uid.clone();
        }
        let params = PatchParams::apply(names::MANAGER).force();
        match api.patch(&wanted.name, &params, &Patch::Apply(&object)).await {
            Ok(_) => {
                tracing::info!(kind = wanted.kind.as_str(), name = wanted.name, "applied");
                Ok(Outcome::Written)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => Ok(Outcome::Refused {
                message: format!("{} {}: {}", wanted.kind.as_str(), wanted.name, status.message),
            }),
            Err(source) => Err(ask(step, wanted, source)),
        }
    }

    /// Fields set at creation belong to the creation, and would stay when they are applied no longer. Handed over once to what
    /// is applied, they go with the next apply that is without them.
    async fn hand_over_creation(
        &self,
        api: &Api<DynamicObject>,
        wanted: &Wanted,
        observed: &Value,
    ) -> Result<(), Write> {
        let managers = observed.pointer("/metadata/managedFields").and_then(Value::as_array);
        let is_creation = |entry: &Value| {
            entry["manager"] == names::MANAGER
                && entry["operation"] == "Update"
                && entry.get("subresource").is_none()
        };
        if !managers.is_some_and(|managers| managers.iter().any(is_creation)) {
            return Ok(());
        }
        let is_applied = |entry: &Value| entry["manager"] == names::MANAGER && entry["operation"] == "Apply";
        let has_applied = managers.is_some_and(|managers| managers.iter().any(is_applied));
        let mut entries = managers.cloned().unwrap_or_default();
        if has_applied {
            // Two entries of one manager and operation cannot be.
            entries.retain(|entry| !is_creation(entry));
        }
        for entry in entries.iter_mut().filter(|entry| is_creation(entry)) {
            entry["operation"] = "Apply".into();
        }
        let patch = json!({"metadata": {
            "uid": observed.pointer("/metadata/uid"),
            "resourceVersion": observed.pointer("/metadata/resourceVersion"),
            "managedFields": entries,
        }});
        let params = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(&wanted.name, &params, &Patch::Merge(&patch))
            .await
            .map_err(|source| ask("adopt", wanted, source))?;
        Ok(fault::point("adopted")?)
    }

    async fn create(&self, owner: &Owner, wanted: &Wanted) -> Result<Outcome, Write> {
        self.may_write()?;
        let api = self.api(wanted);
        let object: DynamicObject = serde_json::from_value(wanted.object.clone())
            .expect("what we build has kind, version and metadata");
        match api.create(&creation(), &object).await {
            Ok(_) => {
                tracing::info!(kind = wanted.kind.as_str(), name = wanted.name, "created");
                Ok(Outcome::Written)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(self.in_the_way(owner, wanted).await?.unwrap_or(Outcome::Going))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => Ok(Outcome::Refused {
                message: format!("{} {}: {}", wanted.kind.as_str(), wanted.name, status.message),
            }),
            Err(source) => Err(ask("create", wanted, source)),
        }
    }

    /// What has the name that we want; nothing, where it is free.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn in_the_way(&self, owner: &Owner, wanted: &Wanted) -> Result<Option<Outcome>, Write> {
        let there =
            self.api(wanted).get_opt(&wanted.name).await.map_err(|source| ask("read", wanted, source))?;
        let Some(there) = there else { return Ok(None) };
        let labels = there.labels();
        let is_managed = labels.get(names::MANAGED_BY_LABEL).is_some_and(|manager| manager == names::MANAGER);
        let uid = labels.get(names::DATASET_UID_LABEL);
        if is_managed && uid == Some(&owner.uid) {
            // Ours, and not seen yet: the watch brings it.
            return Ok(Some(Outcome::Going));
        }
        let is_former = is_managed && uid.is_some();
        let what = if is_former {
            "belongs to a former Dataset of this name and is being removed"
        } else {
            "is not ours: delete or rename it, or give the Dataset another name"
        };
        let message = format!("{} {} {what}", wanted.kind.as_str(), wanted.name);
        Ok(Some(Outcome::NameConflict { message, is_former }))
    }

    /// Makes a Secret where there is none; whether it was made. What it holds is never read.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn ensure_secret(&self, owner: &Owner, wanted: &WantedSecret) -> Result<bool, Write> {
        self.may_write()?;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &owner.namespace);
        let object: Secret =
            serde_json::from_value(wanted.object.clone()).expect("what we build is a Secret");
        match api.create(&creation(), &object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 || is_going(&status) => Ok(false),
            Err(source) => Err(Write::Ask {
                step: "create",
                what: format!("Secret {}/{}", owner.namespace, wanted.name),
                source: Box::new(source),
            }),
        }
    }

    /// Changes the metadata of a Dataset that has not changed since it was read.
    ///
    /// # Errors
    /// Where the API server does not answer, forbids it, or has a newer one.
    pub async fn set_finalizers(
        &self,
        owner: &Owner,
        dataset: &Dataset,
        finalizers: &[String],
    ) -> Result<(), Write> {
        self.may_write()?;
        let api: Api<Dataset> = Api::namespaced(self.client.clone(), &owner.namespace);
        let patch = json!({"metadata": {
            "uid": owner.uid, "resourceVersion": dataset.resource_version(), "finalizers": finalizers,
        }});
        let params = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_metadata(&owner.name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => Ok(()),
            // It is gone, with all its finalizers.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(of_dataset("change the finalizers of", owner, source)),
        }
    }

    /// Writes the status of a Dataset.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn set_status(&self, owner: &Owner, status: &Value) -> Result<(), Write> {
        self.may_write()?;
        let api: Api<Dataset> = Api::namespaced(self.client.clone(), &owner.namespace);
        let patch = json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": owner.name, "uid": owner.uid}, "status": status,
        });
        let params = PatchParams::apply(names::MANAGER).force();
        match api.patch_status(&owner.name, &params, &Patch::Apply(&patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(source) => Err(of_dataset("write the status of", owner, source)),
        }
    }

    /// Deletes a worker's pod, so that it is made anew.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn delete_pod(&self, owner: &Owner, name: &str, uid: &str) -> Result<(), Write> {
        self.may_write()?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &owner.namespace);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(source) => Err(Write::Ask {
                step: "delete",
                what: format!("Pod {}/{name}", owner.namespace),
                source: Box::new(source),
            }),
        }
    }

    /// Changes nothing of an object but the time of this, so that its controller looks at it now.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn nudge(&self, owner: &Owner, kind: Kind, name: &str) -> Result<(), Write> {
        self.may_write()?;
        let api = dynamic(&self.client, kind, Some(&owner.namespace));
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {NUDGED_ANNOTATION: now}}});
        // Another manager than ours: this is no part of what we want.
        let params = PatchParams {
            field_manager: Some(format!("{}-nudge", names::MANAGER)),
            ..PatchParams::default()
        };
        match api.patch(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(source) => Err(Write::Ask {
                step: "touch",
                what: format!("{} {}/{name}", kind.as_str(), owner.namespace),
                source: Box::new(source),
            }),
        }
    }

    /// Lets a volume be bound to a claim that was made anew: forgets the UID of the former one.
    ///
    /// # Errors
    /// Where the API server does not answer, or forbids it.
    pub async fn rebind(&self, wanted: &Wanted, former_claim_uid: &str) -> Result<(), Write> {
        self.may_write()?;
        let patch: json_patch::Patch = serde_json::from_value(json!([
            {"op": "test", "path": "/spec/claimRef/uid", "value": former_claim_uid},
            {"op": "remove", "path": "/spec/claimRef/uid"},
            {"op": "remove", "path": "/spec/claimRef/resourceVersion"},
        ]))
        .expect("this is a JSON patch");
        let api = self.api(wanted);
        match api.patch(&wanted.name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
            Err(source) => Err(ask("rebind", wanted, source)),
        }
    }

    fn api(&self, wanted: &Wanted) -> Api<DynamicObject> {
        dynamic(&self.client, wanted.kind, wanted.namespace.as_deref())
    }
}

/// An interface to objects of a kind.
pub fn dynamic(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = kind.api_version().split_once('/').unwrap_or(("", kind.api_version()));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind.as_str()));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn creation() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(names::MANAGER.to_owned()) }
}

fn ask(step: &'static str, wanted: &Wanted, source: kube::Error) -> Write {
    let name = match &wanted.namespace {
        Some(namespace) => format!("{namespace}/{}", wanted.name),
        None => wanted.name.clone(),
    };
    Write::Ask { step, what: format!("{} {name}", wanted.kind.as_str()), source: Box::new(source) }
}

fn of_dataset(step: &'static str, owner: &Owner, source: kube::Error) -> Write {
    Write::Ask { step, what: format!("Dataset {}/{}", owner.namespace, owner.name), source: Box::new(source) }
}
