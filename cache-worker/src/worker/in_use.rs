//! Which versions does a worker serve, and what becomes of those it serves no more?

use std::sync::Arc;

use millrace_api::ids::VersionId;
use millrace_api::index::{FileIndex, PackIndex};
use millrace_api::mount::MountSettings;

use super::{MAX_VERSIONS, Worker};
use crate::versions::Version;

impl Worker {
    /// Serves a version whose index is installed, and takes it into use behind those in use.
    pub fn serve(self: &Arc<Self>, version: Version) {
        let version = Arc::new(version);
        self.sources.attach(&version);
        let id = version.id;
        self.versions.insert(Arc::clone(&version));
        self.fetching.lock().remove(&id);
        self.remember(|state| {
            let text = id.to_string();
            if !state.versions.contains(&text) {
                state.versions.push(text);
            }
            // Nobody says any more which are of use: the oldest but for the first, which is shown, goes.
            while state.versions.len() > MAX_VERSIONS {
                state.versions.remove(1);
            }
        });
        self.warm_ups.resume(&version);
        let totals = version.view().totals();
        tracing::info!(version = %id, objects = totals.files, bytes = totals.bytes, "version served");
    }

    /// Takes exactly these versions into use; returns those dropped. What only those needed goes first when room is needed.
    /// Where `mount` is not said, what was said before goes on as long as its version is in use.
    pub fn use_versions(
        self: &Arc<Self>,
        wanted: Vec<VersionId>,
        mount: Option<MountSettings>,
    ) -> Vec<VersionId> {
        let before = self.versions.mount().filter(|before| wanted.contains(&before.version));
        let mount = mount.or(before);
        self.versions.set_mount(mount);
        self.remember(|state| {
            state.versions = wanted.iter().map(VersionId::to_string).collect();
            state.mount = mount;
        });
        let mut dropped = Vec::new();
        for version in self.versions.all() {
            if !wanted.contains(&version.id) {
                self.versions.remove(&version.id);
                self.warm_ups.forget(&version.id);
                crate::indexes::remove(&self.index_dir, version.id);
                dropped.push(version.id);
            }
        }
        for id in &wanted {
            if self.versions.get(id).is_none() && !self.open_index(*id) {
                self.fetch_index(*id);
            }
        }
        if !dropped.is_empty() {
            self.mark_unused();
        }
        dropped
    }

    /// Tells the store which content is still of use.
    fn mark_unused(self: &Arc<Self>) {
        let worker = Arc::clone(self);
        self.tasks.spawn("mark-unused", async move {
            let marking = tokio::task::spawn_blocking(move || {
                let mut live = std::collections::HashSet::new();
                for version in worker.versions.all() {
                    let view = version.view();
                    let totals = view.totals();
                    live.extend(
                        (0..totals.packs).filter_map(|pack| Some(view.pack(PackIndex(pack))?.file.content)),
                    );
                    let large = (0..totals.files).map(FileIndex).filter(|file| view.pack_of(*file).is_none());
                    live.extend(large.filter_map(|file| Some(view.span(file)?.file.content)));
                }
                worker.fetcher.store.retain(|content| live.contains(&content));
            });
            if let Err(error) = marking.await {
                tracing::error!(error = %error, "marking unused content ended early");
            }
        });
    }
}
