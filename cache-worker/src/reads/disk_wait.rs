//! How does a task of the runtime wait for the disk?
//!
//! A look into the store is microseconds where its sidecar is open and in memory, and as long as the disk likes where it
//! is not. Such a look is made where it is needed, and the other tasks of the thread move to another one meanwhile:
//! a look that is sent to a thread of its own and waited for could be dropped half way, with chunks claimed that nobody
//! fetches, and costs each hit two wake-ups.

use millrace_api::block::StoreFile;
use millrace_store::Store;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Looks into a file of the store. Where its sidecar is open, moving the others away would take longer than the look.
pub fn look_into<R>(store: &Store, file: &StoreFile, look: impl FnOnce() -> R) -> R {
    if store.has_open(file) { look() } else { wait_for_disk(look) }
}

/// Calls something that may wait for the disk.
fn wait_for_disk<R>(look: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(look),
        // There is no other thread to move to, or no task.
        Ok(_) | Err(_) => look(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_of_the_only_thread_run_while_one_waits() {
        let (told, heard) = std::sync::mpsc::channel();
        let waits =
            tokio::spawn(async move { wait_for_disk(|| heard.recv_timeout(Duration::from_secs(10))) });
        tokio::task::yield_now().await;
        tokio::spawn(async move { told.send(()) }).await.unwrap().unwrap();
        waits.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn without_other_threads_the_look_is_made_all_the_same() {
        assert_eq!(wait_for_disk(|| 7), 7);
    }
}
