//! Reads against a real S3 server, through real sockets.

pub(crate) mod canned;
mod credentials;
mod errors;
mod faults;
mod load;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::server::{Builder, S3Server};
use millrace_s3_server::synthetic;
use tokio::time::Instant;

use super::config::{CredentialsConfig, Deadlines, OriginConfig};
use super::counters::Counters;
use super::error::{OriginError, OriginErrorKind};
use super::window::{Priority, Window, WindowConfig};
use super::{ObjectVersion, Origin};

const SIZE: u64 = 3 << 20;

/// A server with the bucket `data`, which holds `big` of 3 MiB and `small` of 5 bytes.
fn server() -> (Builder, InMemory) {
    let objects = InMemory::new().with("small", "hello");
    objects.put_sized("big", SIZE);
    (S3Server::builder().bucket("data", &objects), objects)
}

fn config_of(server: &S3Server) -> OriginConfig {
    let mut config = OriginConfig::at(server.endpoint(), "data", CredentialsConfig::Anonymous);
    config.deadlines = Deadlines {
        connect: Duration::from_secs(1),
        first_byte: Duration::from_millis(500),
        stall: Duration::from_millis(500),
    };
    config
}

fn open(config: OriginConfig) -> Origin {
    Origin::new(config, Window::new(WindowConfig::default()), Arc::new(Counters::default())).unwrap()
}

fn within(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

fn version(objects: &InMemory, key: &str, size: u64) -> ObjectVersion {
    ObjectVersion { key: key.to_owned(), etag: objects.etag(key).unwrap(), size }
}

async fn read(origin: &Origin, object: ObjectVersion, range: Range<u64>) -> Result<Vec<u8>, OriginError> {
    read_until(origin, object, range, within(20)).await
}

async fn read_until(
    origin: &Origin,
    object: ObjectVersion,
    range: Range<u64>,
    deadline: Instant,
) -> Result<Vec<u8>, OriginError> {
    let mut stream = origin.get(object, range, Priority::Foreground, deadline);
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await? {
        all.extend_from_slice(&piece);
    }
    assert_eq!(stream.next().await?, None);
    Ok(all)
}

async fn read_big(origin: &Origin, objects: &InMemory, range: Range<u64>) -> Result<Vec<u8>, OriginError> {
    let bytes = read(origin, version(objects, "big", SIZE), range.clone()).await?;
    assert_eq!(bytes.len() as u64, range.end - range.start);
    assert!(synthetic::matches("big", range.start, &bytes), "wrong bytes");
    Ok(bytes)
}

async fn kind_of_read(origin: &Origin, objects: &InMemory) -> OriginErrorKind {
    read_big(origin, objects, 0..1000).await.unwrap_err().kind()
}
