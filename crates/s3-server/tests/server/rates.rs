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

/// A rate can only be missed downwards by a busy machine, so the lower bound is wide and the upper is not.
fn near(rate: f64, wanted: f64) {
    assert!((0.85 * wanted..1.05 * wanted).contains(&rate), "{:.1} MB/s of {:.1}", rate / 1e6, wanted / 1e6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stream_keeps_its_own_rate() {
    let (_server, client) = server(Some(80_000_000), None).await;
    read(&client, 0, 1000).await;
    let start = Instant::now();
    join_all((0..3).map(|object| read(&client, object, 40_000_000))).await;
    near(40e6 / start.elapsed().as_secs_f64(), 80e6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_streams_together_keep_the_total() {
    let (_server, client) = server(None, Some(400_000_000)).await;
    let start = Instant::now();
    join_all((0..8).map(|object| read(&client, object, 25_000_000))).await;
    near(200e6 / start.elapsed().as_secs_f64(), 400e6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_share_the_total_and_keep_their_own() {
    let (_server, client) = server(Some(40_000_000), Some(100_000_000)).await;
    let start = Instant::now();
    join_all((0..5).map(|object| read(&client, object, 10_000_000))).await;
    near(50e6 / start.elapsed().as_secs_f64(), 100e6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_are_not_held_up() {
    let (_server, client) = server(Some(80_000_000), Some(400_000_000)).await;
    read(&client, 0, 4096).await;
    let start = Instant::now();
    for object in 0..100 {
        read(&client, object % 16, 4096).await;
    }
    let each = start.elapsed().as_secs_f64() / 100.0;
    assert!(each < 0.008, "{:.1} ms", each * 1e3);
}
