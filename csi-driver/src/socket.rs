//! How does a unix socket stay there, whatever happens to the file?
//!
//! Kubelet's plugin folders are wiped by people and by re-installations of the node. A socket whose file is gone hears of
//! nobody any more, so the file is looked at, and the socket made anew.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// How often the file is looked at: kubelet's own retries take longer.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Connections that wait for the server; more wait in the kernel.
const BACKLOG: usize = 16;

/// A socket that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Its folder cannot be made.
    #[error("create folder of socket {path:?}")]
    CreateFolder {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something that is no socket has its name.
    #[error("{path:?} is there and is no socket: remove it, or name another path")]
    InTheWay {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be bound.
    #[error("listen on socket {path:?}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A socket and the identity of its file.
#[derive(Debug)]
pub struct KeptSocket {
    path: PathBuf,
    listener: UnixListener,
    file: (u64, u64),
}

impl KeptSocket {
    /// Makes the socket and its folder; a socket that a former process has left is replaced.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let (listener, file) = bind(path)?;
        Ok(Self { path: path.to_owned(), listener, file })
    }

    /// Gives its connections, and the task that accepts them and keeps the file there until the token is cancelled. The file
    /// stays: the next driver replaces it, and till then kubelet finds nobody there.
    pub fn serve(
        self,
        token: CancellationToken,
    ) -> (ReceiverStream<io::Result<UnixStream>>, impl Future<Output = ()> + Send + 'static) {
        let (connections, incoming) = mpsc::channel(BACKLOG);
        (ReceiverStream::new(incoming), self.accept(connections, token))
    }

    async fn accept(mut self, connections: mpsc::Sender<io::Result<UnixStream>>, token: CancellationToken) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = looks.tick() => {
                    self.keep();
                    continue;
                }
                () = token.cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    if connections.send(Ok(stream)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), error = %error, "accept on a socket");
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
            }
        }
    }

    /// Makes the socket anew where its file is gone. One that another process has put there is left: two that take it from
    /// each other would help nobody.
    fn keep(&mut self) {
        match identity(&self.path) {
            Ok(Some(file)) if file == self.file => {}
            Ok(Some(file)) => {
                tracing::warn!(path = %self.path.display(), "another process has taken over a socket");
                self.file = file;
            }
            Ok(None) => match bind(&self.path) {
                Ok((listener, file)) => {
                    tracing::info!(path = %self.path.display(), "a socket was removed and is made anew");
                    (self.listener, self.file) = (listener, file);
                }
                Err(error) => {
                    tracing::warn!(
                        error = millrace_daemon::causes::with_causes(&error),
                        "a socket was removed and cannot be made anew"
                    );
                }
            },
            Err(error) => tracing::warn!(path = %self.path.display(), error = %error, "look at a socket"),
        }
    }
}

/// Only root may connect: who publishes sees keys.
fn bind(path: &Path) -> Result<(UnixListener, (u64, u64)), SocketError> {
    let own = path.to_owned();
    let failed = |source| SocketError::Listen { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| SocketError::CreateFolder { path: own, source })?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => std::fs::remove_file(path).map_err(failed)?,
        Ok(_) => return Err(SocketError::InTheWay { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let file = identity(path).map_err(failed)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    Ok((listener, file))
}

fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_socket_comes_back_with_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugins/csi.sock");
        let token = CancellationToken::new();
        let (mut incoming, task) = KeptSocket::bind(&path).unwrap().serve(token.clone());
        let task = tokio::spawn(task);
        for _ in 0..3 {
            let mut _ours = None;
            while _ours.is_none() {
                _ours = UnixStream::connect(&path).await.ok();
                tokio::task::yield_now().await;
            }
            incoming.next().await.unwrap().unwrap();
            std::fs::remove_dir_all(dir.path().join("plugins")).unwrap();
        }
        token.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        drop(KeptSocket::bind(&path).unwrap());
        assert!(path.exists());
        drop(KeptSocket::bind(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert!(matches!(KeptSocket::bind(&path).unwrap_err(), SocketError::InTheWay { .. }));
    }
}
