//! How is a control port served to holders of the control key only?

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body as HttpBody, Frame};
use millrace_api::keys::Key;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::server::NamedService;
use tonic::transport::Server;

use crate::proof::{AdmitCall, Call, Seen, now_ms};
use crate::proto::control_server::{Control, ControlServer};

/// Longest request, bytes: 10,000 paths to warm of 400 bytes each.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// How often a caller that sends nothing is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long it may take to say so.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls at once on one connection: a composer has one status stream and a few calls.
const MAX_STREAMS: u32 = 64;

/// How long connections may take to end after a stop.
const GRACE: Duration = Duration::from_secs(1);

/// Says why a control port is no longer served.
#[derive(Debug, thiserror::Error)]
#[error("serve the control port")]
pub struct ServeControl {
    #[source]
    source: tonic::transport::Error,
}

/// Serves a control port until `shutdown`, which ends all answers, streams too, with `Unavailable`.
///
/// # Errors
/// Where the transport fails as a whole; a connection that fails ends alone.
pub async fn serve<S: Control>(
    listener: TcpListener,
    key: Key,
    service: S,
    shutdown: CancellationToken,
) -> Result<(), ServeControl> {
    let service = ControlServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .tcp_nodelay(true)
        .add_service(KeyCheck::new(service, key, shutdown.clone()))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), shutdown.clone().cancelled_owned());
    let late = async {
        shutdown.cancelled().await;
        sleep(GRACE).await;
    };
    tokio::select! {
        served = server => served.map_err(|source| ServeControl { source }),
        () = late => Ok(()),
    }
}

/// Lets calls through to `S` that prove the control key, and proves it in the answer.
#[derive(Debug, Clone)]
pub struct KeyCheck<S> {
    inner: S,
    key: Key,
    seen: Arc<Mutex<Seen>>,
    shutdown: CancellationToken,
}

/// An answer that ends with a stop of the server, so that no stream holds it up.
struct UntilStop {
    answer: Body,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    has_ended: bool,
}

impl<S> KeyCheck<S> {
    /// Guards a service whose answers end with `shutdown`.
    pub fn new(inner: S, key: Key, shutdown: CancellationToken) -> Self {
        Self { inner, key, seen: Arc::default(), shutdown }
    }

    fn admit<B>(&self, request: &http::Request<B>) -> Result<Call, AdmitCall> {
        let call = Call::read(&self.key, request.uri().path(), request.headers())?;
        // The set is whole after a panic elsewhere: each change to it is one insertion or removal.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).admit(&call, now_ms())?;
        Ok(call)
    }
}

impl<S: NamedService> NamedService for KeyCheck<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<http::Request<B>> for KeyCheck<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match self.admit(&request) {
            Ok(call) => {
                let (answer, key) = (self.inner.call(request), self.key.clone());
                let stop = Box::pin(self.shutdown.clone().cancelled_owned());
                Box::pin(async move {
                    let mut answer = answer.await?;
                    call.write_answer(&key, answer.headers_mut());
                    Ok(answer.map(|answer| Body::new(UntilStop { answer, stop, has_ended: false })))
                })
            }
            Err(error) => {
                let refusal = tonic::Status::unauthenticated(error.to_string()).into_http();
                Box::pin(async move { Ok(refusal) })
            }
        }
    }
}

impl HttpBody for UntilStop {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.stop.as_mut().poll(cx).is_ready() {
            self.has_ended = true;
            let (parts, _) =
                tonic::Status::unavailable("this worker is stopping").into_http::<Body>().into_parts();
            return Poll::Ready(Some(Ok(Frame::trailers(parts.headers))));
        }
        Pin::new(&mut self.answer).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.answer.is_end_stream()
    }
}
