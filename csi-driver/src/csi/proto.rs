//! What goes over the CSI socket? The types generated from `proto/csi.proto`, whose comments document them.

#![allow(missing_docs, reason = "generated: what has no comment in the .proto is told by its name")]
#![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]

tonic::include_proto!("csi.v1");
