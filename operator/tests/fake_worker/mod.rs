//! A worker that the operator can steer: its control port, over real gRPC, without bytes behind it.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use millrace_api::keys::Key;
use millrace_control::proto::control_server::Control;
use millrace_control::proto::make_index_progress::Step;
use millrace_control::proto::*;
use millrace_control::server::serve;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Bytes of every version.
pub const BYTES: u64 = 3000;

/// A worker. Clones are the same one; it ends with the test's runtime.
#[derive(Clone)]
pub struct FakeWorker {
    /// What it says of itself.
    pub state: Arc<watch::Sender<WorkerStatus>>,
    /// Of its control port.
    pub port: u16,
    listed: Arc<watch::Sender<u64>>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl FakeWorker {
    pub async fn start(name: &str, key: Key) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = WorkerStatus { worker: name.to_owned(), start_id: "1".into(), ..Default::default() };
        let worker = Self {
            state: Arc::new(watch::Sender::new(state)),
            port,
            listed: Arc::new(watch::Sender::new(0)),
        };
        tokio::spawn(serve(listener, key, worker.clone(), CancellationToken::new()));
        worker
    }
}

#[tonic::async_trait]
impl Control for FakeWorker {
    type MakeIndexStream = Answers<MakeIndexProgress>;
    type StatusStream = Answers<WorkerStatus>;

    async fn get_info(&self, _: Request<GetInfoRequest>) -> Result<Response<Info>, Status> {
        Ok(Response::new(Info { worker: self.state.borrow().worker.clone(), ..Info::default() }))
    }

    /// Finds another version each time.
    async fn make_index(
        &self,
        _: Request<MakeIndexRequest>,
    ) -> Result<Response<Self::MakeIndexStream>, Status> {
        self.listed.send_modify(|count| *count += 1);
        let version = format!("{:032x}", *self.listed.borrow());
        let all = Some(Cached { bytes: BYTES, objects: 3, blocks: 1 });
        let warm_up = WarmUp { state: WarmUpState::Idle.into(), bytes_total: BYTES, ..Default::default() };
        let status = VersionStatus {
            version: version.clone(),
            index_ready: true,
            cached: all,
            owned: all,
            warm_up: Some(warm_up),
            failed: None,
        };
        self.state.send_modify(|state| state.versions.push(status));
        let made = IndexMade { version, objects: 3, bytes: BYTES, ..Default::default() };
        let steps = [Ok(MakeIndexProgress { step: Some(Step::Made(made)) })];
        Ok(Response::new(Box::pin(tokio_stream::iter(steps))))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<Self::StatusStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.state.subscribe()).map(Ok))))
    }

    /// Is through at once.
    async fn warm(&self, request: Request<WarmRequest>) -> Result<Response<WarmAnswer>, Status> {
        let version = request.into_inner().version;
        self.state.send_modify(|state| {
            for known in state.versions.iter_mut().filter(|known| known.version == version) {
                known.warm_up = Some(WarmUp {
                    state: WarmUpState::Done.into(),
                    bytes_done: BYTES,
                    bytes_total: BYTES,
                    ..Default::default()
                });
            }
        });
        Ok(Response::new(WarmAnswer::default()))
    }

    async fn set_membership(
        &self,
        request: Request<Membership>,
    ) -> Result<Response<SetMembershipAnswer>, Status> {
        let epoch = request.into_inner().epoch;
        self.state.send_modify(|state| state.epoch = epoch);
        Ok(Response::new(SetMembershipAnswer { epoch }))
    }

    async fn use_versions(
        &self,
        request: Request<UseVersionsRequest>,
    ) -> Result<Response<UseVersionsAnswer>, Status> {
        let versions = request.into_inner().versions;
        self.state.send_modify(|state| state.versions.retain(|known| versions.contains(&known.version)));
        Ok(Response::new(UseVersionsAnswer { ready: versions, ..Default::default() }))
    }

    async fn why(&self, _: Request<WhyRequest>) -> Result<Response<WhyAnswer>, Status> {
        Ok(Response::new(WhyAnswer::default()))
    }
}
