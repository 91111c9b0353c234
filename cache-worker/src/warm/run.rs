//! How does a warm-up run: start, pause, cancel, go on after a restart?

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::placement::Membership;
use millrace_daemon::shutdown::Tasks;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ledger::{Counts, Failed, Ledger, Outcome, State};
use super::loading::{Loading, load};
use super::store;
use super::walk::{Unit, UnknownPaths, Walk};
use crate::members::Members;
use crate::reads::disk_wait::look_into;
use crate::reads::fetcher::{Fetcher, Target};
use crate::reads::room::{Asker, Room};
use crate::versions::Version;

/// Requests of a warm-up at once; the origin's window allows fewer where it must. As many as the window's largest.
const MAX_REQUESTS: usize = 128;

/// Units that are looked up at once, on a blocking thread.
const BATCH_UNITS: usize = 256;

/// How often the ledger is kept while it changes: what is loaded after that is found in the store by a restart.
const SAVE_EVERY: Duration = Duration::from_secs(2);

/// A warm-up at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WarmUpNow {
    /// What it does.
    pub state: State,
    /// Objects of which this worker owns a part.
    pub listed: u64,
    /// Objects neither done nor failed.
    pub pending: u64,
    /// Done, failed, bytes.
    pub counts: Counts,
    /// This worker's share, bytes.
    pub bytes_total: u64,
    /// The newest failures, the newest last.
    pub failures: Vec<Failed>,
}

/// The warm-ups of this worker's versions.
#[derive(Debug)]
pub struct WarmUps {
    fetcher: Arc<Fetcher>,
    members: Arc<Members>,
    room: Room,
    dir: PathBuf,
    tasks: Tasks,
    by_version: Mutex<HashMap<VersionId, Arc<WarmUp>>>,
}

#[derive(Debug)]
struct WarmUp {
    version: Arc<Version>,
    ledger: Mutex<Ledger>,
    stop: CancellationToken,
}

impl WarmUps {
    /// Keeps ledgers in `dir`.
    pub fn new(
        fetcher: Arc<Fetcher>,
        members: Arc<Members>,
        room: Room,
        dir: PathBuf,
        tasks: Tasks,
    ) -> Arc<Self> {
        Arc::new(Self { fetcher, members, room, dir, tasks, by_version: Mutex::default() })
    }

