//! Is the control port open to holders of the key, to nobody else, and are both sides sure of each other?

#![expect(clippy::unwrap_used, reason = "a helper of a test panics as the test does")]

use std::pin::Pin;
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_control::client::{Client, Unproven, client};
use millrace_control::proto::control_server::{Control, ControlServer};
use millrace_control::proto::*;
use millrace_control::server::serve;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

struct TestWorker;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Control for TestWorker {
    type MakeIndexStream = Answers<MakeIndexProgress>;
    type StatusStream = Answers<WorkerStatus>;

    async fn get_info(&self, _: Request<GetInfoRequest>) -> Result<Response<Info>, Status> {
        Ok(Response::new(Info { worker: "w-0".into(), ..Info::default() }))
    }

    async fn make_index(
        &self,
        _: Request<MakeIndexRequest>,
    ) -> Result<Response<Self::MakeIndexStream>, Status> {
        let listing = make_index_progress::Step::Listing(Listing { objects: 1, bytes: 2, requests: 3 });
        let made = make_index_progress::Step::Made(IndexMade { objects: 1, ..IndexMade::default() });
        let steps = [listing, made].map(|step| Ok(MakeIndexProgress { step: Some(step) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(steps))))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<Self::StatusStream>, Status> {
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            for epoch in 1..4 {
                let _ = sender.send(Ok(WorkerStatus { epoch, ..WorkerStatus::default() })).await;
            }
            sender.closed().await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn warm(&self, request: Request<WarmRequest>) -> Result<Response<WarmAnswer>, Status> {
        let unknown_paths = request.into_inner().paths;
        Ok(Response::new(WarmAnswer { warm_up: None, unknown_paths }))
    }

    async fn set_membership(
        &self,
        request: Request<Membership>,
    ) -> Result<Response<SetMembershipAnswer>, Status> {
        Ok(Response::new(SetMembershipAnswer { epoch: request.into_inner().epoch }))
    }

    async fn use_versions(
        &self,
        _: Request<UseVersionsRequest>,
    ) -> Result<Response<UseVersionsAnswer>, Status> {
        Err(Status::failed_precondition("as told"))
    }

    async fn why(&self, _: Request<WhyRequest>) -> Result<Response<WhyAnswer>, Status> {
        Ok(Response::new(WhyAnswer::default()))
    }
}

fn key() -> Key {
    Key::new([5; 32])
}

async fn start() -> (String, CancellationToken, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shutdown = CancellationToken::new();
    let served = serve(listener, key(), TestWorker, shutdown.clone());
    (address, shutdown, tokio::spawn(async { served.await.unwrap() }))
}

async fn ask(client: &mut Client) -> Result<String, Status> {
    client.get_info(GetInfoRequest {}).await.map(|answer| answer.into_inner().worker)
}

#[tokio::test]
async fn a_holder_of_the_key_is_served() {
    let (address, _shutdown, _task) = start().await;
    let mut client = client(&address, key()).unwrap();
    assert_eq!(ask(&mut client).await.unwrap(), "w-0");
    assert_eq!(ask(&mut client).await.unwrap(), "w-0");
    let steps = client.make_index(MakeIndexRequest::default()).await.unwrap().into_inner();
    assert_eq!(steps.collect::<Vec<_>>().await.len(), 2);
    let error = client.use_versions(UseVersionsRequest::default()).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::FailedPrecondition, "as told"));
}

#[tokio::test]
async fn another_key_is_refused() {
    let (address, _shutdown, _task) = start().await;
    let mut client = client(&address, Key::new([6; 32])).unwrap();
    let error = ask(&mut client).await.unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated);
    assert!(error.message().contains("control key"), "{error}");
}

#[tokio::test]
async fn a_call_without_a_proof_is_refused() {
    let (address, _shutdown, _task) = start().await;
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let mut client = control_client::ControlClient::new(channel);
    let error = client.get_info(GetInfoRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_server_that_does_not_hold_the_key_is_not_believed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let impostor = tonic::transport::Server::builder().add_service(ControlServer::new(TestWorker));
    tokio::spawn(impostor.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut client = client(&address, key()).unwrap();
    let error = ask(&mut client).await.unwrap_err();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        if error.is::<Unproven>() {
            return;
        }
        cause = error.source();
    }
    panic!("{error:?}");
}

#[tokio::test]
async fn status_streams_go_on_and_a_stop_ends_them() {
    let (address, shutdown, task) = start().await;
    let mut client = client(&address, key()).unwrap();
    let mut status = client.status(StatusRequest {}).await.unwrap().into_inner();
    for epoch in 1..4 {
        assert_eq!(status.next().await.unwrap().unwrap().epoch, epoch);
    }
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(3), task).await.unwrap().unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(3), status.next()).await.unwrap();
    assert!(ended.is_none_or(|ended| ended.is_err()));
}

#[tokio::test]
async fn a_worker_that_is_not_there_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = ask(&mut client(&address, key()).unwrap()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}

#[test]
fn an_address_that_is_none_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    assert!(client("not an address", key()).is_err());
}
