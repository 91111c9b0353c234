//! What may a user write in a Dataset? The doc comments are the manual of the CRD.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mount::Mount;
use super::rules;
use super::sizes::{BlockSizeName, ByteSize};
use super::status::DatasetStatus;
use super::template::{TierVolume, WorkerTemplate};
use crate::block::BlockSize;

/// A dataset in object storage, cached by workers and mounted read-only. The bucket is never written to.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "millrace.dev",
    version = "v1alpha1",
    kind = "Dataset",
    namespaced,
    status = "DatasetStatus",
    shortname = "dts",
    category = "millrace",
    derive = "PartialEq",
    doc = "A dataset in object storage, cached by workers and mounted read-only. The bucket is never written to.",
    scale(
        spec_replicas_path = ".spec.workers.replicas",
        status_replicas_path = ".status.workers.replicas",
        label_selector_path = ".status.workers.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the dataset can be mounted and read."
    ),
    printcolumn(
        name = "Warm %",
        type_ = "integer",
        json_path = ".status.cached.percent",
        description = "Share of the bytes that workers hold."
    ),
    printcolumn(
        name = "Objects",
        type_ = "integer",
        json_path = ".status.version.objects",
        description = "Files of the current version."
    ),
    printcolumn(
        name = "Size",
        type_ = "integer",
        json_path = ".status.version.bytes",
        description = "Bytes of the current version."
    ),
    printcolumn(
        name = "Workers",
        type_ = "integer",
        json_path = ".status.workers.ready",
        description = "Workers that serve."
    ),
    printcolumn(
        name = "Mounts",
        type_ = "integer",
        json_path = ".status.mounts.pods",
        description = "Pods that have it mounted."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = rules::name_is_short(),
    cel
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::block_size_is_fixed(), validation = rules::media_are_fixed(), validation = rules::volumes_are_fixed())]
pub struct DatasetSpec {
    /// Where the data comes from: 1 to 16 parts of buckets, each at a folder of its own in the mount. A change makes the buckets be
    /// listed again, which makes a new version; mounts that are open stay at theirs.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(validation = rules::sources_do_not_overlap())]
    pub sources: Vec<Source>,

    /// The cache workers, which read the buckets and serve the mounts.
    #[serde(default)]
    pub workers: Workers,

    /// What workers load ahead of the first reader.
    #[serde(default)]
    pub warm_up: WarmUp,

    /// How the files look in the mount, and what each node keeps of them.
    #[serde(default)]
    pub mount: Mount,
}

/// A part of a bucket and its place in the mount.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Folder in the mount under which the objects appear, such as `/train`; `/` when it is the only source. Sources may not lie
    /// within each other. At most 512 characters.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(
        validation = rules::path_is_absolute(),
        validation = rules::path_has_no_last_slash(),
        validation = rules::path_is_normal()
    )]
    pub path: String,

    /// The part of a bucket.
    pub s3: S3,

    /// Globs of the objects to show, matched against the key below `prefix`: `*` and `?` do not match `/`, `**` does, `{a,b}`
    /// and `[a-z]` are alternatives. All objects when there are none. At most 32 globs of 256 characters. A change makes a new
    /// version at the next listing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = rules::globs_are_relative())]
    pub include: Vec<String>,

    /// Globs of the objects to leave out, of those that `include` lets in. Written and bounded likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = rules::globs_are_relative())]
    pub exclude: Vec<String>,
}

/// A part of a bucket, and how to reach it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::region_or_endpoint())]
pub struct S3 {
    /// Name of the bucket.
    #[schemars(length(min = 3, max = 63))]
    #[x_kube(validation = rules::bucket_is_a_name())]
    pub bucket: String,

    /// What the keys of the objects begin with: whole path segments, such as `train/`; it is not part of the path in the mount.
    /// Default: empty, the whole bucket. At most 1024 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = rules::prefix_is_whole_segments(), validation = rules::prefix_is_relative())]
    pub prefix: String,

    /// Region of the bucket, such as `eu-west-1`. Needed unless `endpoint` is given; with an `endpoint` it is what requests are
    /// signed for, `us-east-1` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 64))]
    #[x_kube(validation = rules::region_is_a_name())]
    pub region: Option<String>,

