//! How does one request become answers of the worker?

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use millrace_api::ids::VersionId;
use millrace_api::wire::{BatchItem, ErrorCode, GetIndex, IndexPartHead, flags};
use tokio::time::{Duration, Instant, timeout_at};

use super::outgoing::Piece;
use super::sink::{AnswerSink, Ticket};
use super::{Blocks, ReadError, ReadRequest, Shared};
use crate::Priority;

/// Longest deadline that a client may ask for.
const MAX_DEADLINE: Duration = Duration::from_secs(3600);

/// What answers need of their connection.
pub(super) struct Context<B: Blocks> {
    pub shared: Arc<Shared<B>>,
    pub peer: Arc<str>,
}

/// What all items of a request share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub version: VersionId,
    pub epoch: u64,
    pub deadline: Instant,
    pub flags: u8,
}

impl Ask {
    pub(super) fn priority(&self) -> Priority {
        if self.flags & flags::PREFETCH != 0 { Priority::Prefetch } else { Priority::Foreground }
    }
}

/// Answers the items of a read, all at once.
pub(super) async fn answer_items<B: Blocks>(
    context: Context<B>,
    ticket: Arc<Ticket>,
    ask: Ask,
    items: Vec<BatchItem>,
) {
    let answer =
        |(number, item): (usize, BatchItem)| answer_item(&context, &ticket, ask, number as u32, item);
    if items.len() == 1 {
        for item in items.into_iter().enumerate() {
            answer(item).await;
        }
    } else {
        let mut all: FuturesUnordered<_> = items.into_iter().enumerate().map(answer).collect();
        while all.next().await.is_some() {}
    }
}

async fn answer_item<B: Blocks>(
    context: &Context<B>,
    ticket: &Arc<Ticket>,
    ask: Ask,
    number: u32,
    item: BatchItem,
) {
    let Ask { version, epoch, deadline, flags } = ask;
    let BatchItem { file, content, chunks } = item;
    let sink = AnswerSink::new(ticket, number, chunks.clone());
    let request = ReadRequest {
        version,
        file,
        content,
        chunks,
        epoch,
        deadline,
        priority: ticket.priority,
        verify: flags & flags::VERIFY != 0,
        peer: Arc::clone(&context.peer),
    };
    let service = &context.shared.service;
    let result = match timeout_at(deadline, service.read(request, sink.clone())).await {
        Ok(result) => result,
        Err(_) => Err(ReadError::new(ErrorCode::DeadlinePassed, "the deadline passed on the worker")),
    };
    sink.finish(result, service.membership().epoch).await;
}

/// Answers with a part of an index.
pub(super) async fn answer_index<B: Blocks>(context: Context<B>, ticket: Arc<Ticket>, get: GetIndex) {
    let service = &context.shared.service;
    let Some(index) = service.index(get.version).await else {
        let message = format!("this worker does not have the index of version {}", get.version);
        let error = ReadError::new(ErrorCode::UnknownVersion, message);
        return ticket.fail(error, service.membership().epoch).await;
    };
    let payload_len = index.len.saturating_sub(get.offset).min(get.len.into()) as u32;
    let head = IndexPartHead { total_len: index.len, offset: get.offset, payload_len };
    let Ok(room) = ticket.line.outgoing.room(ticket.priority).await else { return };
    let piece = Piece::Index { request: ticket.request, head, file: index.file, _room: room };
    ticket.line.outgoing.push(ticket.priority, piece);
}

/// When a client's deadline is by our clock.
pub(super) fn deadline(deadline_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(deadline_ms.into()).min(MAX_DEADLINE)
}
