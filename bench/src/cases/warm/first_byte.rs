//! How long does a read take that a worker can answer at once, beyond what TCP takes?

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_api::block::CHUNK_BYTES;
use millrace_api::ids::{ContentId, VersionId};
use millrace_api::wire::{BatchItem, DataHead, HEADER_BYTES, Read, Request};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::blocks::Access;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index::sample;

use crate::cases::Outcome;
use crate::cases::local_worker;
use crate::cases::scene::{QUOTA, Scene};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::read_at;
use crate::rig::echo::Echo;
use crate::rig::metrics_page;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::namespace::Namespace;
use crate::rig::usage::CpuSplit;
use crate::stats::median;

/// Reads in a round. All of them together are less than what makes the mount fetch the rest by itself.
const READS: usize = 1000;

/// Chunks between two reads in turn, at least: 8 MiB.
const FAR: usize = 128;

/// The object.
const BUCKET: &str = "bucket=first,objects=1,size=2GiB";

/// How the mount comes to the worker's bytes.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// It finds the worker's tier on its node.
    InPlace,
    /// By the data port on one host, as from a tier that cannot be read in place.
    Port,
    /// By the data port over a link between two network namespaces.
    Link(&'a Namespace),
}

/// Worker and mount on one host: in place, and for comparison by the data port.
pub fn local(lab: &Lab) -> Result<Outcome> {
    let mut measured = vec![measure(lab, "first-byte-local", bar(150.0), Way::InPlace)?];
    measured.push(measure(lab, "first-byte-local-port", Bar::Reported, Way::Port)?);
    Ok(Outcome::Measured(measured))
}

/// Worker and mount in two network namespaces with a link between them.
pub fn remote(lab: &Lab) -> Result<Outcome> {
    match Namespace::new() {
        Ok(namespace) => {
            let measured = measure(lab, "first-byte-remote", bar(250.0), Way::Link(&namespace))?;
            Ok(Outcome::Measured(vec![measured]))
        }
        Err(error) => Ok(Outcome::Skipped(format!("{error:#}"))),
    }
}

/// 64 KiB at random places of 2 GiB that the worker holds, past the page cache of the mount, each place once; a new mount and node store
/// in each round, so that the node store has none of it.
fn measure(lab: &Lab, case: &str, bar: Bar, way: Way<'_>) -> Result<Measured> {
    let (medium, namespace) = match way {
        Way::InPlace => (Medium::Disk, None),
        Way::Port => (Medium::Memory, None),
        Way::Link(namespace) => (Medium::Memory, Some(namespace)),
    };
    let here = namespace.map_or(Ipv4Addr::LOCALHOST, Namespace::here);
    let scene = Scene::start(lab, BUCKET, FaultPlan::default())?;
    let file = scene.files.first().context("the bucket is empty")?;
    let mut workers = Workers::start_at(lab, &scene.setup(1, medium), here)?;
    workers.warm_all(lab)?;
    let (request, answer) = (request_bytes(), HEADER_BYTES + DataHead::BYTES + CHUNK_BYTES as usize);
    let echo = Echo::start(here, request, answer)?;
    let mut connection = there(namespace, || echo.connect())?;
    let (mut split, mut slow) = (CpuSplit::default(), Vec::new());
    let mut measured = lab.compare(
        Measured::new(case, "us", bar),
        |round| {
            let (mounted, _node) = match way {
                Way::InPlace => local_worker::mount(lab, &workers, true)?,
                Way::Port => local_worker::mount(lab, &workers, false)?,
                Way::Link(namespace) => {
                    let node = lab.disk_dir("node")?;
                    let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
                    let start = |program: &Path| namespace.command(program);
                    (Mounted::start_by(lab, &workers, Some(&store), start)?, node)
                }
            };
            let mut processes = workers.pids();
            processes.extend([("mount", mounted.program.pid()), ("reader", std::process::id())]);
            let offsets = offsets(round, file.size);
            let length = CHUNK_BYTES as usize;
            let times = split.during(&processes, || {
                read_at(lab, mounted.path(), file, &offsets, length, Access::Direct)
            })?;
            let page = there(namespace, || metrics_page::fetch(&mounted.admin))?;
            let misses = metrics_page::sum(&page, "csi_driver_reads_total", "result=\"miss\"");
            let expected = if matches!(way, Way::InPlace) { 0 } else { READS };
            ensure!(
                misses == expected as f64,
                "{misses} of {READS} reads went to the worker, not {expected}"
            );
            let mut times = micros(&times);
            times.sort_by(f64::total_cmp);
            slow.extend(times.get(READS * 99 / 100));
            median(&times).context("no reads")
        },
        |_| median(&micros(&ask(&echo, &mut connection)?)).context("no answers"),
    )?;
    measured.notes = vec![
        format!("the baseline: {request} bytes by TCP there, {answer} back, between two threads"),
        format!("99 % of our reads take at most {:.0} us", median(&slow).unwrap_or_default()),
        split.note("of ours"),
    ];
    Ok(measured)
}

fn bar(micros: f64) -> Bar {
    Bar::AtMost(Figure::Above, micros)
}

/// Does something where the mount is.
fn there<T: Send>(namespace: Option<&Namespace>, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    match namespace {
        Some(namespace) => namespace.run(work),
        None => work(),
    }
}

fn ask(echo: &Echo, connection: &mut TcpStream) -> Result<Vec<Duration>> {
    echo.ask(connection, READS)
}

fn micros(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * 1e6).collect()
}

/// Bytes of a request for one chunk.
fn request_bytes() -> usize {
    let item = BatchItem { file: 0, content: ContentId([0; 16]), chunks: 0..1 };
    let version = VersionId([0; 16]);
    let mut frame = Vec::new();
    Request::Read(Read { version, item, epoch: 1, deadline_ms: 10_000, flags: 0 }).encode(1, &mut frame);
    frame.len()
}

/// Places that differ from round to round and are the same in every run: no place twice, not the first one, and none so near the
/// one before that the mount would take the reader for a sequential one and fetch ahead.
fn offsets(round: usize, size: u64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(round as u64);
    let chunks = (size / CHUNK_BYTES) as usize;
    let mut last = 0;
    let is_far = |chunk: &usize| {
        let is_far = chunk.abs_diff(last) > FAR;
        if is_far {
            last = *chunk;
        }
        is_far
    };
    let places = sample(&mut random, chunks, 2 * READS).into_iter().filter(is_far);
    places.take(READS).map(|chunk| chunk as u64 * CHUNK_BYTES).collect()
}
