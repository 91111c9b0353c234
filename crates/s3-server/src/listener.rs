//! Which connections are accepted, and until when are they served?

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{Connection, Line};
use crate::service::Service;

/// A client that has not finished its TLS handshake by then never will.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Between two tries to listen again after an outage, or to accept after an error (too many open files).
const PAUSE: Duration = Duration::from_millis(10);

/// Accepts connections at one address.
pub(crate) struct Listener {
    pub address: SocketAddr,
    pub service: Arc<Service>,
    pub tls: Option<TlsAcceptor>,
    /// Connections may end their answers.
    pub stop: CancellationToken,
    /// Connections are reset.
    pub abort: CancellationToken,
    pub tasks: TaskTracker,
}

impl Listener {
    /// Serves until stopped; closes the socket for the time of an outage.
    pub async fn run(self, socket: TcpListener) {
        let mut socket = Some(socket);
        while let Some(listening) = socket.take() {
            let connections = self.abort.child_token();
            tokio::select! {
                () = self.accept(&listening, &connections) => {}
                () = self.stop.cancelled() => return,
                _ = self.service.outage.refused() => {}
            }
            drop(listening);
            connections.cancel();
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.service.outage.accepted() => {}
            }
            socket = self.bind_again().await;
        }
    }

    async fn bind_again(&self) -> Option<TcpListener> {
        loop {
            match TcpListener::bind(self.address).await {
                Ok(socket) => return Some(socket),
                Err(err) => tracing::warn!(address = %self.address, error = %err, "not listening again yet"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn accept(&self, socket: &TcpListener, connections: &CancellationToken) {
        loop {
            match socket.accept().await {
                Ok((stream, _)) => {
                    self.service.counters.connection();
                    let line = Line::default();
                    let lifetime = Lifetime { stop: self.stop.clone(), abort: connections.clone(), line };
                    self.tasks.spawn(serve(stream, self.tls.clone(), self.service.clone(), lifetime));
                }
                Err(err) => {
                    tracing::warn!(address = %self.address, error = %err, "connection not accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// What ends a connection from our side.
struct Lifetime {
    stop: CancellationToken,
    abort: CancellationToken,
    line: Line,
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, service: Arc<Service>, lifetime: Lifetime) {
    if let Err(err) = stream.set_nodelay(true) {
        tracing::debug!(error = %err, "connection gone before it was served");
        return;
    }
    let connection = Connection::new(stream, lifetime.line.ending.clone());
    match tls {
        None => converse(connection, service, lifetime).await,
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE, acceptor.accept(connection)).await {
            Ok(Ok(secured)) => converse(secured, service, lifetime).await,
            Ok(Err(err)) => tracing::debug!(error = %err, "TLS handshake refused"),
            Err(_) => tracing::debug!("TLS handshake not finished in time"),
        },
    }
}

async fn converse<IO>(io: IO, service: Arc<Service>, lifetime: Lifetime)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Lifetime { stop, abort, line } = lifetime;
    let answers = {
        let line = line.clone();
        service_fn(move |request| {
            let (service, line) = (service.clone(), line.clone());
            async move { service.answer(request, &line).await }
        })
    };
    let conversation = http1::Builder::new().serve_connection(TokioIo::new(io), answers);
    tokio::pin!(conversation);
    let ended = tokio::select! {
        ended = conversation.as_mut() => Some(ended),
        () = abort.cancelled() => None,
        () = stop.cancelled() => {
            conversation.as_mut().graceful_shutdown();
            tokio::select! {
                ended = conversation.as_mut() => Some(ended),
                () = abort.cancelled() => None,
            }
        }
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(err)) => tracing::debug!(error = %err, "connection ended"),
        None => line.ending.reset(),
    }
}
