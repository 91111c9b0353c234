//! What do users do to Datasets while their operator is killed?

use std::collections::{BTreeMap, BTreeSet};

use millrace_api::names;
use millrace_tests::kubernetes::bucket::Bucket;
use millrace_tests::kubernetes::namespace::Namespace;
use millrace_tests::kubernetes::objects::{DATASET, POD, STATEFUL_SET};
use serde_json::{Value, json};

/// Kind Service.
pub const SERVICE: &str = "v1/Service";
/// Kind PodDisruptionBudget.
pub const BUDGET: &str = "policy/v1/PodDisruptionBudget";
/// Kind PersistentVolumeClaim.
pub const CLAIM: &str = "v1/PersistentVolumeClaim";
/// Kind Secret.
pub const SECRET: &str = "v1/Secret";

/// Most Datasets at a time.
const MAX_DATASETS: usize = 3;

/// Numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    /// Of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another one.
    pub fn another(&mut self) -> Self {
        Self(self.next())
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A Dataset as its user wants it.
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its workers.
    pub replicas: u64,
    /// The refresh that was asked for last.
    pub refresh: Option<String>,
    /// The warm-up that was asked for last.
    pub warm: Option<String>,
    /// UIDs of objects that somebody has deleted.
    pub deleted: BTreeSet<String>,
    /// What its objects were like when it was first served.
    pub shape: Option<BTreeMap<String, Value>>,
}

/// The Datasets of a namespace, and what is done to them.
pub struct Crowd<'a> {
    /// Where they are.
    pub space: &'a Namespace<'a>,
    /// Those that are to be there.
    pub wanted: Vec<Wanted>,
    /// What decides.
    pub dice: Dice,
    bucket: &'a Bucket,
    serial: u64,
}

impl<'a> Crowd<'a> {
    /// None yet.
    pub fn new(space: &'a Namespace<'a>, bucket: &'a Bucket) -> Self {
        Self { space, wanted: Vec::new(), dice: Dice::new(0), bucket, serial: 0 }
    }

    /// Does something, chosen at random; in words, what.
    pub fn act(&mut self) -> String {
        let can_create = self.wanted.len() < MAX_DATASETS;
        let can_delete = self.wanted.len() > 1;
        match self.dice.below(16) {
            _ if self.wanted.is_empty() => self.create(),
            0..3 if can_create => self.create(),
            3..6 => self.scale(),
            6..8 => self.refresh(),
            8..10 => self.warm(),
            10 if can_delete => self.delete(),
            11 if can_delete => self.tear(),
            _ => {
                let edit = self.dice.below(9);
                self.edit(edit)
            }
        }
    }

    /// Creates a Dataset.
    pub fn create(&mut self) -> String {
        let is_used = |name: &String| {
            self.wanted.iter().any(|wanted| wanted.name == *name) || self.space.get(DATASET, name).is_some()
        };
        let name = (0..).map(|number| format!("data-{number}")).find(|name| !is_used(name)).unwrap();
        let replicas = 1 + self.dice.below(2) as u64;
        self.space.dataset(
            &name,
            self.bucket,
            &format!("workers: {{replicas: {replicas}, cache: {{tiers: [{{medium: Disk, quota: 64Mi}}]}}}}"),
        );
        let uid = text(&self.space.get(DATASET, &name).unwrap()["metadata"]["uid"]);
        let said = format!("create {name} with {replicas}");
        let deleted = BTreeSet::new();
        self.wanted.push(Wanted { name, uid, replicas, refresh: None, warm: None, deleted, shape: None });
        said
    }

    fn any(&mut self) -> usize {
        self.dice.below(self.wanted.len())
    }

    fn scale(&mut self) -> String {
        let at = self.any();
        let wanted = &mut self.wanted[at];
        wanted.replicas = 3 - wanted.replicas;
        let change = json!({"spec": {"workers": {"replicas": wanted.replicas}}});
        self.space.merge(DATASET, &wanted.name, &change);
        format!("scale {} to {}", wanted.name, wanted.replicas)
    }

    /// Asks for a new listing.
    pub fn refresh(&mut self) -> String {
        let at = self.any();
        self.serial += 1;
        let (wanted, value) = (&mut self.wanted[at], self.serial.to_string());
        let change = json!({"metadata": {"annotations": {names::REFRESH_ANNOTATION: value}}});
        self.space.merge(DATASET, &wanted.name, &change);
        wanted.refresh = Some(value);
        format!("refresh {}", wanted.name)
    }

    fn warm(&mut self) -> String {
        let at = self.any();
        self.serial += 1;
        let (wanted, id) = (&mut self.wanted[at], self.serial.to_string());
        let request = json!({"id": id, "paths": ["/"]}).to_string();
        let change = json!({"metadata": {"annotations": {names::WARM_ANNOTATION: request}}});
        self.space.merge(DATASET, &wanted.name, &change);
        wanted.warm = Some(id);
        format!("warm {}", wanted.name)
    }

    /// Deletes a Dataset.
    pub fn delete(&mut self) -> String {
        let at = self.any();
        let Wanted { name, .. } = self.wanted.remove(at);
        self.space.delete(DATASET, &name);
        format!("delete {name}")
    }

    /// Deletes a Dataset and takes its finalizer away, as an impatient user does.
    fn tear(&mut self) -> String {
        let at = self.any();
        let Wanted { name, .. } = self.wanted.remove(at);
        self.space.delete(DATASET, &name);
        let change = json!({"metadata": {"finalizers": null}});
        // It is gone already where nobody had put a finalizer there.
        let _ = self.space.cluster.objects.try_merge(&self.space.name, DATASET, &name, &change);
        format!("tear {name} away")
    }

    /// Changes or deletes an object of a Dataset.
    pub fn edit(&mut self, edit: usize) -> String {
        let at = self.any();
        let name = self.wanted[at].name.clone();
        let workers = names::workers(&name);
        match edit {
            0 => self.delete_object(at, SERVICE, &workers),
            1 => self.delete_object(at, BUDGET, &workers),
            2 => self.delete_object(at, CLAIM, names::claim(&name)),
            3 => self.delete_object(at, STATEFUL_SET, &workers),
            4 => self.delete_object(at, SECRET, &names::data_secret(&name)),
            5 => self.delete_object(at, POD, &names::worker_pod(&name, 0)),
            6 => self.change(STATEFUL_SET, &workers, json!({"spec": {"replicas": 0}})),
            7 => self.change(BUDGET, &workers, json!({"spec": {"maxUnavailable": 2}})),
            _ => self.change(SERVICE, &workers, json!({"spec": {"publishNotReadyAddresses": false}})),
        }
    }

    fn delete_object(&mut self, at: usize, kind: &str, name: &str) -> String {
        let Some(object) = self.space.get(kind, name) else { return format!("no {kind} {name} to delete") };
        self.wanted[at].deleted.insert(text(&object["metadata"]["uid"]));
        self.space.delete(kind, name);
        format!("delete {kind} {name}")
    }

    fn change(&self, kind: &str, name: &str, change: Value) -> String {
        match self.space.cluster.objects.try_merge(&self.space.name, kind, name, &change) {
            Ok(()) => format!("change {kind} {name}"),
            // It may not be there yet, or just be going.
            Err(error) => format!("not change {kind} {name}: {error}"),
        }
    }
}

/// The text of a value; empty where it is none.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