    /// URL of a server that speaks S3, without a path, such as `https://minio.storage:9000`. Default: AWS in `region`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 256))]
    #[x_kube(validation = rules::endpoint_is_a_url())]
    pub endpoint: Option<String>,

    /// Where the bucket's name goes in a request: `Path` (`https://host/bucket/key`) or `VirtualHosted`
    /// (`https://bucket.host/key`). Default: `Path` with an `endpoint`, else `VirtualHosted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Addressing")]
    pub addressing: Option<Addressing>,

    /// Whether requests agree to pay for a bucket whose owner lets the reader pay. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requester_pays: bool,

    /// Who the workers are to the bucket: at most one of the fields. With none, the chain of the AWS SDK finds
    /// credentials in the worker's environment, shared files and web identity.
    #[serde(default, skip_serializing_if = "Credentials::is_chain")]
    pub credentials: Credentials,
}

/// Where the bucket's name goes in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(
    missing_docs,
    reason = "a comment would make each variant a schema of its own; the field's comment has them"
)]
pub enum Addressing {
    Path,
    VirtualHosted,
}

/// Who the workers are to a bucket.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::one_credential())]
pub struct Credentials {
    /// A Secret in the Dataset's namespace. Its keys: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, with
    /// `AWS_SESSION_TOKEN` if they are temporary; or `AWS_ROLE_ARN` and `AWS_WEB_IDENTITY_TOKEN_FILE` (a path on the worker's
    /// machine), with `AWS_ROLE_SESSION_NAME` and `AWS_ENDPOINT_URL_STS` if need be. `ca.crt` holds the certificates
    /// of the endpoint's authority where the system does not know it. Changed keys are taken up within a minute, without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub secret_ref: Option<SecretRef>,

    /// A profile of the AWS configuration files that the workers see (`~/.aws/config`, or `AWS_CONFIG_FILE`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    pub profile: Option<String>,

    /// Requests are not signed: for public buckets. Written `anonymous: {}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Anonymous")]
    pub anonymous: Option<Anonymous>,
}

/// A Secret in the Dataset's namespace.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::secret_is_a_name())]
    pub name: String,
}

/// Requests are not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Anonymous {}

/// The cache workers.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// How many workers, 0 to 256. Default: 1. The number that `kubectl scale` sets. Each holds a share of the dataset; a change
    /// moves only the shares of the workers that come or go.
    #[serde(default = "Workers::default_replicas")]
    #[schemars(range(min = 0, max = 256))]
    pub replicas: i32,

    /// What each worker caches, and where.
    #[serde(default)]
    pub cache: Cache,

    /// Service account of the workers' pods, for sources without `credentials`: its annotation `eks.amazonaws.com/role-arn` names
    /// the role that they assume by web identity. Used in a cluster only. A change restarts the workers, as one of `template` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253))]
    #[x_kube(validation = rules::service_account_is_a_name())]
    pub service_account_name: Option<String>,

    /// What the pods of workers have beside what they need.
    #[serde(default, skip_serializing_if = "WorkerTemplate::is_empty")]
    pub template: WorkerTemplate,
}

/// What each worker caches, and where.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// Size of the pieces that large objects are cut into and small ones are packed into: a power of two, `1Mi` to `64Mi`.
    /// Default: `8Mi`. Fixed for the life of the Dataset, since all that is cached would be cached anew.
    #[serde(default)]
    pub block_size: BlockSizeName,

    /// What a full cache does with a block it does not have: `Never` keeps what it has and serves the rest from the bucket, so
    /// that each epoch of a shuffled reader finds the same share; `LRU` drops what was not read for longest. Default: `Never`.
    /// A change restarts the workers, which keep what they have.
    #[serde(default)]
    pub eviction: Eviction,

    /// Where blocks are kept, 1 to 4 places, fastest first. Default: 20Gi of Disk. Their number, order and media are fixed
    /// for the life of the Dataset; quotas may change.
    #[serde(default = "Cache::default_tiers")]
    #[schemars(length(min = 1, max = 4))]
    pub tiers: Vec<Tier>,
}

