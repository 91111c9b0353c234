//! Which workers serve the dataset, when all that is known is the name of their service?
//!
//! Asked at the start, and again whenever no worker of the membership can be reached: the only worker of a dataset may have
//! come back at another address, and then nobody is left to tell of it. Where nobody has told itself either, since what
//! steers the workers is away, it is known by this: it holds the data key and the membership that is known here, in which
//! there is no other worker.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use millrace_api::placement::{MAX_WORKERS, Membership};
use millrace_api::wire::{Answer, FrameHeader, HEADER_BYTES, MAX_PLAIN_BODY_BYTES, Request, kind};
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info};

use super::greet;
use super::{Inner, trouble};

/// How often it is looked whether workers can be reached: far less than a reader waits.
const LOOK: Duration = Duration::from_millis(250);

/// First wait after nobody told of a newer membership; doubles each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// Longest wait: a worker that comes back is found within this.
const MAX_BACKOFF: Duration = Duration::from_secs(3);

/// For the name to be resolved: what a resolver takes for two tries, five seconds each, would outlast the reader's patience.
const RESOLVE: Duration = Duration::from_secs(5);

/// Addresses asked at once: a service of dead workers is gone through quickly, and its nodes do not ask all of them.
const ASKED_AT_ONCE: usize = 8;

/// Frames that a worker may send before the membership that it was asked for: those sent unasked.
const MAX_FRAMES: usize = 16;

/// Why nobody could be found at a service.
#[derive(Debug, thiserror::Error)]
#[error(
    "no worker of service {service:?} said who serves the dataset within the deadline; last trouble: {trouble}"
)]
pub struct Bootstrap {
    /// The service, `host:port`.
    pub service: String,
    /// What was last wrong.
    pub trouble: String,
}

/// What asking came to.
enum Found {
    /// A newer membership.
    Newer(Membership),
    /// A worker that knows the same one.
    Same(SocketAddr),
}

/// What is needed to ask.
struct Asker {
    key: millrace_api::keys::Key,
    name: String,
    epoch: u64,
    connect: Duration,
}

/// Waits until a membership is known.
pub(super) async fn wait_for_membership(client: &Arc<Inner>, deadline: Instant) -> Result<(), Bootstrap> {
    let mut membership = client.membership.subscribe();
    match timeout_at(deadline, membership.wait_for(|membership| !membership.workers.is_empty())).await {
        Ok(Ok(_)) => Ok(()),
        // The sender lives in `client`.
        Ok(Err(_)) | Err(_) => {
            let service = client.service.clone().unwrap_or_default();
            Err(Bootstrap { service, trouble: client.service_trouble.lock().clone() })
        }
    }
}

