//! How do mount settings and announcements go over the control port?

use millrace_api::ids::VersionId;
use millrace_api::mount::{MODE_BITS, MountMode, MountSettings, Pod};

use crate::proto;

/// Permissions of files where none are said.
pub const DEFAULT_FILE_MODE: u16 = 0o444;

/// Permissions of directories where none are said.
pub const DEFAULT_DIR_MODE: u16 = 0o555;

/// Says why a message is not mount settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseMountSettings {
    /// Neither the message nor the call says which version.
    #[error("the mount settings name no version, and no version is in use")]
    NoVersion,
    /// The version is no id.
    #[error("the mount settings name the version {version:?}: expected 32 lower-case hexadecimal digits")]
    Version {
        /// The refused text.
        version: String,
    },
    /// A mode with other bits than permissions.
    #[error("the mount settings have {field} {mode:#o}: at most 0777 is possible")]
    Mode {
        /// Which one.
        field: &'static str,
        /// Its value.
        mode: u32,
    },
}

impl From<&MountSettings> for proto::MountSettings {
    fn from(settings: &MountSettings) -> Self {
        let MountSettings { version, node_cache_quota_bytes, uid, gid, file_mode, dir_mode, mode } =
            *settings;
        let (file_mode, dir_mode, mode) = (file_mode.into(), dir_mode.into(), mode.to_wire().into());
        Self { version: version.to_string(), node_cache_quota_bytes, uid, gid, file_mode, dir_mode, mode }
    }
}

impl proto::MountSettings {
    /// The settings, with what is not said filled in; `first` is the first of the versions in use.
    ///
    /// # Errors
    /// Where there is no version, or a value is out of range.
    pub fn parse(&self, first: Option<VersionId>) -> Result<MountSettings, ParseMountSettings> {
        let Self { version, node_cache_quota_bytes, uid, gid, file_mode, dir_mode, mode: mount_mode } = self;
        let version = if version.is_empty() {
            first.ok_or(ParseMountSettings::NoVersion)?
        } else {
            version.parse().map_err(|_| ParseMountSettings::Version { version: version.clone() })?
        };
        Ok(MountSettings {
            version,
            node_cache_quota_bytes: *node_cache_quota_bytes,
            uid: *uid,
            gid: *gid,
            file_mode: mode("file_mode", *file_mode, DEFAULT_FILE_MODE)?,
            dir_mode: mode("dir_mode", *dir_mode, DEFAULT_DIR_MODE)?,
            mode: u8::try_from(*mount_mode).map(MountMode::from_wire).unwrap_or_default(),
        })
    }
}

impl From<&Pod> for proto::Pod {
    fn from(pod: &Pod) -> Self {
        let Pod { namespace, name, uid } = pod.clone();
        Self { namespace, name, uid }
    }
}

fn mode(field: &'static str, mode: u32, default: u16) -> Result<u16, ParseMountSettings> {
    match u16::try_from(mode) {
        Ok(0) => Ok(default),
        Ok(bits) if bits & !MODE_BITS == 0 => Ok(bits),
        _ => Err(ParseMountSettings::Mode { field, mode }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> MountSettings {
        let version = VersionId([0xA1; 16]);
        let (file_mode, dir_mode) = (0o440, 0o550);
        let mode = MountMode::Packed;
        MountSettings {
            version,
            node_cache_quota_bytes: 1 << 40,
            uid: 1000,
            gid: 100,
            file_mode,
            dir_mode,
            mode,
        }
    }

    #[test]
    fn settings_read_back() {
        assert_eq!(proto::MountSettings::from(&settings()).parse(None), Ok(settings()));
    }

    #[test]
    fn what_is_not_said_is_filled_in() {
        let parsed = proto::MountSettings::default().parse(Some(VersionId([2; 16]))).unwrap();
        assert_eq!((parsed.version, parsed.file_mode, parsed.dir_mode), (VersionId([2; 16]), 0o444, 0o555));
        assert_eq!(proto::MountSettings::default().parse(None), Err(ParseMountSettings::NoVersion));
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let wrong = |change: fn(&mut proto::MountSettings)| {
            let mut message = proto::MountSettings::from(&settings());
            change(&mut message);
            message.parse(None).unwrap_err().to_string()
        };
        assert!(wrong(|settings| settings.version = "x".into()).contains("\"x\""));
        assert!(wrong(|settings| settings.file_mode = 0o4444).contains("file_mode 0o4444"));
        assert!(wrong(|settings| settings.dir_mode = 1 << 20).contains("dir_mode"));
    }
}
