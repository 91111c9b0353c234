//! What are the processes of a Dataset told? Pure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use millrace_api::dataset::spec::{DatasetSpec, Eviction, Medium};
use millrace_api::placement::{MAX_WORKER_NAME_BYTES, MAX_WORKERS};
use sha2::{Digest, Sha256};

use super::addresses::Addresses;
use super::folder::{self, DatasetName, Folder};

/// A Dataset, as it runs here.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whose.
    pub name: DatasetName,
    /// The Dataset's UID.
    pub uid: String,
    /// What its user wants.
    pub spec: DatasetSpec,
    /// Names of the workers.
    pub workers: Vec<String>,
    /// Where to mount; absolute.
    pub mount_point: PathBuf,
    /// Which lines the processes log.
    pub log_filter: String,
}

/// Names of `count` workers. A Dataset's name that is too long for that ends in its hash.
pub fn worker_names(dataset: &str, count: usize) -> Vec<String> {
    // "-255" behind it.
    const LONGEST: usize = MAX_WORKER_NAME_BYTES - 4;
    let base = if dataset.len() <= LONGEST {
        dataset.to_owned()
    } else {
        let hash: String = Sha256::digest(dataset).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        // Names are ASCII.
        format!("{}-{hash}", dataset.get(..LONGEST - 9).unwrap_or_default())
    };
    (0..count).map(|index| format!("{base}-{index}")).collect()
}

/// How many workers to start: what the command says, else what the Dataset says.
///
/// # Errors
/// Names field, value and cure.
pub fn worker_count(spec: &DatasetSpec, asked: Option<usize>) -> anyhow::Result<usize> {
    let replicas = usize::try_from(spec.workers.replicas).unwrap_or(0);
    let count = asked.unwrap_or(replicas);
    ensure!(
        count > 0,
        "spec.workers.replicas: 0 workers serve nobody: give 1 or more there, or with --workers"
    );
    ensure!(count <= MAX_WORKERS, "--workers: {count} are too many: give at most {MAX_WORKERS}");
    Ok(count)
}

impl Plan {
    /// Arguments of a worker; it takes free ports, or those that it had before.
    pub fn worker_args(&self, folder: &Folder, worker: &str, former: Option<&Addresses>) -> Vec<OsString> {
        let dir = folder.worker_dir(worker);
        let mut args = Args::new("serve");
        args.flag("--name", worker);
        args.flag("--dataset-uid", &self.uid);
        let free = "127.0.0.1:0";
        args.flag("--data-address", former.map_or(free, |former| &former.data));
        args.flag("--control-address", former.map_or(free, |former| &former.control));
        args.flag("--admin-address", former.map_or(free, |former| &former.admin));
        args.flag("--addresses-file", folder.addresses_file(worker));
        args.flag("--data-key-file", folder.data_key_file());
        args.flag("--control-key-file", folder.control_key_file());
        args.flag("--credentials-dir", folder.credentials_dir());
        args.flag("--state-dir", dir.join("state"));
        let cache = &self.spec.workers.cache;
        for (at, tier) in cache.tiers.iter().enumerate() {
            let (medium, base) = match tier.medium {
                Medium::Disk => ("Disk", dir.clone()),
                Medium::Memory => ("Memory", folder::memory_dir(&self.uid).join(worker)),
            };
            let mut text = OsString::from(format!("medium={medium},dir="));
            text.push(base.join(format!("tier-{at}")));
            text.push(format!(",quota={}", tier.quota.bytes()));
            args.flag("--tier", text);
        }
        args.flag(
            "--eviction",
            match cache.eviction {
                Eviction::Never => "never",
                Eviction::Lru => "lru",
            },
        );
        args.flag("--log", &self.log_filter);
        args.0
    }

    /// Arguments of the mount process.
    pub fn mount_args(&self, folder: &Folder, version: &str) -> Vec<OsString> {
        let mount = &self.spec.mount;
        let mut args = Args::new("mount");
        args.flag("--dataset", &self.name.name);
        args.flag("--version", version);
        args.flag("--mount-point", &self.mount_point);
        args.flag("--membership-file", folder.membership_file());
        args.flag("--data-key-file", folder.data_key_file());
        args.flag("--index-dir", folder.index_dir());
        args.flag("--node-store", folder.node_store_dir());
        args.flag("--node-store-quota", mount.node_cache.quota.bytes().to_string());
        args.flag("--uid", mount.uid.to_string());
        args.flag("--gid", mount.gid.to_string());
        args.flag("--file-mode", format!("{:04o}", mount.file_mode.bits()));
        args.flag("--dir-mode", format!("{:04o}", mount.dir_mode.bits()));
        args.flag("--mode", mount.mode.name());
        args.flag("--admin-address", "127.0.0.1:0");
        args.flag("--addresses-file", folder.mount_addresses_file());
        args.flag("--log", &self.log_filter);
        args.0
    }
}

