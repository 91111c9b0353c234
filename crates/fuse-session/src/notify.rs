//! How is the kernel told to forget, to learn, or to ask again?

use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, notify};
use crate::channel::Channel;
use crate::node::NodeId;

/// A notification that the kernel did not take.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("send notification {name} to the kernel")]
pub struct NotifyError {
    /// Name of the notification.
    pub name: &'static str,
    /// What the kernel said: ENOENT when it does not know the node or name (nothing to forget), EINVAL when it does not
    /// know the notification, ENODEV when the mount is gone.
    #[source]
    pub source: Errno,
}

/// Sends notifications over a connection.
///
/// Invalidations wait for requests on the same pages or directory that are in flight: never call them from a method of
/// the file system, nor from a thread that answers are waiting for.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Channel>);

impl Notifier {
    pub(crate) fn new(channel: &Arc<Channel>) -> Self {
        Self(Arc::clone(channel))
    }

    /// Drops the attributes of a node and its cached pages in a range; a length of 0 reaches to the end.
    ///
    /// # Errors
    /// [`NotifyError`].
    pub fn inval_inode(&self, node: NodeId, offset: i64, length: i64) -> Result<(), NotifyError> {
        let body = abi::NotifyInvalInode { node: node.0, offset, length };
        self.send("inval_inode", notify::INVAL_INODE, &body, &[])
    }

    /// Drops a name, so that it is looked up again.
    ///
    /// # Errors
    /// [`NotifyError`].
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> Result<(), NotifyError> {
        let body = abi::NotifyInvalEntry { parent: parent.0, name_len: length(name)?, flags: 0 };
        self.send("inval_entry", notify::INVAL_ENTRY, &body, &[name, &[0]])
    }

    /// Drops a name that was removed, and tells those who watch it.
    ///
    /// # Errors
    /// [`NotifyError`].
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &[u8]) -> Result<(), NotifyError> {
        let body =
            abi::NotifyDelete { parent: parent.0, child: child.0, name_len: length(name)?, padding: 0 };
        self.send("delete", notify::DELETE, &body, &[name, &[0]])
    }

    /// Puts content in the page cache of a node that the kernel knows.
    ///
    /// # Errors
    /// [`NotifyError`].
    pub fn store(&self, node: NodeId, offset: u64, bytes: &[u8]) -> Result<(), NotifyError> {
        let body = abi::NotifyStore { node: node.0, offset, size: length(bytes)?, padding: 0 };
        self.send("store", notify::STORE, &body, &[bytes])
    }

    /// Has the kernel send again every request that was taken and not answered, with another id; answers to the first
    /// ids come too late from now on. For the successor of a process that died.
    ///
    /// # Errors
    /// [`NotifyError`]; EINVAL before Linux 6.9.
    pub fn resend(&self) -> Result<(), NotifyError> {
        self.send("resend", notify::RESEND, &[0u8; 0], &[])
    }

    /// Has the kernel look up again every name it knows, each when it is next used.
    ///
    /// # Errors
    /// [`NotifyError`]; EINVAL before Linux 6.16.
    pub fn inc_epoch(&self) -> Result<(), NotifyError> {
        self.send("inc_epoch", notify::INC_EPOCH, &[0u8; 0], &[])
    }

    fn send<T: IntoBytes + Immutable>(
        &self,
        name: &'static str,
        code: i32,
        body: &T,
        tail: &[&[u8]],
    ) -> Result<(), NotifyError> {
        let pieces: Vec<&[u8]> = std::iter::once(body.as_bytes()).chain(tail.iter().copied()).collect();
        self.0.send(0, code, &pieces).map_err(|source| NotifyError { name, source })
    }
}

fn length(bytes: &[u8]) -> Result<u32, NotifyError> {
    u32::try_from(bytes.len()).map_err(|_| NotifyError { name: "too long", source: Errno::MSGSIZE })
}
