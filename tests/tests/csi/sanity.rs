//! Does csi-sanity, the conformance tests of CSI, pass? With which of its specs skipped?
//!
//! It finds volumes by a controller, which this driver has none of. So it is run twice: on the driver as it is, and on a
//! front of it that adds a controller whose only volume is the dataset of a real worker, so that its publish specs run.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use millrace_tests::skip::{can_mount_as_root, skipped};
use prost::Message;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::UnaryService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::driver::{Driver, Volume};
use super::publish::cluster;

/// What is skipped on a driver without a controller, besides the services that it does not have: those that create volumes.
const SKIPPED_OF_NODE: [&str; 10] = [
    // Need a controller; run on the front.
    "Node Service should work",
    "Node Service should be idempotent",
    "Node Service NodeUnpublishVolume should remove target path",
    "Node Service NodeGetVolumeStats should fail when volume does not exist on the specified path",
    // Are of calls that this driver does not have.
    "Node Service NodeStageVolume",
    "Node Service NodeUnstageVolume",
    "Node Service NodeExpandVolume",
    "Node Service NodeGetStorageHealth",
    "Node Service NodeGetVolumeHealth",
    // Is of single writers: here nobody writes, so every mode is fine beside every other.
    "Node Service NodePublishVolume with single node multi writer capability",
];

/// Specs that fail instead of being skipped where there is no controller, a known fault of csi-test.
const NEED_CONTROLLER: &str = r"\[Controller|should remove target path|does not exist on the specified path";

/// What a front forwards to, and the volume that its controller has.
#[derive(Clone)]
struct Front {
    driver: Channel,
    volume: Volume,
}

#[derive(Clone, PartialEq, Message)]
struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    volume: Option<CreatedVolume>,
}

#[derive(Clone, PartialEq, Message)]
struct CreatedVolume {
    #[prost(int64, tag = "1")]
    capacity_bytes: i64,
    #[prost(string, tag = "2")]
    volume_id: String,
    #[prost(map = "string, string", tag = "3")]
    volume_context: HashMap<String, String>,
}

/// One capability, the first of its kind: CONTROLLER_SERVICE of a plugin, CREATE_DELETE_VOLUME of a controller.
const FIRST_CAPABILITY: &[u8] = &[0x0a, 4, 0x0a, 2, 0x08, 1];

/// Messages as they are.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

struct Call {
    front: Front,
    path: PathAndQuery,
}

impl UnaryService<Bytes> for Call {
    type Response = Bytes;
    type Future = BoxFuture<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (Front { driver, volume }, path) = (self.front.clone(), self.path.clone());
        Box::pin(async move {
            match path.as_str() {
                "/csi.v1.Identity/GetPluginCapabilities" | "/csi.v1.Controller/ControllerGetCapabilities" => {
                    Ok(Response::new(Bytes::from_static(FIRST_CAPABILITY)))
                }
                "/csi.v1.Controller/CreateVolume" => {
                    let Volume { id, attributes, .. } = volume;
                    let created =
                        CreatedVolume { capacity_bytes: 0, volume_id: id, volume_context: attributes };
                    let response = CreateVolumeResponse { volume: Some(created) };
                    Ok(Response::new(response.encode_to_vec().into()))
                }
                "/csi.v1.Controller/DeleteVolume" => Ok(Response::new(Bytes::new())),
                other if other.starts_with("/csi.v1.Controller/") => {
                    Err(Status::unimplemented(other.to_owned()))
                }
                _ => {
                    let mut client = tonic::client::Grpc::new(driver);
                    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
                    client.unary(Request::new(request.into_inner()), path, Raw).await
                }
            }
        })
    }
}

impl Service<http::Request<Body>> for Front {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = Call { front: self.clone(), path: request.uri().path().parse().unwrap() };
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(call, request).await) })
    }
}