/// What a full cache does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(
    missing_docs,
    reason = "a comment would make each variant a schema of its own; the field's comment has them"
)]
pub enum Eviction {
    #[default]
    Never,
    #[serde(rename = "LRU")]
    Lru,
}

/// A place where each worker keeps blocks.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = rules::memory_has_no_claim())]
pub struct Tier {
    /// `Disk`, or `Memory` (tmpfs, which counts into the worker's memory limit and is empty after a reboot).
    pub medium: Medium,

    /// Most bytes that blocks may take here, for each worker: a size such as `200Gi`, at least one block. More drops nothing; less
    /// drops what is over. A disk is never filled to its last bytes, whatever the quota. A change restarts the workers, as one of
    /// `workers.template` does.
    pub quota: ByteSize,

    /// What the blocks are kept on, in a cluster. Default: `emptyDir: {}`, the only choice for `Memory`. Fixed for the life of the
    /// Dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TierVolume")]
    pub volume: Option<TierVolume>,
}

/// What a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(
    missing_docs,
    reason = "a comment would make each variant a schema of its own; the field's comment has them"
)]
pub enum Medium {
    Disk,
    Memory,
}

/// What workers load ahead.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// `Created`: as soon as the dataset is listed, and again for each new version; `Never`: what is read is cached, nothing else.
    /// Default: `Created`. A change to `Never` stops a warm-up that runs; what it loaded stays.
    #[serde(default)]
    pub when: WarmUpWhen,

    /// Files and folders of the mount to load. Default: `/`, everything. At most 64 of 1024 characters.
    #[serde(default = "WarmUp::default_paths")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 1024)))]
    #[x_kube(validation = rules::warm_up_paths_are_normal())]
    pub paths: Vec<String>,
}

/// When workers load ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(
    missing_docs,
    reason = "a comment would make each variant a schema of its own; the field's comment has them"
)]
pub enum WarmUpWhen {
    #[default]
    Created,
    Never,
}

impl Credentials {
    /// Whether none is named, so that the SDK's chain is asked.
    pub fn is_chain(&self) -> bool {
        let Self { secret_ref, profile, anonymous } = self;
        secret_ref.is_none() && profile.is_none() && anonymous.is_none()
    }
}

impl S3 {
    /// Where the bucket's name goes, with the default applied.
    pub fn addressing(&self) -> Addressing {
        let default = if self.endpoint.is_some() { Addressing::Path } else { Addressing::VirtualHosted };
        self.addressing.unwrap_or(default)
    }

    /// The region that requests are signed for, with the default applied.
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or("us-east-1")
    }
}

impl Cache {
    /// The block size.
    pub fn block_size(&self) -> BlockSize {
        self.block_size.block_size()
    }

    /// The quotas of all tiers of a medium together, bytes.
    pub fn quota_bytes(&self, medium: Medium) -> u64 {
        let of_medium = self.tiers.iter().filter(|tier| tier.medium == medium);
        of_medium.fold(0, |sum, tier| sum.saturating_add(tier.quota.bytes()))
    }

    /// Share of the blocks of one worker: its capacity in GiB, at least 1.
    pub fn weight(&self) -> u32 {
        let bytes = self.quota_bytes(Medium::Disk).saturating_add(self.quota_bytes(Medium::Memory));
        u32::try_from(bytes >> 30).unwrap_or(u32::MAX).max(1)
    }

    fn default_tiers() -> Vec<Tier> {
        vec![Tier { medium: Medium::Disk, quota: default_size("20Gi"), volume: None }]
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            block_size: BlockSizeName::default(),
            eviction: Eviction::default(),
            tiers: Self::default_tiers(),
        }
    }
}

impl Workers {
    fn default_replicas() -> i32 {
        1
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            replicas: Self::default_replicas(),
            cache: Cache::default(),
            service_account_name: None,
            template: WorkerTemplate::default(),
        }
    }
}

impl WarmUp {
    fn default_paths() -> Vec<String> {
        vec!["/".into()]
    }
}

impl Default for WarmUp {
    fn default() -> Self {
        Self { when: WarmUpWhen::default(), paths: Self::default_paths() }
    }
}

pub(super) fn default_size(text: &str) -> ByteSize {
    text.parse().expect("defaults are sizes, as a test shows")
}
