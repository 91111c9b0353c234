//! What does kubelet ask for, and is it something that can be served? Pure checks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use millrace_api::keys::{Key, ParseKey};
use millrace_api::mount::Pod;
use millrace_api::names::{DATA_KEY_FILE, VOLUME_DATASET, VOLUME_NAMESPACE, VOLUME_UID, VOLUME_WORKERS};

use crate::csi::proto::volume_capability::AccessType;
use crate::csi::proto::volume_capability::access_mode::Mode;
use crate::csi::proto::{NodePublishVolumeRequest, VolumeCapability};

/// Longest attribute taken: a host name has at most 253 bytes.
const MAX_ATTRIBUTE_BYTES: usize = 512;

/// Keys of the volume context that kubelet adds (CSIDriver with podInfoOnMount).
const POD_KEYS: [&str; 3] =
    ["csi.storage.k8s.io/pod.namespace", "csi.storage.k8s.io/pod.name", "csi.storage.k8s.io/pod.uid"];

/// A dataset to be shown at a target, checked. Its `Debug` shows no key.
#[derive(Debug, Clone)]
pub struct Publish {
    /// Name of the volume, for kubelet.
    pub volume_id: String,
    /// Where it is to be shown.
    pub target: PathBuf,
    /// Which dataset.
    pub dataset: Dataset,
    /// Key of its workers' data port.
    pub key: Key,
    /// Who wants it, where kubelet says.
    pub pod: Option<Pod>,
    /// SELinux context of all files, where the volume says.
    pub context: Option<String>,
}

/// A Dataset as a volume's attributes name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// UID of the Dataset; fit for a file name.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Host and port where its workers are found.
    pub workers: String,
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Something that the specification requires is missing.
    #[error("{field} is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// The target is no absolute path.
    #[error("target_path {path:?} is not absolute")]
    RelativeTarget {
        /// The path.
        path: PathBuf,
    },
    /// A block device was asked for.
    #[error("volume_capability asks for a block device: a dataset is a file system (volumeMode: Filesystem)")]
    Block,
    /// A mount option that has no meaning here.
    #[error(
        "mount option {option:?} is not supported: only \"ro\" and \"context=...\" are, take it out of the volume's mountOptions"
    )]
    MountOption {
        /// The option.
        option: String,
    },
    /// An attribute of the volume is missing or unusable.
    #[error(
        "volume attribute {attribute:?} is {value:?}: use the PersistentVolume that the operator made for the Dataset"
    )]
    Attribute {
        /// Name of the attribute.
        attribute: &'static str,
        /// Its value, empty where it is missing.
        value: String,
    },
    /// There is no key.
    #[error(
        "the secret has no {DATA_KEY_FILE:?}: the volume's nodePublishSecretRef must name the Secret that the operator made for the Dataset"
    )]
    NoKey,
    /// The key is none.
    #[error("{DATA_KEY_FILE:?} of the secret")]
    ParseKey {
        /// What is wrong.
        source: ParseKey,
    },
}

impl Publish {
    /// Checks a request. All access modes are fine: each is served read-only.
    ///
    /// # Errors
    /// [`RequestError`] names the field and the cure.
    pub fn parse(request: NodePublishVolumeRequest) -> Result<Self, RequestError> {
        let NodePublishVolumeRequest {
            volume_id,
            target_path,
            volume_capability,
            secrets,
            volume_context,
            ..
        } = request;
        let volume_id = required("volume_id", volume_id)?;
        let target = target(&target_path)?;
        let capability = volume_capability.ok_or(RequestError::Missing { field: "volume_capability" })?;
        let context = check_capability(capability)?;
        let dataset = Dataset::parse(&volume_context)?;
        let key = secrets.get(DATA_KEY_FILE).ok_or(RequestError::NoKey)?;
        let key = Key::from_hex(key).map_err(|source| RequestError::ParseKey { source })?;
        Ok(Self { volume_id, target, dataset, key, pod: pod(&volume_context), context })
    }
}

impl Dataset {
    fn parse(attributes: &HashMap<String, String>) -> Result<Self, RequestError> {
        let get = |attribute: &'static str, is_fit: fn(&str) -> bool| {
            let value = attributes.get(attribute).map(String::as_str).unwrap_or_default();
            if value.is_empty() || value.len() > MAX_ATTRIBUTE_BYTES || !is_fit(value) {
                return Err(RequestError::Attribute { attribute, value: value.chars().take(100).collect() });
            }
            Ok(value.to_owned())
        };
        Ok(Self {
            uid: get(VOLUME_UID, is_file_name)?,
            namespace: get(VOLUME_NAMESPACE, is_file_name)?,
            name: get(VOLUME_DATASET, is_file_name)?,
            workers: get(VOLUME_WORKERS, is_address)?,
        })
    }

    /// Namespace and name.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A field of a request that must say something.
///
/// # Errors
/// [`RequestError::Missing`].
pub fn required(field: &'static str, value: String) -> Result<String, RequestError> {
    if value.is_empty() { Err(RequestError::Missing { field }) } else { Ok(value) }
}

/// A target path of a request.
///
/// # Errors
/// [`RequestError::Missing`] or [`RequestError::RelativeTarget`].
pub fn target(path: &str) -> Result<PathBuf, RequestError> {
    let path = PathBuf::from(required("target_path", path.to_owned())?);
    let is_plain =
        path.is_absolute() && !path.components().any(|part| part == std::path::Component::ParentDir);
    if !is_plain || path == Path::new("/") {
        return Err(RequestError::RelativeTarget { path });
    }
    Ok(path)
}

