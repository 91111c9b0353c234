//! Do nodes and workers of builds that are one protocol version apart read right, or say why not?

use std::net::IpAddr;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::index::{IndexView, Node};
use millrace_api::keys::Key;
use millrace_s3_server::synthetic;
use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD};
use millrace_tests::kubernetes::readers::{self, SUM_ALL, check_sums};

use super::frozen::{Build, Client, Relay};

const CONTENTS: Contents = Contents { objects: 3, bytes: 3_000_001 };

const VOLUME: &str = "v1/PersistentVolume";
const CLAIM: &str = "v1/PersistentVolumeClaim";

fn worker_address(space: &Namespace<'_>) -> String {
    let pod = space.get(POD, "millrace-data-0").unwrap();
    format!("{}:7420", pod["status"]["podIP"].as_str().unwrap())
}

fn data_key(cluster: &Cluster, space: &Namespace<'_>) -> Key {
    let template = "go-template={{index .data \"data.key\" | base64decode}}";
    let args = ["get", "secret", "millrace-data-data", "-n", &space.name, "-o", template];
    let output = cluster.kubectl().args(args).output().unwrap();
    Key::from_hex(String::from_utf8(output.stdout).unwrap().trim()).unwrap()
}

/// The machine's address on the nodes' bridge, where the API server is too.
fn machine(cluster: &Cluster) -> IpAddr {
    let args = ["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"];
    let server = String::from_utf8(cluster.kubectl().args(args).output().unwrap().stdout).unwrap();
    let host = server.trim_start_matches("https://").split(':').next().unwrap();
    host.parse().unwrap_or_else(|error| panic!("{server}: {error}"))
}

#[test]
fn a_node_of_version_1_reads_from_todays_workers_and_one_of_version_2_is_told() {
    let test = "a_node_of_version_1_reads_from_todays_workers_and_one_of_version_2_is_told";
    let Some(cluster) = Cluster::shared(test) else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, "");
    let (key, address) = (data_key(&cluster, &space), worker_address(&space));
    let dataset = space.get(DATASET, "data").unwrap();
    let VersionId(version) = dataset["status"]["version"]["id"].as_str().unwrap().parse().unwrap();
    let mut old = Client::connect(&address, &key, 1).unwrap_or_else(|refusal| panic!("{refusal}"));
    let index = old.index(&version);
    let view = IndexView::open(&index).unwrap();
    view.verify().unwrap();
    for name in CONTENTS.keys() {
        let Some(Node::File(file)) = view.resolve(name.as_bytes()) else { panic!("no {name}") };
        let content = view.span(file).unwrap().file.content.0;
        let got = old.read(&version, file.0, &content, CONTENTS.bytes as usize);
        let mut wanted = vec![0; CONTENTS.bytes as usize];
        for (number, window) in wanted.chunks_mut(synthetic::MAX_WINDOW_BYTES).enumerate() {
            synthetic::fill(&name, (number * synthetic::MAX_WINDOW_BYTES) as u64, window);
        }
        assert!(got == wanted, "{name} is not as in the bucket");
    }
    let refusal = Client::connect(&address, &key, 2).err().expect("nobody speaks version 2");
    assert!(refusal.contains("protocol version 2"), "{refusal}");
}

/// Volume and claim of a Dataset's data by way of another address; the volume goes with this value.
struct Volume<'a> {
    space: &'a Namespace<'a>,
    name: &'a str,
}

impl<'a> Volume<'a> {
    fn new(space: &'a Namespace<'a>, name: &'a str, workers: &str) -> Self {
        let place = &space.name;
        space.apply(&format!(
            r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {place}-{name}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{namespace: {place}, name: {name}}}
  csi:
    driver: csi.millrace.dev
    volumeHandle: {place}-{name}
    readOnly: true
    nodePublishSecretRef: {{namespace: {place}, name: millrace-data-data}}
    volumeAttributes: {{dataset: {name}, namespace: {place}, uid: {place}-{name}, workers: "{workers}"}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: {place}-{name}
  resources: {{requests: {{storage: 1Gi}}}}
"#
        ));
        let pod = readers::pod(name, "", None, SUM_ALL)
            .replace(
                "  restartPolicy: Never\n",
                &format!(
                    "  restartPolicy: Never\n  volumes: [{{name: d, persistentVolumeClaim: {{claimName: {name}}}}}]\n"
                ),
            )
            .replace(
                "  - name: reader\n",
                "  - name: reader\n    volumeMounts: [{name: d, mountPath: /data}]\n",
            );
        space.apply(&pod);
        Self { space, name }
    }

    /// Removes pod, claim and volume.
    fn remove(self) {
        self.space.delete_and_wait(POD, self.name, READY);
        self.space.delete_and_wait(CLAIM, self.name, READY);
        self.space.delete_and_wait(VOLUME, &format!("{}-{}", self.space.name, self.name), READY);
    }
}

impl Drop for Volume<'_> {
    fn drop(&mut self) {
        let name = format!("{}-{}", self.space.name, self.name);
        self.space.cluster.objects.delete("", VOLUME, &name);
    }
}

#[test]
fn pods_read_from_a_worker_one_version_ahead_and_are_told_of_those_they_cannot_read_from() {
    let test = "pods_read_from_a_worker_one_version_ahead_and_are_told_of_those_they_cannot_read_from";
    let Some(cluster) = Cluster::shared(test) else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    // Not on a disk, where a pod on the worker's node would read it in place and need no data port.
    space.ready_dataset("data", &bucket, "workers: {cache: {tiers: [{medium: Memory, quota: 64Mi}]}}");
    let (at, worker) = (machine(&cluster), worker_address(&space));
    let relay = |build| Relay::start(at, worker.clone(), build);
    let later = relay(Build::Versions(2, 2));
    let ahead = relay(Build::Versions(1, 2));
    let first = relay(Build::First);
    // The driver waits long for workers that may yet come: this one first.
    let of_later = Volume::new(&space, "later", &later.address());
    let of_first = Volume::new(&space, "first", &first.address());
    let of_ahead = Volume::new(&space, "ahead", &ahead.address());
    check_sums(&space.output("ahead", RUN), &CONTENTS);
    assert!(ahead.frames_of_data() > 0, "the pod has read past the worker that is ahead");
    let told = Duration::from_secs(150);
    let event = space.wait_for_event("Pod", "first", "too old", told);
    assert!(event.contains("upgrade them"), "{event}");
    first.replace(Build::Versions(1, 1));
    check_sums(&space.output("first", RUN), &CONTENTS);
    space.wait_for_event("Pod", "later", "protocol versions 2..=2", told);
    later.replace(Build::Versions(1, 2));
    check_sums(&space.output("later", RUN), &CONTENTS);
    for volume in [of_later, of_first, of_ahead] {
        volume.remove();
    }
}
