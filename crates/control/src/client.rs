//! How does a composer call a worker, and know that it is one?

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_api::keys::Key;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint};

use crate::proof::{Call, now_ms};
use crate::proto::control_client::ControlClient;

/// For connecting.
const CONNECT: Duration = Duration::from_secs(3);

/// For the beginning of each answer; streams then go on as long as they like.
const ANSWER: Duration = Duration::from_secs(10);

/// How often a worker that sends nothing is asked whether it is there, and how long it may take to say so.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Longest answer, bytes: a status with all its failures, or why with 100,000 blocks.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A client of one worker's control port.
pub type Client = ControlClient<Keyed>;

/// Says why an address cannot be called.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not the address of a control port: expected host:port")]
pub struct ParseAddress {
    /// The refused text.
    pub address: String,
    #[source]
    source: tonic::transport::Error,
}

/// Says that whoever answered does not hold the control key.
#[derive(Debug, thiserror::Error)]
#[error("whoever answered at the control port does not hold this dataset's control key")]
pub struct Unproven;

/// A client of the worker at `address` (host:port). Connects when it is first used, and again when the connection breaks;
/// call it on a tokio runtime.
///
/// A call fails with `Unauthenticated` where the worker does not accept the key, with `Unavailable` where it cannot be
/// reached, and with [`Unproven`] as its source where somebody else answers.
///
/// # Errors
/// Where the address is none.
pub fn client(address: &str, key: Key) -> Result<Client, ParseAddress> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|source| ParseAddress { address: address.to_owned(), source })?
        .connect_timeout(CONNECT)
        .timeout(ANSWER)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    let keyed = Keyed { channel: endpoint.connect_lazy(), key };
    Ok(ControlClient::new(keyed).max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// A channel whose calls and answers are proven with the control key.
#[derive(Debug, Clone)]
pub struct Keyed {
    channel: Channel,
    key: Key,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Service<http::Request<Body>> for Keyed {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.channel.poll_ready(cx).map_err(Error::from)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let call = Call::new(request.uri().path(), now_ms(), rand::random());
        call.write(&self.key, request.headers_mut());
        let (answer, key) = (self.channel.call(request), self.key.clone());
        Box::pin(async move {
            let answer = answer.await?;
            // A refusal carries no proof, and nothing but its reason.
            let is_refusal = tonic::Status::from_header_map(answer.headers())
                .is_some_and(|status| status.code() != tonic::Code::Ok);
            if is_refusal || call.is_answered(&key, answer.headers()) {
                Ok(answer)
            } else {
                Err(Unproven.into())
            }
        })
    }
}
