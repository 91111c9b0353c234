//! The FUSE kernel protocol, from an open descriptor on.
//!
//! A [`Session`] begins on a device that somebody else has mounted, either by answering the kernel's INIT or by
//! taking over a connection that has had it, and serves a [`Filesystem`] on several threads. It knows nothing
//! of datasets and makes no mount syscall. The protocol's structs stay inside.

mod abi;
mod backing;
mod capabilities;
mod channel;
mod directory;
mod dispatch;
mod filesystem;
mod in_flight;
mod interruption;
mod metrics;
mod negotiate;
mod node;
mod notify;
mod opcode;
mod open_nodes;
mod open_record;
mod open_table;
mod reply;
mod request;
mod serve;
mod session;

pub use backing::{Backing, BackingId};
pub use capabilities::Capabilities;
pub use directory::{DirBuffer, DirPlusBuffer};
pub use filesystem::{Filesystem, OpenMode, Opened, OpenedDir, ReadRequest, SetAttr, SetTime, open_at_once};
pub use interruption::Interruption;
pub use metrics::{ErrorClass, MetricsSnapshot};
pub use negotiate::{Negotiated, Readdirplus, UnsupportedKernel, Wanted};
pub use node::{Attr, Entry, FileHandle, Kind, Lookup, NodeId, Statfs};
pub use notify::{Notifier, NotifyError};
pub use opcode::Opcode;
pub use open_table::{Counts, Held, Idle, NotOpened, OpenTable, OpenTableError};
pub use reply::{OpenReply, ReadReply};
pub use request::{Caller, ParseError};
/// Error numbers as the file system gives them.
pub use rustix::io::Errno;
pub use serve::{End, RunError, Running};
pub use session::{Session, SessionError};