struct Args(Vec<OsString>);

impl Args {
    fn new(command: &str) -> Self {
        Self(vec![command.into()])
    }

    fn flag(&mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) {
        self.0.push(name.into());
        self.0.push(value.as_ref().to_owned());
    }
}

/// Whether a process with these arguments belongs to the Dataset of this folder.
pub fn belongs(args: &[&[u8]], folder: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let key = folder.join("data.key");
    args.windows(2).any(|pair| pair[0] == b"--data-key-file" && pair[1] == key.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::folder::Root;
    use millrace_api::dataset::manifest::Manifest;

    fn spec(yaml: &str) -> DatasetSpec {
        let head =
            "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {name: x}\nspec:\n  sources:\n";
        Manifest::parse(&format!("{head}{yaml}")).unwrap().dataset.spec
    }

    fn plan(yaml: &str) -> (Plan, Folder) {
        let name: DatasetName = "ns/x".parse().unwrap();
        let folder = Root::find(Some(Path::new("/s"))).unwrap().folder(&name);
        let plan = Plan {
            name,
            uid: "u".into(),
            spec: spec(yaml),
            workers: worker_names("x", 2),
            mount_point: "/m".into(),
            log_filter: "info".into(),
        };
        (plan, folder)
    }

    const TIERS: &str = "  - {path: /, s3: {bucket: abc, region: r}}
  workers: {cache: {eviction: LRU, tiers: [{medium: Memory, quota: 1Gi}, {medium: Disk, quota: 3Gi}]}}
  mount: {uid: 7, fileMode: \"0640\", nodeCache: {quota: 1Gi}}";

    fn value<'a>(args: &'a [OsString], flag: &str) -> Vec<&'a str> {
        let pairs = args.windows(2).filter(|pair| pair[0] == flag);
        pairs.map(|pair| pair[1].to_str().unwrap()).collect()
    }

    #[test]
    fn a_worker_is_told_its_tiers_in_order_and_its_former_ports() {
        let (plan, folder) = plan(TIERS);
        let args = plan.worker_args(&folder, "x-0", None);
        assert_eq!(
            value(&args, "--tier"),
            [
                "medium=Memory,dir=/dev/shm/millrace-u/x-0/tier-0,quota=1073741824",
                "medium=Disk,dir=/s/ns/x/workers/x-0/tier-1,quota=3221225472"
            ]
        );
        assert_eq!(
            (value(&args, "--eviction"), value(&args, "--data-address")),
            (vec!["lru"], vec!["127.0.0.1:0"])
        );
        let former = Addresses { data: "h:1".into(), control: "h:2".into(), admin: "h:3".into() };
        let args = plan.worker_args(&folder, "x-0", Some(&former));
        assert_eq!(
            (value(&args, "--data-address"), value(&args, "--admin-address")),
            (vec!["h:1"], vec!["h:3"])
        );
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_encoded_bytes()).collect();
        assert!(belongs(&args, folder.path()) && !belongs(&args, Path::new("/s/ns/y")));
    }

    #[test]
    fn a_mount_is_told_owner_modes_and_quota() {
        let (plan, folder) = plan(TIERS);
        let args = plan.mount_args(&folder, "ab");
        assert_eq!((value(&args, "--uid"), value(&args, "--file-mode")), (vec!["7"], vec!["0640"]));
        assert_eq!((value(&args, "--dir-mode"), value(&args, "--version")), (vec!["0555"], vec!["ab"]));
        assert_eq!(value(&args, "--node-store-quota"), ["1073741824"]);
    }

    #[test]
    fn weight_is_the_capacity_and_never_nothing() {
        assert_eq!(plan(TIERS).0.spec.workers.cache.weight(), 4);
        let small = spec(
            "  - {path: /, s3: {bucket: abc, region: r}}\n  workers: {cache: {tiers: [{medium: Disk, quota: 8Mi}]}}",
        );
        assert_eq!(small.workers.cache.weight(), 1);
    }

    #[test]
    fn names_of_workers_are_labels_whatever_the_dataset_is_called() {
        assert_eq!(worker_names("x", 2), ["x-0", "x-1"]);
        let (long, other) = ("a".repeat(63), format!("{}b", "a".repeat(62)));
        let names = worker_names(&long, 256);
        assert!(names.iter().all(|name| name.len() <= MAX_WORKER_NAME_BYTES));
        assert_ne!(names[0], worker_names(&other, 1)[0]);
    }

    #[test]
    fn no_workers_and_too_many_are_refused() {
        let none = spec("  - {path: /, s3: {bucket: abc, region: r}}\n  workers: {replicas: 0}");
        assert!(worker_count(&none, None).unwrap_err().to_string().contains("spec.workers.replicas"));
        assert_eq!(worker_count(&none, Some(2)).unwrap(), 2);
        assert!(worker_count(&none, Some(257)).unwrap_err().to_string().contains("257"));
    }
}
