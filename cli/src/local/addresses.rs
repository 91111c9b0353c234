//! Where does a worker serve?

use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a worker writes once it serves on all ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// Data port.
    pub data: String,
    /// Control port.
    pub control: String,
    /// Admin port.
    pub admin: String,
}

/// What a mount process writes once it has mounted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MountAddresses {
    /// Admin port.
    pub admin: String,
}

/// What is read before it is known which process has written it.
#[derive(Debug, Deserialize)]
struct Written<A> {
    pid: u32,
    #[serde(flatten)]
    addresses: A,
}

/// Reads the addresses that the process `pid` has written; `None` as long as it has not.
pub fn read<A: for<'a> Deserialize<'a>>(path: &Path, pid: u32) -> Option<A> {
    // It is written in one piece: whatever cannot be read is not there yet.
    let written: Written<A> = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (written.pid == pid).then_some(written.addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_another_process_are_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("addresses.json");
        assert_eq!(read::<Addresses>(&path, 7), None);
        std::fs::write(&path, r#"{"data": "h:1", "control": "h:2", "admin": "h:3", "pid": 7}"#).unwrap();
        assert_eq!(read::<Addresses>(&path, 7).unwrap().control, "h:2");
        assert_eq!(read::<MountAddresses>(&path, 7).unwrap().admin, "h:3");
        assert_eq!(read::<Addresses>(&path, 8), None);
    }
}