/// Gives the SELinux context, where one is asked for.
fn check_capability(capability: VolumeCapability) -> Result<Option<String>, RequestError> {
    let VolumeCapability { access_type, access_mode } = capability;
    let mount = match access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => return Err(RequestError::Block),
        None => return Err(RequestError::Missing { field: "access_type of volume_capability" }),
    };
    // One of a later specification is served read-only like all the others.
    if access_mode.is_none_or(|mode| mode.mode == i32::from(Mode::Unknown)) {
        return Err(RequestError::Missing { field: "access_mode of volume_capability" });
    }
    let mut context = None;
    // One flag may hold several options, as mount(8) takes them; quotes may hold commas of a context.
    for option in mount.mount_flags.iter().flat_map(|flag| options(flag)) {
        match option.split_once('=') {
            None if option == "ro" => {}
            Some(("context", label)) if !label.trim_matches('"').is_empty() => {
                context = Some(label.trim_matches('"').to_owned());
            }
            _ => return Err(RequestError::MountOption { option: option.to_owned() }),
        }
    }
    Ok(context)
}

/// Splits at commas outside quotes.
fn options(flag: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    flag.split(move |character| {
        is_quoted ^= character == '"';
        character == ',' && !is_quoted
    })
    .filter(|option| !option.is_empty())
}

fn pod(context: &HashMap<String, String>) -> Option<Pod> {
    let [namespace, name, uid] =
        POD_KEYS.map(|key| context.get(key).filter(|value| !value.is_empty()).cloned());
    Some(Pod { namespace: namespace?, name: name?, uid: uid? })
}

/// Letters, digits, `-` and `.` as Kubernetes names have them, and no path.
fn is_file_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::proto::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn request() -> NodePublishVolumeRequest {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        NodePublishVolumeRequest {
            volume_id: "uid-1".into(),
            target_path: "/var/lib/kubelet/pods/p/volumes/v/mount".into(),
            volume_capability: Some(VolumeCapability {
                access_type: Some(AccessType::Mount(MountVolume::default())),
                access_mode: Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() }),
            }),
            secrets: text(&[("data.key", &"ab".repeat(32))]),
            volume_context: text(&[
                ("dataset", "imagenet"),
                ("namespace", "vision"),
                ("uid", "uid-1"),
                ("workers", "millrace-imagenet.vision.svc:7420"),
                ("csi.storage.k8s.io/pod.namespace", "vision"),
                ("csi.storage.k8s.io/pod.name", "train-0"),
                ("csi.storage.k8s.io/pod.uid", "pod-uid"),
            ]),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn with_flags(flags: &[&str]) -> NodePublishVolumeRequest {
        let mut request = request();
        let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mount = MountVolume { mount_flags, ..MountVolume::default() };
        request.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Mount(mount));
        request
    }

    fn refusal(change: impl FnOnce(&mut NodePublishVolumeRequest)) -> String {
        let mut request = request();
        change(&mut request);
        Publish::parse(request).unwrap_err().to_string()
    }

    #[test]
    fn every_access_mode_is_taken() {
        for mode in 1..=7 {
            let mut request = request();
            request.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode });
            let publish = Publish::parse(request).unwrap();
            assert_eq!(publish.dataset.full_name(), "vision/imagenet");
            assert_eq!(publish.pod.unwrap().name, "train-0");
        }
    }

    #[test]
    fn what_is_missing_or_unusable_is_named() {
        assert!(refusal(|request| request.volume_id.clear()).contains("volume_id"));
        assert!(refusal(|request| request.target_path.clear()).contains("target_path"));
        assert!(refusal(|request| request.target_path = "a/b".into()).contains("\"a/b\""));
        assert!(refusal(|request| request.target_path = "/a/../b".into()).contains("\"/a/../b\""));
        assert!(refusal(|request| request.volume_capability = None).contains("volume_capability"));
        let block = AccessType::Block(BlockVolume {});
        let change = |request: &mut NodePublishVolumeRequest| {
            request.volume_capability.as_mut().unwrap().access_type = Some(block);
        };
        assert!(refusal(change).contains("volumeMode: Filesystem"));
        assert!(refusal(|request| request.secrets.clear()).contains("nodePublishSecretRef"));
        for (attribute, value) in
            [("uid", "../x"), ("workers", "host"), ("dataset", ""), ("uid", ".."), ("uid", "a/b")]
        {
            let refusal =
                refusal(|request| drop(request.volume_context.insert(attribute.into(), value.into())));
            assert!(refusal.contains(attribute) && refusal.contains(value), "{refusal}");
        }
    }

    #[test]
    fn a_key_never_shows_in_an_error() {
        let key = "cd".repeat(31);
        let mut request = request();
        request.secrets.insert("data.key".into(), key.clone());
        let error = Publish::parse(request).unwrap_err();
        assert!(!millrace_daemon::causes::with_causes(&error).contains(&key), "{error}");
    }

    #[test]
    fn a_context_is_passed_on_and_other_options_are_refused_by_name() {
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        let context = |flags: &[&str]| Publish::parse(with_flags(flags)).map(|publish| publish.context);
        assert_eq!(context(&["ro"]).unwrap(), None);
        assert_eq!(context(&["ro", &format!("context=\"{label}\"")]).unwrap().as_deref(), Some(label));
        assert_eq!(context(&["ro,context=a:b:c:s0"]).unwrap().as_deref(), Some("a:b:c:s0"));
        for option in ["rw", "noatime", "context=", "uid=0"] {
            let error = context(&[option]).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
