//! How do mount settings and announcements look as bytes? The tables stand with requests and answers.

use super::bytes::{DecodeFrame, Reader, put_text};
use crate::ids::VersionId;
use crate::mount::{
    Announce, MAX_LISTED_PODS, MAX_NAMESPACE_BYTES, MAX_POD_UID_BYTES, MAX_SUBDOMAIN_BYTES, MODE_BITS,
    MountMode, MountSettings, Pod,
};

pub(super) fn put_settings(out: &mut Vec<u8>, settings: &MountSettings) {
    let MountSettings { version, node_cache_quota_bytes, uid, gid, file_mode, dir_mode, mode } = settings;
    out.extend_from_slice(&version.0);
    out.extend_from_slice(&node_cache_quota_bytes.to_le_bytes());
    out.extend_from_slice(&uid.to_le_bytes());
    out.extend_from_slice(&gid.to_le_bytes());
    out.extend_from_slice(&file_mode.to_le_bytes());
    out.extend_from_slice(&dir_mode.to_le_bytes());
    out.push(mode.to_wire());
}

pub(super) fn take_settings(reader: &mut Reader<'_>) -> Result<MountSettings, DecodeFrame> {
    let settings = MountSettings {
        version: VersionId(reader.array("version")?),
        node_cache_quota_bytes: reader.u64("node cache quota")?,
        uid: reader.u32("uid")?,
        gid: reader.u32("gid")?,
        file_mode: reader.u16("file mode")?,
        dir_mode: reader.u16("dir mode")?,
        // The first builds end here.
        mode: if reader.is_empty() { MountMode::Auto } else { MountMode::from_wire(reader.u8("mode")?) },
    };
    for (field, mode) in [("file mode", settings.file_mode), ("dir mode", settings.dir_mode)] {
        if mode & !MODE_BITS != 0 {
            return Err(reader.out_of_range(field, mode.into()));
        }
    }
    Ok(settings)
}

/// Pods past the bound are left out; `pod_count` still counts them.
pub(super) fn put_announce(out: &mut Vec<u8>, announce: &Announce) {
    let Announce { node, version, pods, pod_count } = announce;
    let pods = &pods[..pods.len().min(MAX_LISTED_PODS)];
    let pod_count = (*pod_count).max(pods.len() as u32);
    out.extend_from_slice(&version.0);
    out.extend_from_slice(&pod_count.to_le_bytes());
    put_text(out, node, MAX_SUBDOMAIN_BYTES);
    out.extend_from_slice(&(pods.len() as u16).to_le_bytes());
    for Pod { namespace, name, uid } in pods {
        put_text(out, namespace, MAX_NAMESPACE_BYTES);
        put_text(out, name, MAX_SUBDOMAIN_BYTES);
        put_text(out, uid, MAX_POD_UID_BYTES);
    }
}

pub(super) fn take_announce(reader: &mut Reader<'_>) -> Result<Announce, DecodeFrame> {
    let version = VersionId(reader.array("version")?);
    let pod_count = reader.u32("pod count")?;
    let node = reader.text(MAX_SUBDOMAIN_BYTES, "node")?.to_owned();
    let listed = usize::from(reader.u16("pods listed")?);
    if listed > MAX_LISTED_PODS || listed as u64 > u64::from(pod_count) {
        return Err(reader.out_of_range("pods listed", listed as u64));
    }
    let mut pods = Vec::with_capacity(listed);
    for _ in 0..listed {
        pods.push(Pod {
            namespace: reader.text(MAX_NAMESPACE_BYTES, "namespace")?.to_owned(),
            name: reader.text(MAX_SUBDOMAIN_BYTES, "name")?.to_owned(),
            uid: reader.text(MAX_POD_UID_BYTES, "uid")?.to_owned(),
        });
    }
    Ok(Announce { node, version, pods, pod_count })
}
