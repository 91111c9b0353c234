//! What goes over the control port? The types generated from `proto/control.proto`, whose comments document them.

#![allow(missing_docs, reason = "generated: what has no comment in the .proto is told by its name")]
#![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]

tonic::include_proto!("millrace.control.v1");
