//! What does kubelet ask of this node, and what is answered?

use std::time::Instant;

use tonic::{Code, Request, Response, Status};
use tracing::Instrument;

use super::error;
use super::proto::node_server::Node;
use super::proto::node_service_capability::{Rpc, Type, rpc};
use super::proto::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, VolumeCondition, VolumeUsage, volume_usage,
};
use crate::driver_metrics::{Call, DriverMetrics};
use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::publish::request::{Publish, RequestError, required, target};
use crate::publish::stats::Stats;

/// The Node service.
#[derive(Debug, Clone)]
pub struct NodeService {
    node: String,
    publisher: Publisher,
    metrics: DriverMetrics,
}

impl NodeService {
    /// The service of this node.
    pub fn new(node: String, publisher: Publisher, metrics: DriverMetrics) -> Self {
        Self { node, publisher, metrics }
    }

    /// Counts a call that ended, and logs one that failed: it stops travelling here.
    fn end<T>(
        &self,
        call: Call,
        started: Instant,
        ended: Result<T, PublishError>,
    ) -> Result<Response<T>, Status> {
        let code = ended.as_ref().err().map_or(Code::Ok, error::code);
        self.metrics.observe(call, code, started.elapsed());
        ended.map(Response::new).map_err(|error| {
            let status = error::status(&error);
            tracing::warn!(call = call.name(), ?code, error = status.message(), "a call failed");
            status
        })
    }

    async fn publish(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, PublishError> {
        let volume_id = request.volume_id.clone();
        let publish = Publish::parse(request).map_err(refuse(&volume_id))?;
        let (dataset, target, pod) =
            (publish.dataset.full_name(), publish.target.clone(), publish.pod.clone());
        self.publisher.publish(publish).await?;
        tracing::info!(dataset, volume_id, target_path = %target.display(), pod = ?pod.map(|pod| pod.name), "published");
        Ok(NodePublishVolumeResponse {})
    }

    async fn unpublish(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, PublishError> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request;
        let checked = required("volume_id", volume_id.clone()).and_then(|_| target(&target_path));
        let target = checked.map_err(refuse(&volume_id))?;
        self.publisher.unpublish(volume_id.clone(), target).await?;
        tracing::info!(volume_id, target_path, "unpublished");
        Ok(NodeUnpublishVolumeResponse {})
    }

    async fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, PublishError> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request;
        let checked = required("volume_id", volume_id.clone())
            .and_then(|_| required("volume_path", volume_path.clone()));
        let path = checked.map_err(refuse(&volume_id))?;
        let Stats { usage, trouble } = self.publisher.stats(volume_id, path.into()).await?;
        let usage = usage.into_iter().flat_map(|usage| {
            [used(usage.bytes, volume_usage::Unit::Bytes), used(usage.inodes, volume_usage::Unit::Inodes)]
        });
        let abnormal = trouble.is_some();
        let message = trouble.unwrap_or_else(|| "the mount answers".to_owned());
        let volume_condition = Some(VolumeCondition { abnormal, message });
        Ok(NodeGetVolumeStatsResponse { usage: usage.collect(), volume_condition })
    }
}

/// All of a dataset is in use: nothing can be added.
fn used(total: u64, unit: volume_usage::Unit) -> VolumeUsage {
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    VolumeUsage { available: 0, total, used: total, unit: unit.into() }
}

fn refuse(volume_id: &str) -> impl FnOnce(RequestError) -> PublishError {
    let volume_id = volume_id.to_owned();
    move |source| PublishError::Refuse { volume_id, source }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let (started, request) = (Instant::now(), request.into_inner());
        // Never with the request in it: it holds the key.
        let span = tracing::info_span!("NodePublishVolume", volume_id = request.volume_id);
        self.end(Call::Publish, started, self.publish(request).instrument(span).await)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let (started, request) = (Instant::now(), request.into_inner());
        let span = tracing::info_span!("NodeUnpublishVolume", volume_id = request.volume_id);
        self.end(Call::Unpublish, started, self.unpublish(request).instrument(span).await)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let started = Instant::now();
        self.end(Call::Stats, started, self.stats(request.into_inner()).await)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = [rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition].map(capability).into();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse { node_id: self.node.clone(), max_volumes_per_node: 0 }))
    }
}