/// The program, where it has been built.
fn csi_sanity(test: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build-tool");
    let output = Command::new(script).arg("--path").output().unwrap();
    let program = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()).join("csi-sanity");
    if !program.exists() {
        skipped(test, "csi-sanity is not built (scripts/build-tool csi-sanity)");
        return None;
    }
    Some(program)
}

/// Specs by how they ended.
#[derive(Debug, Default)]
struct Report {
    passed: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

/// Runs the specs that match `focus` and not `skip` on a socket; fails where one of them does.
fn run(program: &Path, driver: &Driver, socket: &Path, [focus, skip]: [&str; 2], secret: &Volume) -> Report {
    let (secrets, report) = (driver.dir().join("secrets.yaml"), driver.dir().join("report.xml"));
    std::fs::write(
        &secrets,
        format!("NodePublishVolumeSecret:\n  data.key: {}\n", secret.secrets["data.key"]),
    )
    .unwrap();
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let output = Command::new(program)
        .arg(flag("csi.endpoint", socket))
        .arg(flag("csi.mountdir", &driver.kubelet_dir().join("pods/sanity")))
        .arg(flag("csi.stagingdir", &driver.kubelet_dir().join("sanity-staging")))
        .arg(flag("csi.secrets", &secrets))
        .arg(flag("ginkgo.junit-report", &report))
        .args([
            format!("--ginkgo.focus={focus}"),
            format!("--ginkgo.skip={skip}"),
            "--ginkgo.no-color".into(),
            "--ginkgo.v".into(),
        ])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}\n{}", driver.program.log());
    read(&std::fs::read_to_string(report).unwrap())
}

fn read(report: &str) -> Report {
    let mut read = Report::default();
    for case in report.split("<testcase ").skip(1) {
        let attribute =
            |name: &str| case.split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
        let (Some(name), Some(status)) = (attribute("name"), attribute("status")) else { continue };
        let Some(name) = name.strip_prefix("[It] ") else { continue };
        match status {
            "passed" => drop(read.passed.insert(name.to_owned())),
            _ => drop(read.skipped.insert(name.to_owned())),
        }
    }
    read
}

#[test]
fn csi_sanity_passes_with_known_specs_skipped() {
    let name = "csi_sanity_passes_with_known_specs_skipped";
    if !can_mount_as_root(name) {
        return;
    }
    let Some(program) = csi_sanity(name) else { return };
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");

    let front = Front { driver: channel(&driver, &driver.csi_socket()), volume: volume.clone() };
    let socket = driver.dir().join("front.sock");
    let listener = driver.runtime.block_on(async { UnixListener::bind(&socket).unwrap() });
    driver.runtime.spawn(Server::builder().serve_with_incoming(front, UnixListenerStream::new(listener)));
    let of_front = run(&program, &driver, &socket, ["Node Service|Identity Service", "^$"], &volume);
    for spec in &SKIPPED_OF_NODE[..4] {
        assert!(of_front.passed.iter().any(|passed| passed.contains(spec)), "{spec}: {of_front:?}");
    }
    let only_missing_calls =
        |skipped: &&String| SKIPPED_OF_NODE[4..].iter().any(|spec| skipped.contains(spec));
    assert_eq!(
        of_front
            .skipped
            .iter()
            .find(|skipped| !only_missing_calls(skipped) && skipped.contains("Node Service")),
        None
    );

    let as_it_is = run(&program, &driver, &driver.csi_socket(), ["", NEED_CONTROLLER], &volume);
    let is_known = |skipped: &&String| {
        let of_others = ["[Controller Server]", "[GroupController", "SnapshotMetadata"];
        SKIPPED_OF_NODE.iter().chain(&of_others).any(|known| skipped.contains(known))
    };
    assert_eq!(as_it_is.skipped.iter().find(|skipped| !is_known(skipped)), None, "{as_it_is:?}");
    skipped(
        name,
        &format!(
            "{} specs of csi-sanity for calls that a node's driver does not have",
            as_it_is.skipped.len()
        ),
    );
}

fn channel(driver: &Driver, socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    driver.runtime.block_on(async { endpoint.connect_lazy() })
}
