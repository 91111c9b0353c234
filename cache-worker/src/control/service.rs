//! How are the calls of the control port answered?

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use millrace_api::block::BlockSize;
use millrace_api::ids::VersionId;
use millrace_api::placement::Membership;
use millrace_control::proto;
use millrace_control::proto::control_server::Control;
use millrace_daemon::causes::with_causes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{make_index, status, why};
use crate::sources::{SourceConfig, UseSources};
use crate::versions::Version;
use crate::warm::ledger::State;
use crate::worker::{MAX_VERSIONS, Worker};

/// How often the state is looked at for a change. From the protocol: at most every 200 ms.
const STATUS_EVERY: Duration = Duration::from_millis(200);

/// Failures named in the answer to a warm request.
const NAMED: usize = 20;

/// Messages of a stream that may wait for the client; a slow one holds the stream back.
const WAITING: usize = 4;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The control port's service.
#[derive(Debug, Clone)]
pub struct ControlService {
    worker: Arc<Worker>,
}

impl ControlService {
    /// Steers `worker`.
    pub fn new(worker: Arc<Worker>) -> Self {
        Self { worker }
    }

    fn version(&self, text: &str) -> Result<Arc<Version>, Status> {
        let id = version_id(text)?;
        // Not found: the caller may ask again once the index is there.
        self.worker.versions.get(&id).ok_or_else(|| {
            let trouble =
                self.worker.index_trouble(&id).map(|trouble| format!(": {trouble}")).unwrap_or_default();
            Status::not_found(format!("this worker has no index of version {id}{trouble}"))
        })
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    async fn get_info(
        &self,
        _request: Request<proto::GetInfoRequest>,
    ) -> Result<Response<proto::Info>, Status> {
        let worker = &self.worker;
        Ok(Response::new(proto::Info {
            worker: worker.members.name().to_owned(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            start_id: worker.start_id.clone(),
            boot_id: worker.boot_id.clone(),
            started_ms: worker.started_ms,
            pid: std::process::id(),
            data_address: worker.data_address().map(|address| address.to_string()).unwrap_or_default(),
        }))
    }

    type MakeIndexStream = Answers<proto::MakeIndexProgress>;

    async fn make_index(
        &self,
        request: Request<proto::MakeIndexRequest>,
    ) -> Result<Response<Self::MakeIndexStream>, Status> {
        let proto::MakeIndexRequest { sources, block_size_bytes } = request.into_inner();
        let block = match block_size_bytes {
            0 => BlockSize::default(),
            bytes => BlockSize::new(bytes).ok_or_else(|| {
                Status::invalid_argument(format!(
                    "block size {bytes}: give a power of two from 1 MiB to 64 MiB"
                ))
            })?,
        };
        let sources: Vec<SourceConfig> = sources.into_iter().map(SourceConfig::from).collect();
        let prepared = match self.worker.sources.prepare(sources) {
            Ok(prepared) => prepared,
            // What the files of the credentials say may be another thing soon: no fault of the request.
            Err(error @ UseSources::Open { .. }) => {
                let failed = make_index::not_opened(&error);
                return Ok(Response::new(futures::stream::iter([Ok(failed)]).boxed()));
            }
            Err(error) => return Err(Status::invalid_argument(with_causes(&error))),
        };
        Ok(Response::new(make_index::make_index(Arc::clone(&self.worker), prepared, block).boxed()))
    }

    type StatusStream = Answers<proto::WorkerStatus>;

    async fn status(
        &self,
        _request: Request<proto::StatusRequest>,
    ) -> Result<Response<Self::StatusStream>, Status> {
        let (told, stream) = mpsc::channel(WAITING);
        let (worker, stop) = (Arc::clone(&self.worker), self.worker.stop_token());
        self.worker.spawn("status", async move {
            let mut last = None;
            loop {
                let now = status::status(&worker);
                if last.as_ref() != Some(&now) {
                    if told.send(Ok(now.clone())).await.is_err() {
                        return;
                    }
                    last = Some(now);
                }
                tokio::select! {
                    () = tokio::time::sleep(STATUS_EVERY) => {}
                    () = told.closed() => return,
                    () = stop.cancelled() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream).boxed()))
    }

    async fn warm(
        &self,
        request: Request<proto::WarmRequest>,
    ) -> Result<Response<proto::WarmAnswer>, Status> {
        let request = request.into_inner();
        let version = self.version(&request.version)?;
        let warm_ups = &self.worker.warm_ups;
        let mut unknown_paths = Vec::new();
        match request.action() {
            proto::warm_request::Action::Start => {
                if let Err(unknown) = warm_ups.start(&version, request.paths) {
                    unknown_paths = unknown.0;
                }
            }
            proto::warm_request::Action::Pause => warm_ups.stop(&version.id, State::Paused),
            proto::warm_request::Action::Cancel => warm_ups.stop(&version.id, State::Cancelled),
            proto::warm_request::Action::Unspecified => {
                return Err(Status::invalid_argument("action is not said: start, pause or cancel"));
            }
        }
        let warm_up = Some(status::warm_up(&warm_ups.now(&version.id, NAMED)));
        Ok(Response::new(proto::WarmAnswer { warm_up, unknown_paths }))
    }

    async fn set_membership(
        &self,
        request: Request<proto::Membership>,
    ) -> Result<Response<proto::SetMembershipAnswer>, Status> {
        let membership = Membership::try_from(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(proto::SetMembershipAnswer { epoch: self.worker.set_membership(membership) }))
    }

    async fn use_versions(
        &self,
        request: Request<proto::UseVersionsRequest>,
    ) -> Result<Response<proto::UseVersionsAnswer>, Status> {
        let proto::UseVersionsRequest { versions, sources, mount } = request.into_inner();
        if versions.len() > MAX_VERSIONS {
            return Err(Status::invalid_argument(format!(
                "{} versions: at most {MAX_VERSIONS}",
                versions.len()
            )));
        }
        let wanted = versions.iter().map(|text| version_id(text)).collect::<Result<Vec<_>, _>>()?;
        let mount = mount.map(|mount| mount.parse(wanted.first().copied())).transpose();
        let mount = mount.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if let Some(mount) = mount.filter(|mount| !wanted.contains(&mount.version)) {
            return Err(Status::invalid_argument(format!(
                "the mount settings name version {}, which is not among those to use",
                mount.version
            )));
        }
        if !sources.is_empty() {
            let sources = sources.into_iter().map(SourceConfig::from).collect();
            self.worker
                .set_sources(sources)
                .map_err(|error| Status::invalid_argument(with_causes(&error)))?;
        }
        let dropped = self.worker.use_versions(wanted.clone(), mount);
        let is_ready = |id: &&VersionId| self.worker.versions.get(id).is_some();
        let (ready, fetching): (Vec<_>, Vec<_>) = wanted.iter().partition(is_ready);
        let text = |ids: Vec<&VersionId>| ids.into_iter().map(VersionId::to_string).collect();
        let dropped = dropped.iter().map(VersionId::to_string).collect();
        Ok(Response::new(proto::UseVersionsAnswer { ready: text(ready), fetching: text(fetching), dropped }))
    }

    async fn why(&self, request: Request<proto::WhyRequest>) -> Result<Response<proto::WhyAnswer>, Status> {
        let proto::WhyRequest { version, path } = request.into_inner();
        let version = self.version(&version)?;
        let worker = Arc::clone(&self.worker);
        let started = Instant::now();
        let answer = tokio::task::spawn_blocking(move || why::why(&worker, &version, &path))
            .await
            .map_err(|error| Status::internal(format!("look up the path: {error}")))?;
        tracing::debug!(took = ?started.elapsed(), "path explained");
        Ok(Response::new(answer))
    }
}

fn version_id(text: &str) -> Result<VersionId, Status> {
    text.parse().map_err(|error| Status::invalid_argument(format!("version {text:?}: {error}")))
}