/// Asks the service whenever no worker can be reached; ends with the client.
pub(super) async fn follow(service: String, client: Weak<Inner>) {
    let mut backoff = FIRST_BACKOFF;
    loop {
        let Some(asker) = asker(&client) else { return };
        let Some(asker) = asker else {
            backoff = FIRST_BACKOFF;
            sleep(LOOK).await;
            continue;
        };
        let (found, epoch) = (find(&service, &asker).await, asker.epoch);
        let Some(client) = client.upgrade() else { return };
        match found {
            Ok(Found::Newer(membership)) => {
                info!(service, epoch = membership.epoch, "found the workers by their service");
                client.learn(membership);
                backoff = FIRST_BACKOFF;
            }
            Ok(Found::Same(address)) => {
                if client.found_at(address, epoch) {
                    info!(service, %address, "found the only worker at another address");
                    backoff = FIRST_BACKOFF;
                } else {
                    *client.service_trouble.lock() =
                        format!("worker at {address}: it knows no newer membership than epoch {epoch}");
                }
            }
            Err(trouble) => {
                debug!(service, trouble, "nobody to be found by the service");
                *client.service_trouble.lock() = trouble;
            }
        }
        drop(client);
        // Full jitter over the upper half, so that the nodes of a cluster do not come in step.
        sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Whom to ask as: `Some(None)` while workers can be reached, `None` once the client is gone.
fn asker(client: &Weak<Inner>) -> Option<Option<Asker>> {
    let client = client.upgrade()?;
    if !client.is_lost() {
        return Some(None);
    }
    let (config, epoch) = (&client.config, client.epoch());
    let (key, name, connect) = (config.key.clone(), config.name.clone(), config.timing.connect);
    Some(Some(Asker { key, name, epoch, connect }))
}

/// Asks all addresses of the service until one tells of a newer membership than is known; where none does, one that
/// knows the same.
async fn find(service: &str, asker: &Asker) -> Result<Found, String> {
    let mut addresses = resolve(service).await?;
    // Not always the same worker first.
    addresses.shuffle(&mut rand::rng());
    let mut trouble = "it has no address: no worker runs".to_owned();
    let asks = addresses.into_iter().take(MAX_WORKERS).map(|address| async move {
        let asked = timeout(2 * asker.connect, ask(address, asker)).await;
        asked.unwrap_or_else(|_| Err("it did not answer in time".to_owned())).map_err(|said| (address, said))
    });
    let mut answers = stream::iter(asks).buffer_unordered(ASKED_AT_ONCE);
    let mut same = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(newer @ Found::Newer(_)) => return Ok(newer),
            Ok(found @ Found::Same(_)) => same = Some(found),
            Err((address, said)) => trouble = format!("worker at {address}: {said}"),
        }
    }
    same.ok_or(trouble)
}

/// The addresses of all its names; an error where none has one.
async fn resolve(service: &str) -> Result<Vec<SocketAddr>, String> {
    let (mut addresses, mut trouble) = (Vec::new(), None);
    for name in service.split(',').map(str::trim) {
        match timeout(RESOLVE, tokio::net::lookup_host(name)).await {
            Ok(Ok(found)) => addresses.extend(found),
            Ok(Err(error)) => trouble = Some(format!("resolve its name: {error}")),
            Err(_) => trouble = Some("its name was not resolved in time".to_owned()),
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    match trouble {
        Some(trouble) if addresses.is_empty() => Err(trouble),
        _ => Ok(addresses),
    }
}

/// Asks one worker for a newer membership.
async fn ask(address: SocketAddr, asker: &Asker) -> Result<Found, String> {
    let Asker { key, name, epoch, .. } = asker;
    let greeted = greet::connect(&address.to_string(), key, name, *epoch).await;
    let (mut stream, hello) = greeted.map_err(|error| trouble(&error))?;
    if hello.epoch == 0 {
        return Err("it has not been told yet who serves the dataset".to_owned());
    }
    if hello.epoch == *epoch {
        return Ok(Found::Same(address));
    }
    if hello.epoch < *epoch {
        return Err(format!("it knows no newer membership than epoch {epoch}"));
    }
    let mut out = Vec::new();
    Request::GetMembership.encode(1, &mut out);
    stream.write_all(&out).await.map_err(|error| format!("ask: {error}"))?;
    for _ in 0..MAX_FRAMES {
        if let Some(membership) = receive(&mut stream).await?
            && membership.epoch > *epoch
            && !membership.workers.is_empty()
        {
            return Ok(Found::Newer(membership));
        }
    }
    Err("it does not say who serves the dataset".to_owned())
}

/// Receives one frame; `None` where it is no membership.
async fn receive(stream: &mut TcpStream) -> Result<Option<Membership>, String> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await.map_err(|error| format!("receive: {error}"))?;
    let header = FrameHeader::decode(&head, MAX_PLAIN_BODY_BYTES).map_err(|error| error.to_string())?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await.map_err(|error| format!("receive: {error}"))?;
    if header.kind != kind::MEMBERSHIP {
        return Ok(None);
    }
    match Answer::decode(&header, &body).map_err(|error| error.to_string())? {
        Answer::Membership(membership) => Ok(Some(membership)),
        _ => Ok(None),
    }
}
