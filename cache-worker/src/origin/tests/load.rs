//! The window follows what the server can take, and readers come first.

use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_closes_under_503s_and_opens_again_within_seconds() {
    let (server, objects) = server();
    let server =
        server.faults(FaultPlan::default().with_first_byte(Duration::from_millis(10))).start().await.unwrap();
    let origin = open(config_of(&server));
    let slow = FaultPlan::default()
        .with_first_byte(Duration::from_millis(10))
        .rule(Rule::from(Fault::SlowDown).probability(0.5));
    let load = |until: Instant| {
        let (origin, objects) = (origin.clone(), objects.clone());
        async move {
            while Instant::now() < until {
                read_big(&origin, &objects, 0..4096).await.unwrap();
            }
        }
    };
    let run = |seconds: u64| futures::future::join_all((0..100).map(move |_| load(within(seconds))));
    run(1).await;
    let open_at = origin.window().now().limit;
    server.set_faults(slow).unwrap();
    run(2).await;
    let closed_at = origin.window().now().limit;
    server.clear_faults();
    server.set_faults(FaultPlan::default().with_first_byte(Duration::from_millis(10))).unwrap();
    run(2).await;
    let open_again_at = origin.window().now().limit;
    assert!(open_at >= 32, "{open_at}");
    assert!(closed_at <= 24, "{closed_at}");
    assert!(open_again_at >= 32, "{open_again_at}");
    assert!(origin.counters().now().throttles > 0);
}

#[tokio::test]
async fn a_read_does_not_wait_for_a_warm_up_that_fills_the_window() {
    let (server, objects) = server();
    let plan = FaultPlan::default().with_rates(Some(200_000), None);
    let server = server.faults(plan).start().await.unwrap();
    let mut config = config_of(&server);
    config.deadlines = Deadlines::default();
    let window = Window::new(WindowConfig { min: 4, initial: 4, max: 4, max_bytes: 1 << 30 });
    let origin = Origin::new(config, window, Arc::default()).unwrap();
    let warm: Vec<_> = (0..20)
        .map(|_| {
            let (origin, object) = (origin.clone(), version(&objects, "big", SIZE));
            tokio::spawn(async move {
                let mut stream = origin.get(object, 0..SIZE, Priority::WarmUp, within(60));
                while stream.next().await.unwrap().is_some() {}
            })
        })
        .collect();
    while origin.window().now().warm_up < 3 {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    read(&origin, version(&objects, "small", 5), 0..5).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(origin.window().now().warm_up_waiting, 17);
    warm.iter().for_each(tokio::task::JoinHandle::abort);
}
