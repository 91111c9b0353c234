//! Are the rates of the plan kept?

use std::time::Instant;

use aws_sdk_s3::Client;
use futures::future::join_all;
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::server::S3Server;

use crate::client::anonymous;

async fn server(per_stream: Option<u64>, total: Option<u64>) -> (S3Server, Client) {
    let spec: SyntheticSpec = "objects=16,size=1GiB".parse().unwrap();
    let plan = FaultPlan::default().with_rates(per_stream, total);
    let server = S3Server::builder().bucket("data", spec).faults(plan).start().await.unwrap();
    let client = anonymous(&server);
    (server, client)
}

/// Reads `bytes` of one object and throws them away.
async fn read(client: &Client, object: usize, bytes: u64) {
    let key = format!("f{object:08}.bin");
    let range = format!("bytes=0-{}", bytes - 1);
    let mut body = client.get_object().bucket("data").key(key).range(range).send().await.unwrap().body;
    let mut left = bytes;
    while let Some(piece) = body.try_next().await.unwrap() {
        left -= piece.len() as u64;
    }
    assert_eq!(left, 0);
}

/// Reads `bytes` of so many objects at once, and wants the rate of all together. A busy machine can only be too slow, so
/// it gets three tries; too fast is wrong at once.
async fn near(client: &Client, objects: usize, bytes: u64, wanted: f64) {
    let mut rates = Vec::new();
    while rates.len() < 3 {
        let start = Instant::now();
        join_all((0..objects).map(|object| read(client, object, bytes))).await;
        let rate = (objects as u64 * bytes) as f64 / start.elapsed().as_secs_f64();
        assert!(rate < 1.05 * wanted, "{:.1} MB/s of {:.1}", rate / 1e6, wanted / 1e6);
        if rate > 0.93 * wanted {
            return;
        }
        rates.push(rate / 1e6);
    }
    panic!("{rates:.1?} MB/s of {:.1}", wanted / 1e6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stream_keeps_its_own_rate() {
    let (_server, client) = server(Some(80_000_000), None).await;
    near(&client, 3, 24_000_000, 240e6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_streams_together_keep_the_total() {
    let (_server, client) = server(None, Some(400_000_000)).await;
    near(&client, 8, 20_000_000, 400e6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_share_the_total_and_keep_their_own() {
    let (_server, client) = server(Some(40_000_000), Some(100_000_000)).await;
    near(&client, 5, 6_000_000, 100e6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_are_not_held_up() {
    let (_server, client) = server(Some(80_000_000), Some(400_000_000)).await;
    let mut took = Vec::new();
    for object in 0..100 {
        let start = Instant::now();
        read(&client, object % 16, 4096).await;
        took.push(start.elapsed());
    }
    took.sort();
    // 4 KiB at that rate are 51 microseconds; a timer would add a millisecond or two.
    assert!(took[50].as_millis() < 5, "{took:?}");
}
