//! How does kubelet come to know the driver, without a sidecar?
//!
//! Kubelet watches its folder of registrations: a socket that appears there is asked who it is, and then called at the
//! CSI socket that it names. A kubelet that starts again asks all sockets that are there.

use std::path::PathBuf;

use millrace_api::names::CSI_DRIVER;
use millrace_daemon::readiness::Condition;
use tonic::{Request, Response, Status};

use proto::registration_server::Registration;
use proto::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// What goes over the registration socket: the types generated from `proto/pluginregistration.proto`.
pub mod proto {
    #![allow(missing_docs, reason = "generated: what has no comment in the .proto is told by its name")]
    #![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]

    tonic::include_proto!("pluginregistration");
}

/// What kubelet calls a CSI driver.
const TYPE: &str = "CSIPlugin";

/// The version of CSI by which kubelet decides whether it can talk to the driver: the first of major version 1.
const CSI_VERSION: &str = "1.0.0";

/// Name of the registration socket in kubelet's folder.
pub const SOCKET_NAME: &str = "csi.millrace.dev-reg.sock";

/// The registration service.
#[derive(Debug)]
pub struct RegistrationService {
    /// The CSI socket, by its path on the host.
    pub csi_socket: PathBuf,
    /// Whether kubelet has taken the driver in.
    pub registered: Condition,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: TYPE.to_owned(),
            name: CSI_DRIVER.to_owned(),
            endpoint: self.csi_socket.display().to_string(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("registered with kubelet");
            self.registered.met();
        } else {
            // Kubelet tries again by itself.
            tracing::warn!(error, "kubelet does not take the driver in");
            self.registered.unmet(format!("kubelet does not take the driver in: {error}"));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