    /// Takes up what an earlier process of this worker has left; goes on where it was running.
    pub fn resume(self: &Arc<Self>, version: &Arc<Version>) {
        let ledger = match store::load(&self.dir, version.id) {
            Ok(Some(ledger)) => ledger,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(version = %version.id, error = %error, "warm-up starts over");
                return;
            }
        };
        let is_running = ledger.state == State::Running;
        let warm_up = self.put(version, ledger);
        if is_running {
            self.spawn(warm_up);
        }
    }

    /// Starts, or goes on with, the warm-up of `paths`; nothing happens where it runs or is done already.
    ///
    /// # Errors
    /// The paths that the version does not have.
    pub fn start(self: &Arc<Self>, version: &Arc<Version>, paths: Vec<String>) -> Result<(), UnknownPaths> {
        let paths: Vec<String> = paths.iter().map(|path| path.trim_matches('/').to_owned()).collect();
        let paths = if paths.iter().any(String::is_empty) { Vec::new() } else { paths };
        Walk::new(version.view(), &paths, 0)?;
        let epoch = self.members.current().epoch;
        let before = self.by_version.lock().get(&version.id).cloned();
        let mut ledger = Ledger::new(paths.clone(), epoch);
        if let Some(before) = before {
            let old = before.ledger.lock().clone();
            let is_same = old.paths == paths && old.epoch == epoch;
            if is_same && matches!(old.state, State::Running | State::Done) {
                return Ok(());
            }
            if is_same && old.state == State::Paused {
                ledger = old;
                ledger.state = State::Running;
            }
            before.stop.cancel();
        }
        ledger.rewind();
        let warm_up = self.put(version, ledger);
        self.save(&warm_up);
        self.spawn(warm_up);
        Ok(())
    }

    /// Pauses or cancels a running warm-up.
    pub fn stop(&self, version: &VersionId, state: State) {
        let Some(warm_up) = self.by_version.lock().get(version).cloned() else { return };
        {
            let mut ledger = warm_up.ledger.lock();
            if !matches!(ledger.state, State::Running | State::Paused) {
                return;
            }
            ledger.state = state;
        }
        warm_up.stop.cancel();
        self.save(&warm_up);
    }

    /// Forgets the warm-up of a version that is no longer used.
    pub fn forget(&self, version: &VersionId) {
        if let Some(warm_up) = self.by_version.lock().remove(version) {
            warm_up.stop.cancel();
        }
        store::remove(&self.dir, *version);
    }

    /// The warm-up of a version, with at most `most` failures.
    pub fn now(&self, version: &VersionId, most: usize) -> WarmUpNow {
        let Some(warm_up) = self.by_version.lock().get(version).cloned() else { return WarmUpNow::default() };
        let ledger = warm_up.ledger.lock();
        WarmUpNow {
            state: ledger.state,
            listed: ledger.listed,
            pending: ledger.pending(),
            counts: ledger.counts(),
            bytes_total: ledger.bytes_total,
            failures: ledger.failures(most),
        }
    }

    fn put(&self, version: &Arc<Version>, ledger: Ledger) -> Arc<WarmUp> {
        let stop = self.tasks.token().child_token();
        let warm_up = Arc::new(WarmUp { version: Arc::clone(version), ledger: Mutex::new(ledger), stop });
        self.by_version.lock().insert(version.id, Arc::clone(&warm_up));
        warm_up
    }

    fn spawn(self: &Arc<Self>, warm_up: Arc<WarmUp>) {
        let warm_ups = Arc::clone(self);
        self.tasks.spawn("warm-up", async move {
            warm_ups.run(&warm_up).await;
            warm_ups.save(&warm_up);
        });
    }

    fn save(&self, warm_up: &WarmUp) {
        let ledger = warm_up.ledger.lock().clone();
        // A few hundred bytes, every two seconds at most.
        if let Err(error) = store::save(&self.dir, warm_up.version.id, &ledger) {
            tracing::warn!(version = %warm_up.version.id, error = %error, "warm-up ledger not kept");
        }
    }

    /// Walks until the end, a stop, or a full store; anew with every membership.
    async fn run(&self, warm_up: &Arc<WarmUp>) {
        let mut watch = self.members.watch();
        loop {
            let membership = Arc::clone(&watch.borrow_and_update());
            let run = self.walk(warm_up, &membership);
            tokio::select! {
                ended = run => match ended {
                    Some(state) => {
                        let mut ledger = warm_up.ledger.lock();
                        if ledger.state == State::Running {
                            ledger.state = state;
                            let Counts { done, failed, bytes_done } = ledger.counts();
                            tracing::info!(version = %warm_up.version.id, ?state, done, failed, bytes_done, "warm-up ended");
                        }
                        return;
                    }
                    None => return,
                },
                () = warm_up.stop.cancelled() => return,
                changed = watch.changed() => if changed.is_err() { return },
            }
        }
    }

    /// One walk; `None` where it was stopped.
    async fn walk(&self, warm_up: &Arc<WarmUp>, membership: &Arc<Membership>) -> Option<State> {
        let (paths, cursor, is_counted) = {
            let mut ledger = warm_up.ledger.lock();
            if ledger.epoch != membership.epoch {
                *ledger = Ledger::new(ledger.paths.clone(), membership.epoch);
            }
            ledger.rewind();
            (ledger.paths.clone(), ledger.cursor(), ledger.listed > 0)
        };
        if !is_counted {
            let (listed, bytes) = self.count(warm_up, membership, &paths).await?;
            let mut ledger = warm_up.ledger.lock();
            (ledger.listed, ledger.bytes_total) = (listed, bytes);
        }
        // Checked at the start; an index does not change.
        let mut walk = Walk::new(warm_up.version.view(), &paths, cursor).ok()?;
        let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
        let mut running: JoinSet<Option<State>> = JoinSet::new();
        let mut saved = Instant::now();
        loop {
            let (units, rest) = self.batch(warm_up, membership, walk).await?;
            walk = rest;
            let is_last = units.is_empty();
            for unit in units {
                self.begin(warm_up, unit, &requests, &mut running).await;
                while let Some(ended) = running.try_join_next() {
                    if let Some(state) = ended.ok().flatten() {
                        return Some(state);
                    }
                }
                if saved.elapsed() >= SAVE_EVERY {
                    saved = Instant::now();
                    self.save(warm_up);
                }
            }
            warm_up.ledger.lock().passed(walk.place());
            while is_last || warm_up.ledger.lock().is_crowded() {
                match running.join_next().await {
                    None => break,
                    Some(ended) => {
                        if let Some(state) = ended.ok().flatten() {
                            return Some(state);
                        }
                    }
                }
            }
            if is_last {
                warm_up.ledger.lock().passed(walk.place());
                return Some(State::Done);
            }
        }
    }

    /// Starts loading a unit: one task for each run of it, as many at once as the origin takes.
    async fn begin(
        &self,
        warm_up: &Arc<WarmUp>,
        unit: Unit,
        requests: &Arc<Semaphore>,
        running: &mut JoinSet<Option<State>>,
    ) {
        let Unit { place, object, runs, bytes } = unit;
        warm_up.ledger.lock().begin(place);
        let target = Target { version: Arc::clone(&warm_up.version), object: Arc::new(object) };
        let missing: Vec<_> = runs.into_iter().filter(|run| !self.is_there(&target, run)).collect();
        if missing.is_empty() {
            warm_up.ledger.lock().settle(place, bytes, Outcome::Loaded);
            return;
        }
        let unit = Arc::new(Loading { place, bytes, left: Mutex::new((missing.len(), None)) });
        for run in missing {
            self.room.wait(Asker::WarmUp).await;
            // Never closed.
            let permit = Arc::clone(requests).acquire_owned().await;
            let (fetcher, warm_up) = (Arc::clone(&self.fetcher), Arc::clone(warm_up));
            let (target, unit) = (target.clone(), Arc::clone(&unit));
            running.spawn(async move {
                let loaded = load(&fetcher, &target, run).await;
                drop(permit);
                unit.end(&warm_up.ledger, &target, loaded)
            });
            // Lets the request reach the window before its room is looked at again.
            tokio::task::yield_now().await;
        }
    }

    fn is_there(&self, target: &Target, run: &std::ops::Range<u32>) -> bool {
        let (store, file) = (&self.fetcher.store, &target.object.span.file);
        look_into(store, file, || store.present(file, target.slots(run))).is_full()
    }

    async fn count(
        &self,
        warm_up: &Arc<WarmUp>,
        membership: &Arc<Membership>,
        paths: &[String],
    ) -> Option<(u64, u64)> {
        let (version, members) = (Arc::clone(&warm_up.version), Arc::clone(&self.members));
        let (membership, paths, stop) = (Arc::clone(membership), paths.to_vec(), warm_up.stop.clone());
        let counting = tokio::task::spawn_blocking(move || {
            let mut walk = Walk::new(version.view(), &paths, 0).ok()?;
            let (mut listed, mut bytes) = (0, 0);
            while let Some(unit) = walk.next_unit(&version, &members, &membership) {
                listed += 1;
                bytes += unit.bytes;
                if stop.is_cancelled() {
                    return None;
                }
            }
            Some((listed, bytes))
        });
        counting.await.ok().flatten()
    }

    async fn batch(
        &self,
        warm_up: &Arc<WarmUp>,
        membership: &Arc<Membership>,
        walk: Walk,
    ) -> Option<(Vec<Unit>, Walk)> {
        let (version, members) = (Arc::clone(&warm_up.version), Arc::clone(&self.members));
        let membership = Arc::clone(membership);
        let looking = tokio::task::spawn_blocking(move || {
            let mut walk = walk;
            let next = std::iter::from_fn(|| walk.next_unit(&version, &members, &membership));
            let units: Vec<Unit> = next.take(BATCH_UNITS).collect();
            (units, walk)
        });
        looking.await.ok()
    }
}
