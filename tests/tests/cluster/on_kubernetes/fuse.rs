//! Is a node without FUSE named where it matters, and used again once it has it?

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::plugin::Plugin;
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};

const FEW: Contents = Contents { objects: 3, bytes: 100_000 };

const NODE: &str = "node2";

/// The device of the driver's container on the node, as the node sees it. It is put back, with the node's own numbers, when
/// this value goes.
struct Device<'a> {
    cluster: &'a Cluster,
    path: String,
}

impl<'a> Device<'a> {
    fn of_driver(cluster: &'a Cluster) -> Self {
        let find = "for process in /proc/[0-9]*; do \
                    [ \"$(tr '\\0' ' ' <$process/cmdline | cut -d' ' -f1,2)\" = '/csi-driver serve' ] && echo $process/root/dev/fuse; \
                    done; true";
        let path = cluster.in_node(NODE, &["sh", "-c", find]).trim().to_owned();
        assert_eq!(path.lines().count(), 1, "one driver on {NODE}: {path:?}");
        Self { cluster, path }
    }

    fn remove(&self) {
        self.cluster.in_node(NODE, &["rm", "-f", &self.path]);
    }

    /// As on a node whose kernel has no FUSE: there is a file, and nothing behind it.
    fn put_an_empty_one(&self) {
        self.remove();
        self.cluster.in_node(NODE, &["mknod", "-m", "666", &self.path, "c", "10", "254"]);
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        let put_back = format!("rm -f {path}; mknod -m 666 {path} c 10 229", path = self.path);
        self.cluster.in_node(NODE, &["sh", "-c", &put_back]);
    }
}

#[test]
fn a_node_without_fuse_is_named_and_its_pods_start_once_it_has_it() {
    let Some(cluster) = Cluster::alone("a_node_without_fuse_is_named_and_its_pods_start_once_it_has_it")
    else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, FEW);
    space.ready_dataset("data", &bucket, "");
    let device = Device::of_driver(&cluster);
    device.put_an_empty_one();
    space.pod("reader", AT_DATA, Some(NODE), SUM_ALL);
    let event = space.wait_for_event("Pod", "reader", "modprobe fuse", READY);
    assert!(event.contains(NODE) && event.contains("/dev/fuse"), "{event}");
    plugin.wait_for_broken(&space, "reader", "node", "modprobe fuse");
    // Other nodes are no worse for it.
    space.pod("elsewhere", AT_DATA, Some("node1"), SUM_ALL);
    check_sums(&space.output("elsewhere", RUN), &FEW);
    // The module is loaded: the node has the device, the container that runs already has not.
    device.remove();
    check_sums(&space.output("reader", Duration::from_secs(150)), &FEW);
}
