//! Do mounts find workers by the name of their service, and come through when these move?

use std::time::Duration;

use millrace_control::proto;
use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_file};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::program::until;
use millrace_tests::skip::can_mount;

fn files() -> Files {
    Files::new().with_many("large", 6, 2 * MIB + 5).with_many("small", 40, 40_000)
}

/// A mount that knows the workers by `services` only, and tells them of itself.
fn by_service(cluster: &Cluster, services: &[&str]) -> MountSetup {
    // A file without workers: the harness always names one.
    let empty = cluster.dir().join("nobody.json");
    std::fs::write(&empty, r#"{"epoch": 0, "workers": []}"#).unwrap();
    MountSetup::default()
        .arg("--membership-file", empty.to_str().unwrap())
        .arg("--workers-service", services.join(","))
        .arg("--node-name", "node-7")
}

/// The port of an address, behind a name.
fn by_name(address: &str) -> String {
    format!("localhost:{}", address.rsplit_once(':').unwrap().1)
}

fn sessions(cluster: &Cluster, number: usize) -> Vec<proto::Session> {
    cluster.status(number).sessions
}

#[test]
fn the_only_worker_may_come_back_at_another_port_under_a_reader() {
    if !can_mount("the_only_worker_may_come_back_at_another_port_under_a_reader") {
        return;
    }
    let files = files();
    let mut cluster = Cluster::of(files.objects());
    let (before, later) = (by_name(&cluster.workers[0].data), vacant_port());
    let mounted = Mounted::start(&cluster, &by_service(&cluster, &[&before, &later]));
    check_file(&mounted.point, "small/000", 40_000);
    cluster.workers[0].program.kill();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| files.check(&mounted.point));
        // Long enough for the reader to have found nobody.
        std::thread::sleep(Duration::from_secs(1));
        assert!(!reading.is_finished(), "the reader waits");
        cluster.workers[0].restart_at(&later.replace("localhost", "127.0.0.1"));
        // It knows nothing of its new address until somebody sees it.
        std::thread::sleep(Duration::from_millis(500));
        cluster.tell_membership(2);
    });
    until("the mount is known again", Duration::from_secs(10), || sessions(&cluster, 0).len() == 1);
}

#[test]
fn a_mount_waits_for_a_service_that_has_no_worker_yet() {
    if !can_mount("a_mount_waits_for_a_service_that_has_no_worker_yet") {
        return;
    }
    let files = files();
    let mut cluster = Cluster::of(files.objects());
    let service = by_name(&cluster.workers[0].data);
    cluster.workers[0].program.kill();
    let mounting = by_service(&cluster, &[&service]);
    let mut worker = cluster.workers.remove(0);
    std::thread::scope(|scope| {
        // A process dies with the thread that has started it.
        let reading = scope.spawn(|| files.check(&Mounted::start(&cluster, &mounting).point));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!reading.is_finished(), "nobody has the index");
        worker.restart();
    });
    cluster.workers.insert(0, worker);
}

#[test]
fn workers_know_which_pods_of_which_node_have_it_mounted() {
    if !can_mount("workers_know_which_pods_of_which_node_have_it_mounted") {
        return;
    }
    let cluster = Cluster::start(files().objects(), &Setup::workers(2));
    let service = by_name(&cluster.workers[1].data);
    let pods = cluster.dir().join("pods.json");
    let put = |names: &[&str]| {
        let pod = |name: &&str| format!(r#"{{"namespace": "vision", "name": "{name}", "uid": "u-{name}"}}"#);
        let list: Vec<_> = names.iter().map(pod).collect();
        std::fs::write(pods.with_extension("new"), format!("[{}]", list.join(","))).unwrap();
        std::fs::rename(pods.with_extension("new"), &pods).unwrap();
    };
    let setup = by_service(&cluster, &[&service]).arg("--pods-file", pods.to_str().unwrap());
    let mounted = Mounted::start(&cluster, &setup);
    let listed = |number| {
        let all = sessions(&cluster, number).into_iter();
        all.map(|one| (one.node, one.version, one.pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>()))
            .collect::<Vec<_>>()
    };
    let expected = |pods: &[&str]| {
        let pods = pods.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        vec![("node-7".to_owned(), cluster.version.clone(), pods)]
    };
    for names in [&[][..], &["train-0"], &["train-0", "train-1"], &["train-1"]] {
        if !names.is_empty() {
            put(names);
        }
        for number in 0..2 {
            until("the pods are listed", Duration::from_secs(10), || listed(number) == expected(names));
        }
    }
    drop(mounted);
    for number in 0..2 {
        until("the mount is forgotten", Duration::from_secs(10), || listed(number).is_empty());
    }
}

/// A name and port where nobody listens.
fn vacant_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    by_name(&listener.local_addr().unwrap().to_string())
}
