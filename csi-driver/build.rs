//! Compiles the CSI and registration protocols without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    // The client is for the tests, which call as kubelet does.
    tonic_prost_build::configure()
        .skip_debug(["csi.v1.NodePublishVolumeRequest"])
        .compile_fds(descriptors)?;
    Ok(())
}
