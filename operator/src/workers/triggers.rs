//! Which Datasets are to be looked at because of what their workers say? Each waits once, however often it is told.

use std::collections::HashSet;
use std::sync::Arc;

use futures::Stream;
use kube::runtime::reflector::ObjectRef;
use millrace_api::dataset::spec::Dataset;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Datasets that wait to be looked at. Clones share them; at most each Dataset that there is.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<HashSet<ObjectRef<Dataset>>>,
    news: Notify,
}

impl Triggers {
    /// Has a Dataset looked at.
    pub fn trigger(&self, dataset: ObjectRef<Dataset>) {
        self.shared.waiting.lock().insert(dataset);
        self.shared.news.notify_one();
    }

    /// All that wait, as they come; goes on for ever. For one reader.
    pub fn stream(&self) -> impl Stream<Item = ObjectRef<Dataset>> + Send + use<> {
        let state = (Arc::clone(&self.shared), Vec::new());
        futures::stream::unfold(state, |(shared, mut taken)| async move {
            loop {
                if let Some(dataset) = taken.pop() {
                    return Some((dataset, (shared, taken)));
                }
                taken.extend(shared.waiting.lock().drain());
                if taken.is_empty() {
                    shared.news.notified().await;
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn each_dataset_comes_once_for_all_that_was_told_of_it_and_none_is_lost() {
        let triggers = Triggers::default();
        let name = |number: usize| ObjectRef::<Dataset>::new(&format!("d-{number}")).within("ns");
        for number in (0..5000).chain(0..5000) {
            triggers.trigger(name(number));
        }
        let found: HashSet<_> = triggers.stream().take(5000).collect().await;
        assert_eq!(found.len(), 5000);
        triggers.trigger(name(7));
        assert_eq!(triggers.stream().boxed().next().await, Some(name(7)));
    }
}
