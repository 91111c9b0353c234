//! How do all keys of a source come in, soon and in little memory?

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::board::{Board, OutOfOrder, RangeId};
use crate::origin::error::OriginError;
use crate::origin::window::Priority;
use crate::origin::{Listed, Origin, PageStart};

/// How a listing is gone about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListingConfig {
    /// How many pages are asked for at once.
    pub lanes: usize,
    /// How long to try for the first page: what is wrong with a new source should be known soon.
    pub first_deadline: Duration,
    /// How long to try for each further page: an outage in the midst of a long listing is waited out.
    pub page_deadline: Duration,
}

impl Default for ListingConfig {
    /// 24 lanes at 30 ms a page are 800,000 keys a second, more than two cores can take in.
    fn default() -> Self {
        Self { lanes: 24, first_deadline: Duration::from_secs(20), page_deadline: Duration::from_secs(120) }
    }
}

/// What a listing sends.
#[derive(Debug)]
pub(super) enum Batch {
    /// Objects, in no order that could be relied on.
    Objects(Vec<Listed>),
    /// Forget all objects so far: they come again.
    Restart,
}

/// Why a listing did not come to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum List {
    /// S3 did not give a page.
    #[error("list objects")]
    Origin(#[source] OriginError),
    /// The server answers the same page for ever.
    #[error("list objects with prefix {prefix:?}: the server gives the same continuation token again")]
    Loop { prefix: String },
    /// Nobody takes the batches any more.
    #[error("listing was cancelled")]
    Cancelled,
}

/// Lists all objects below `prefix` into `sink`, in parallel where the server lists in order, else one page after the
/// other.
///
/// # Cancel safety
///
/// Dropping it ends all requests.
pub(super) async fn list(
    origin: &Origin,
    prefix: &str,
    config: ListingConfig,
    sink: mpsc::Sender<Batch>,
) -> Result<(), List> {
    match list_in_parallel(origin, prefix, config, &sink).await {
        Ok(()) => Ok(()),
        Err(Lane::Failed(err)) => Err(err),
        Err(Lane::OutOfOrder) => {
            warn!(bucket = origin.config().bucket, prefix, "server lists out of order, listing page by page");
            sink.send(Batch::Restart).await.map_err(|_| List::Cancelled)?;
            list_page_by_page(origin, prefix, config, &sink).await
        }
    }
}

#[derive(Debug)]
enum Lane {
    OutOfOrder,
    Failed(List),
}

impl From<OutOfOrder> for Lane {
    fn from(_: OutOfOrder) -> Self {
        Self::OutOfOrder
    }
}

/// What all lanes of one listing share.
struct Shared {
    origin: Origin,
    prefix: String,
    config: ListingConfig,
    sink: mpsc::Sender<Batch>,
    board: Mutex<(Board, usize)>,
    /// Told whenever there may be a range to take, or none any more.
    changed: Notify,
}

async fn list_in_parallel(
    origin: &Origin,
    prefix: &str,
    config: ListingConfig,
    sink: &mpsc::Sender<Batch>,
) -> Result<(), Lane> {
    let shared = Arc::new(Shared {
        origin: origin.clone(),
        prefix: prefix.to_owned(),
        config,
        sink: sink.clone(),
        board: Mutex::new((Board::new(prefix), 0)),
        changed: Notify::new(),
    });
    // Dropping the set aborts all lanes, also when this future is dropped.
    let mut lanes = JoinSet::new();
    for _ in 0..config.lanes.max(1) {
        lanes.spawn(run_lane(shared.clone()));
    }
    while let Some(ended) = lanes.join_next().await {
        match ended {
            Ok(result) => result?,
            Err(_) => return Err(Lane::Failed(List::Cancelled)),
        }
    }
    let board = shared.board.lock();
    Ok(board.0.check_seams()?)
}

async fn run_lane(shared: Arc<Shared>) -> Result<(), Lane> {
    loop {
        // Made before the look at the board, so that no change in between is missed.
        let changed = shared.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let taken = {
            let mut board = shared.board.lock();
            let (board, idle) = &mut *board;
            if board.is_done() {
                shared.changed.notify_waiters();
                return Ok(());
            }
            let taken = board.take(*idle + 1);
            if taken.is_none() {
                *idle += 1;
            }
            taken
        };
        match taken {
            Some((id, start)) => {
                // It may have been cut in more parts than this lane takes.
                shared.changed.notify_waiters();
                walk(&shared, id, start).await?;
            }
            None => {
                changed.await;
                shared.board.lock().1 -= 1;
            }
        }
    }
}

async fn walk(shared: &Shared, id: RangeId, start: Option<String>) -> Result<(), Lane> {
    let Shared { origin, prefix, config, sink, board, changed } = shared;
    let mut deadline = if start.is_none() { config.first_deadline } else { config.page_deadline };
    let mut next = start.map_or(PageStart::First, PageStart::After);
    loop {
        let page = origin.list_page(prefix, &next, Priority::WarmUp, Instant::now() + deadline).await;
        let mut page = page.map_err(|err| Lane::Failed(List::Origin(err)))?;
        deadline = config.page_deadline;
        let step = board.lock().0.page(id, &page.objects, page.next.is_none())?;
        changed.notify_waiters();
        page.objects.truncate(step.keep);
        if !page.objects.is_empty() {
            let sent = sink.send(Batch::Objects(page.objects)).await;
            sent.map_err(|_| Lane::Failed(List::Cancelled))?;
        }
        match page.next {
            Some(token) if !step.is_end => {
                let token = PageStart::Token(token);
                if token == next {
                    return Err(Lane::OutOfOrder);
                }
                next = token;
            }
            _ => return Ok(()),
        }
    }
}

async fn list_page_by_page(
    origin: &Origin,
    prefix: &str,
    config: ListingConfig,
    sink: &mpsc::Sender<Batch>,
) -> Result<(), List> {
    let mut next = PageStart::First;
    loop {
        let deadline = Instant::now() + config.page_deadline;
        let page = origin.list_page(prefix, &next, Priority::WarmUp, deadline).await.map_err(List::Origin)?;
        if !page.objects.is_empty() {
            sink.send(Batch::Objects(page.objects)).await.map_err(|_| List::Cancelled)?;
        }
        match page.next.map(PageStart::Token) {
            None => return Ok(()),
            Some(token) if token == next => return Err(List::Loop { prefix: prefix.to_owned() }),
            Some(token) => next = token,
        }
    }
}
