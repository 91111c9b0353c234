//! How does a test run an operator of its own on the cluster: one that it can kill where it likes?
//!
//! The installed operator stays up and answers webhooks, and does not reconcile: a lease that somebody else renews keeps it from
//! it. Should the test die, the lease runs out, and the installed operator goes on.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::cluster::{Cluster, SYSTEM};
use super::objects::POD;
use crate::program::{self, Program};

/// Kind Lease.
const LEASE: &str = "coordination.k8s.io/v1/Lease";

/// Lease of the installed operator.
const INSTALLED: &str = "millrace-operator";

/// Lease of a test's operator, and the role that lets it hold it.
const OURS: &str = "millrace-operator-tests";

/// How often the lease is renewed that keeps the installed operator away; it lasts for 10 s.
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// For the installed operator to see that it does not lead, or that it does again.
const NOTICED: Duration = Duration::from_secs(20);

/// The place of the one operator that reconciles: a test has taken it, and gives it back with this value.
pub struct OwnOperator<'a> {
    cluster: &'a Cluster,
    folder: TempDir,
    renewed: Instant,
    renewals: u64,
}

impl<'a> OwnOperator<'a> {
    /// Keeps the installed operator from reconciling. The test must have the cluster alone.
    pub fn take_over(cluster: &'a Cluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig(cluster)).unwrap();
        cluster.objects.apply(SYSTEM, &role());
        let mut own = Self { cluster, folder, renewed: Instant::now(), renewals: 0 };
        own.renew_now();
        program::until("the installed operator does not lead", NOTICED, || {
            own.renew();
            leaders(cluster) == 0
        });
        own
    }

    /// Keeps the installed operator away; called at least every few seconds.
    pub fn renew(&mut self) {
        if self.renewed.elapsed() >= RENEW_EVERY {
            self.renew_now();
        }
    }

    fn renew_now(&mut self) {
        self.renewals += 1;
        // Another name each time: a lease that does not change is one whose holder has died.
        let holder = format!("{OURS}-{}", self.renewals);
        self.cluster.objects.merge(SYSTEM, LEASE, INSTALLED, &json!({"spec": {"holderIdentity": holder}}));
        self.renewed = Instant::now();
    }

    /// Starts an operator that ends where `fault` says, with the rights of the installed one. What it logs goes behind what is in
    /// the log.
    pub fn start(&mut self, fault: Option<&str>) -> Program {
        self.renew();
        // As if the lease of one that was killed had run out, for which nobody needs to wait.
        self.cluster.objects.delete(SYSTEM, LEASE, OURS);
        let installed = self.cluster.objects.get(SYSTEM, "apps/v1/Deployment", "millrace-operator").unwrap();
        let container = &installed["spec"]["template"]["spec"]["containers"][0];
        let mut command = program::command(binary());
        command.args(["serve", "--webhook-address=127.0.0.1:0", "--admin-address=127.0.0.1:0"]);
        command.arg(format!("--lease-name={OURS}"));
        command.env("KUBECONFIG", self.folder.path().join("kubeconfig")).env("POD_NAME", OURS);
        command.env("MILLRACE_NAMESPACE", SYSTEM);
        for name in ["MILLRACE_WORKER_IMAGE", "MILLRACE_WORKER_IMAGE_PULL_POLICY"] {
            command.env(name, environment(container, name));
        }
        if let Some(fault) = fault {
            command.env("MILLRACE_FAULT_POINT", fault);
        }
        Program::start(&mut command, &self.log())
    }

    /// Where operators log to.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Gives the place back; returns once the installed operator reconciles.
    pub fn give_back(self) {
        let cluster = self.cluster;
        drop(self);
        program::until("the installed operator leads again", NOTICED, || leaders(cluster) == 1);
    }
}

impl Drop for OwnOperator<'_> {
    fn drop(&mut self) {
        let objects = &self.cluster.objects;
        let released = objects.try_merge(SYSTEM, LEASE, INSTALLED, &json!({"spec": {"holderIdentity": ""}}));
        if let Err(error) = released {
            eprintln!("lease {INSTALLED} is not given back, and runs out: {error}");
        }
        for (kind, name) in [
            (LEASE, OURS),
            ("rbac.authorization.k8s.io/v1/RoleBinding", OURS),
            ("rbac.authorization.k8s.io/v1/Role", OURS),
        ] {
            if let Err(error) = objects.try_delete(SYSTEM, kind, name) {
                eprintln!("{kind} {name} is left: {error}");
            }
        }
    }
}

/// The program, which only those build who want it.
fn binary() -> PathBuf {
    let name = "operator-fault-points";
    let own = std::env::current_exe().expect("a test knows its own path");
    let path = own.parent().and_then(Path::parent).expect("target/.../release/deps").join(name);
    assert!(
        path.exists(),
        "{path:?} is missing: cargo build --release --workspace --bin {name} --features millrace-operator/fault-points"
    );
    path
}

/// What is needed to be the operator's service account.
fn kubeconfig(cluster: &Cluster) -> String {
    let token = ["create", "token", "millrace-operator", "-n", SYSTEM, "--duration=1h"];
    let output = cluster.kubectl().args(token).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let token = String::from_utf8(output.stdout).unwrap();
    let admin = std::fs::read_to_string(&cluster.paths.kubeconfig).unwrap();
    let mut config: serde_yaml::Value = serde_yaml::from_str(&admin).unwrap();
    let user = serde_yaml::to_value(json!({"token": token.trim()})).unwrap();
    config["users"][0]["user"] = user;
    serde_yaml::to_string(&config).unwrap()
}

fn role() -> String {
    let group = "rbac.authorization.k8s.io";
    format!(
        "{{apiVersion: {group}/v1, kind: Role, metadata: {{name: {OURS}}}, rules: [{{apiGroups: [coordination.k8s.io], \
         resources: [leases], resourceNames: [{OURS}], verbs: [get, update]}}]}}\n---\n\
         {{apiVersion: {group}/v1, kind: RoleBinding, metadata: {{name: {OURS}}}, roleRef: {{apiGroup: {group}, kind: Role, \
         name: {OURS}}}, subjects: [{{kind: ServiceAccount, name: millrace-operator, namespace: {SYSTEM}}}]}}"
    )
}

fn environment(container: &Value, name: &str) -> String {
    let all = container["env"].as_array().into_iter().flatten();
    let value = all.filter(|one| one["name"] == name).find_map(|one| one["value"].as_str());
    value.unwrap_or_else(|| panic!("the installed operator has no {name}")).to_owned()
}

/// How many installed operators say that they lead; many where one does not say.
fn leaders(cluster: &Cluster) -> usize {
    let pods = cluster.objects.list(SYSTEM, POD, "app.kubernetes.io/component=operator");
    let leads = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{name}:7432/proxy/metrics");
        let metrics = cluster.objects.raw(&path).ok()?;
        let value = metrics.lines().find_map(|line| line.strip_prefix("operator_is_leader "))?;
        Some(usize::from(value.trim() != "0"))
    };
    pods.iter().map(|pod| leads(pod).unwrap_or(usize::MAX / 64)).sum()
}
