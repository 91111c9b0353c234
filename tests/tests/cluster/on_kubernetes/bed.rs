//! Does the test bed itself work: pods, names, the S3 server?

use millrace_tests::kubernetes::bucket::{BUCKET, Bucket, Contents, FIRST};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, RUN};

#[test]
fn pods_find_the_s3_server_by_its_name() {
    let Some(cluster) = Cluster::shared("pods_find_the_s3_server_by_its_name") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 1000));
    let script = format!(
        "for node in 1 2 3; do wget -O - {}/{BUCKET}/{FIRST} || echo refused; done 2>&1",
        bucket.endpoint
    );
    space.pod("client", "", Some("node3"), &script);
    let output = space.output("client", RUN);
    // It wants a signature.
    assert_eq!(output.matches("403").count(), 3, "{output}");
    assert_eq!(bucket.counters().requests.get("GetObject"), Some(&3));
}
