//! With which options is a dataset mounted?

use std::os::fd::RawFd;

/// The part of the file system's type behind `fuse.`, as `mount` and `df` show it.
pub const SUBTYPE: &str = "millrace";
/// Most bytes of one read request: what 256 pages hold, the most the kernel sends by default.
const MAX_READ_BYTES: u32 = 1024 * 1024;

/// What differs from mount to mount. All are read-only, without devices and set-uid programs, and have their
/// permissions checked by the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MountOptions {
    /// Shown as the source of the mount.
    pub source: String,
    /// Whether other users than the one who mounts may look in. An ordinary user may only ask for it where
    /// `/etc/fuse.conf` says `user_allow_other`.
    pub is_shared: bool,
    /// SELinux context of all files; only root may say it, to a kernel with SELinux.
    pub context: Option<String>,
}

impl MountOptions {
    /// Gives the options for mount(2) over this descriptor.
    pub(super) fn for_kernel(&self, device: RawFd, uid: u32, gid: u32) -> String {
        let shared = if self.is_shared { ",allow_other" } else { "" };
        // Quoted, for categories are separated by commas.
        let context =
            self.context.iter().map(|context| format!(",context=\"{context}\"")).collect::<String>();
        format!(
            "fd={device},rootmode=40000,user_id={uid},group_id={gid},default_permissions,\
             max_read={MAX_READ_BYTES}{shared}{context}"
        )
    }

    /// Gives the value of `-o` for fusermount3, which adds the descriptor and the user itself.
    pub(super) fn for_fusermount(&self) -> String {
        let shared = if self.is_shared { ",allow_other" } else { "" };
        // Commas end an option, and backslashes keep them from it.
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        format!(
            "ro,nosuid,nodev,fsname={source},subtype={SUBTYPE},default_permissions,\
             max_read={MAX_READ_BYTES}{shared}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_and_helper_get_the_same_wishes() {
        let options = MountOptions { source: "a,b".into(), is_shared: true, context: None };
        assert_eq!(
            options.for_kernel(7, 1, 2),
            "fd=7,rootmode=40000,user_id=1,group_id=2,default_permissions,max_read=1048576,allow_other"
        );
        assert_eq!(
            options.for_fusermount(),
            "ro,nosuid,nodev,fsname=a\\,b,subtype=millrace,default_permissions,max_read=1048576,allow_other"
        );
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        let labelled = MountOptions { context: Some(label.into()), ..options.clone() };
        assert!(labelled.for_kernel(7, 1, 2).ends_with(&format!(",allow_other,context=\"{label}\"")));
        let alone = MountOptions { is_shared: false, ..options };
        assert!(!alone.for_kernel(7, 1, 2).contains("allow_other"));
        assert!(!alone.for_fusermount().contains("allow_other"));
    }
}
