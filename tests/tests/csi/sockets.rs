//! Does kubelet find the driver, also after somebody has wiped its folders?

use std::path::Path;
use std::time::Duration;

use millrace_csi_driver::csi::proto::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use millrace_csi_driver::registration::proto::registration_client::RegistrationClient;
use millrace_csi_driver::registration::proto::{InfoRequest, RegistrationStatus};
use millrace_tests::look::get;
use millrace_tests::program::until;
use millrace_tests::skip::{can_mount_as_root, is_root, skipped};
use tonic::transport::{Channel, Endpoint};

use super::driver::{Driver, Volume};
use super::publish::{assert_shows, cluster};

async fn registration(socket: &Path) -> RegistrationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    RegistrationClient::new(endpoint.connect().await.unwrap())
}

/// What kubelet does with each socket that it finds: asks, calls the driver, and tells how it went.
fn register(driver: &Driver) {
    let socket = driver.kubelet_dir().join("plugins_registry/csi.millrace.dev-reg.sock");
    let mut identity = driver.identity();
    driver.runtime.block_on(async {
        let mut kubelet = registration(&socket).await;
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "csi.millrace.dev"));
        assert_eq!(Path::new(&info.endpoint), driver.csi_socket());
        assert_eq!(info.supported_versions, ["1.0.0"]);
        let plugin = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(plugin.name, "csi.millrace.dev");
        identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        kubelet.notify_registration_status(status).await.unwrap();
    });
}

#[test]
fn kubelet_registers_the_driver_and_does_so_again_when_it_starts_anew() {
    if !is_root() {
        skipped("kubelet_registers_the_driver_and_does_so_again_when_it_starts_anew", "needs root");
        return;
    }
    let driver = Driver::start(&[]);
    let addresses: serde_json::Value =
        serde_json::from_slice(&std::fs::read(driver.dir().join("addresses.json")).unwrap()).unwrap();
    let admin = addresses["admin"].as_str().unwrap();
    assert!(get(admin, "/readyz").contains("registered: kubelet has not called yet"));
    for _ in 0..2 {
        register(&driver);
        assert!(get(admin, "/readyz").starts_with("HTTP/1.1 200"));
    }
    driver.runtime.block_on(async {
        let socket = driver.kubelet_dir().join("plugins_registry/csi.millrace.dev-reg.sock");
        let status = RegistrationStatus { plugin_registered: false, error: "too old".into() };
        registration(&socket).await.notify_registration_status(status).await.unwrap();
    });
    assert!(get(admin, "/readyz").contains("too old"));
    assert!(get(admin, "/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn wiped_plugin_folders_come_back_and_pods_are_published() {
    if !can_mount_as_root("wiped_plugin_folders_come_back_and_pods_are_published") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let before = driver.published(&volume, "p");
    let registry = driver.kubelet_dir().join("plugins_registry");
    std::fs::remove_dir_all(&registry).unwrap();
    std::fs::remove_file(driver.csi_socket()).unwrap();
    let sockets = [driver.csi_socket(), registry.join("csi.millrace.dev-reg.sock")];
    until("the sockets are back", Duration::from_secs(20), || sockets.iter().all(|socket| socket.exists()));
    register(&driver);
    let after = driver.published(&volume, "q");
    [&before, &after].into_iter().for_each(|target| assert_shows(target));
}
