//! Does a job on storage of known speed come to the utilization that arithmetic predicts?

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::order::{Layout, Sample};
use super::profile::{Accelerator, Model, Profile};
use super::virtual_clock::VirtualClock;
use super::*;
use crate::clock::{Clock, Monotonic};
use crate::tree::{MAX_FILES, Tree};

/// Storage that takes its time for each sample, and knows what was asked of it.
struct Slow<'a> {
    clock: &'a VirtualClock,
    /// Of each sample, for each thread on its own.
    latency: Duration,
    /// Of each byte, one after the other for all threads: a link.
    nanos_per_byte: f64,
    free_at: Mutex<Duration>,
    seen: Mutex<HashMap<(usize, u64), u32>>,
    fails_after: Option<usize>,
}

impl<'a> Slow<'a> {
    fn new(clock: &'a VirtualClock, latency: Duration, megabytes_per_second: f64) -> Self {
        let nanos_per_byte = if megabytes_per_second.is_finite() { 1e3 / megabytes_per_second } else { 0.0 };
        Self {
            clock,
            latency,
            nanos_per_byte,
            free_at: Mutex::default(),
            seen: Mutex::default(),
            fails_after: None,
        }
    }
}

impl Source for Slow<'_> {
    fn read(&self, sample: &Sample, _scratch: &mut Scratch) -> Result<u64, Error> {
        let mut seen = self.seen.lock();
        *seen.entry((sample.file, sample.offset)).or_default() += 1;
        if self.fails_after.is_some_and(|most| seen.len() > most) {
            return Err(Error::Read { path: "f".into(), offset: 0, source: std::io::Error::other("broken") });
        }
        drop(seen);
        let transfer = Duration::from_nanos((sample.length as f64 * self.nanos_per_byte) as u64);
        let done = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(self.clock.now()) + transfer;
            *free_at
        };
        self.clock.sleep_until(done + self.latency);
        Ok(sample.length)
    }
}

fn data(files: u64, bytes: u64) -> Layout {
    Layout::Whole(vec![bytes; usize::try_from(files).unwrap()])
}

fn job(clock: &dyn Clock, profile: Profile, ranks: usize) -> Job<'_> {
    Job { clock, profile, ranks, epochs: 1, max_steps: None, seed: 7 }
}

fn au_on(clock: &VirtualClock, profile: Profile, ranks: usize, source: &Slow<'_>, files: u64) -> f64 {
    let data = data(files, profile.sample_bytes as u64);
    train(job(clock, profile, ranks), &data, source).unwrap().au.unwrap()
}

#[test]
fn a_link_of_half_the_demand_halves_the_utilization() {
    // 105.4 MB/s are asked for: with 1, 2 and 4 ranks a link of 52.7 MB/s gives them a half, a quarter, an eighth.
    let profile = Profile::new(Model::Resnet50Raw, Accelerator::A100);
    for (ranks, wanted) in [(1_usize, 0.5), (2, 0.25), (4, 0.125)] {
        let clock = VirtualClock::default();
        let link = Slow::new(&clock, Duration::ZERO, profile.bytes_per_second() / 2e6);
        let au = au_on(&clock, profile, ranks, &link, 400 * 20 * ranks as u64);
        assert!((au / wanted - 1.0).abs() < 0.06, "{ranks} ranks: {au}, expected {wanted}");
    }
}

#[test]
fn a_link_that_is_fast_enough_keeps_all_ranks_busy() {
    let profile = Profile::new(Model::Resnet50Raw, Accelerator::A100);
    let clock = VirtualClock::default();
    let link = Slow::new(&clock, Duration::ZERO, 2.1 * profile.bytes_per_second() / 1e6);
    let au = au_on(&clock, profile, 2, &link, 400 * 2 * 20);
    assert!(au > 0.99, "{au}");
}

#[test]
fn latency_is_hidden_by_as_many_threads_as_read() {
    // Cosmoflow: a sample every 5.51 ms by 4 threads; 22.04 ms each is the most that they hide, 44.08 ms leave a half.
    let profile = Profile::new(Model::Cosmoflow, Accelerator::A100);
    for (latency, wanted) in [(20.0, 1.0), (44.08, 0.5), (88.16, 0.25)] {
        let clock = VirtualClock::default();
        let storage = Slow::new(&clock, Duration::from_secs_f64(latency / 1e3), f64::INFINITY);
        let au = au_on(&clock, profile, 1, &storage, 400);
        assert!((au / wanted - 1.0).abs() < 0.02, "{latency} ms: {au}, expected {wanted}");
    }
}

#[test]
fn without_prefetch_reading_and_computing_take_turns() {
    // 7 samples by 4 threads of 100 ms each: two rounds, 200 ms, before 636 ms of computation.
    let profile = Profile { prefetch: 0, ..Profile::new(Model::Unet3d, Accelerator::A100) };
    let clock = VirtualClock::default();
    let storage = Slow::new(&clock, Duration::from_millis(100), f64::INFINITY);
    let au = au_on(&clock, profile, 1, &storage, 7 * 10);
    assert!((au - 636.0 / 836.0).abs() < 1e-3, "{au}");
}

#[test]
fn every_sample_of_an_epoch_is_read_once_and_time_adds_up() {
    let profile = Profile { batch: 3, ..Profile::new(Model::Cosmoflow, Accelerator::A100) };
    let clock = VirtualClock::default();
    let storage = Slow::new(&clock, Duration::from_millis(1), f64::INFINITY);
    let two_epochs = Job { epochs: 2, ..job(&clock, profile, 2) };
    let training = train(two_epochs, &data(60, 1_000), &storage).unwrap();
    assert_eq!((training.samples, training.bytes), (120, 120_000));
    let seen = storage.seen.lock();
    assert!(seen.len() == 60 && seen.values().all(|times| *times == 2));
    for epoch in &training.epochs {
        assert_eq!((epoch.steps, epoch.samples, epoch.au_of_ranks.len()), (10, 60, 2));
        // 9 steps after the first, of two ranks.
        assert!((epoch.compute_seconds - 18.0 * 0.00551).abs() < 1e-6, "{epoch:?}");
    }
    let [wait, compute, barrier] = training.split().unwrap();
    assert!((wait + compute + barrier - 1.0).abs() < 1e-9 && compute > 0.9);
    assert_eq!(training.latency.unwrap().timed, 120);
    let of_timeline: f64 = training.timeline.points.iter().map(|point| point.compute).sum();
    assert!((of_timeline - 40.0 * 0.00551).abs() < 1e-6, "{of_timeline}");
}

#[test]
fn records_are_read_in_the_batches_they_belong_to() {
    let profile = Profile {
        batch: 10,
        sample_bytes: 100.0,
        read_threads: 3,
        ..Profile::new(Model::Resnet50, Accelerator::H100)
    };
    let clock = VirtualClock::default();
    let storage = Slow::new(&clock, Duration::from_millis(1), f64::INFINITY);
    let data = Layout::Records(vec![2_000; 8], 100.0);
    let training = train(job(&clock, profile, 2), &data, &storage).unwrap();
    assert_eq!((training.samples, training.epochs[0].steps), (160, 8));
    let seen = storage.seen.lock();
    assert!(seen.len() == 160 && seen.values().all(|times| *times == 1));
    assert!(training.is_reached, "{training:?}");
}

#[test]
fn the_number_of_steps_can_be_bounded() {
    let profile = Profile::new(Model::Cosmoflow, Accelerator::H100);
    let clock = VirtualClock::default();
    let storage = Slow::new(&clock, Duration::from_millis(1), f64::INFINITY);
    let bounded = Job { max_steps: Some(5), ..job(&clock, profile, 1) };
    let training = train(bounded, &data(100, 10), &storage).unwrap();
    assert_eq!((training.samples, training.bytes, training.epochs[0].steps), (5, 50, 5));
}

#[test]
fn an_error_of_one_reader_ends_all_ranks() {
    let profile = Profile::new(Model::Cosmoflow, Accelerator::A100);
    let clock = VirtualClock::default();
    let mut storage = Slow::new(&clock, Duration::from_millis(1), f64::INFINITY);
    storage.fails_after = Some(10);
    let error = train(job(&clock, profile, 3), &data(300, 10), &storage).unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error}");
}

#[test]
fn memory_keeps_accelerators_busy_in_real_time_too() {
    // How busy exactly is told by `millrace bench PATH overhead`: other tests run meanwhile.
    let profile = Profile { batch: 10, ..Profile::new(Model::Cosmoflow, Accelerator::H100) };
    let training =
        train(job(&Monotonic, profile, 2), &data(10 * 2 * 10, 1_000), &MemorySource::new(64)).unwrap();
    assert_eq!((training.samples, training.bytes), (200, 200_000));
    // It computes 10 × 3.5 ms; the sleeps are never shorter.
    assert!(training.seconds >= 0.035 && training.au.is_some_and(|au| au > 0.0 && au <= 1.0), "{training:?}");
}

#[test]
fn a_folder_is_read_through_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let profile = Profile::new(Model::Cosmoflow, Accelerator::H100).with_sample_scale(1e-3);
    for number in 0..20 {
        std::fs::write(dir.path().join(format!("{number}")), vec![0; 2_800 + number]).unwrap();
    }
    std::fs::write(dir.path().join("labels.txt"), "cat").unwrap();
    let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
    let data = TrainingData::new(&tree, &profile, 2, Fit::Profile).unwrap();
    assert_eq!((data.files.len(), data.steps(&profile, 2)), (20, 10));
    let source = FolderSource { files: &data.files };
    let training = train(job(&Monotonic, profile, 2), &data.layout, &source).unwrap();
    assert_eq!((training.samples, training.bytes), (20, data.bytes()));
    let doubts = data.doubts(&profile, 2, None, 1 << 30).join("; ");
    assert!(doubts.contains("10 steps an epoch") && doubts.contains("1 GiB of memory"), "{doubts}");
    std::fs::remove_file(dir.path().join("7")).unwrap();
    let error = train(job(&Monotonic, profile, 2), &data.layout, &source).unwrap_err();
    assert!(matches!(&error, Error::Open { path, .. } if path.ends_with("7")), "{error}");
}

#[test]
fn record_files_are_read_to_the_last_whole_record() {
    let dir = tempfile::tempdir().unwrap();
    let profile =
        Profile { batch: 4, ..Profile::new(Model::Resnet50, Accelerator::H100).with_sample_scale(1e-1) };
    for number in 0..4 {
        std::fs::write(dir.path().join(format!("{number}")), vec![0; 11_466 * 6 + 9_000]).unwrap();
    }
    let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
    let data = TrainingData::new(&tree, &profile, 1, Fit::Profile).unwrap();
    let training =
        train(job(&Monotonic, profile, 1), &data.layout, &FolderSource { files: &data.files }).unwrap();
    assert_eq!((training.samples, training.bytes), (24, 24 * 11_466));
}

#[test]
fn data_of_another_kind_is_refused_with_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..10 {
        std::fs::write(dir.path().join(format!("{number}")), vec![0; 5_000]).unwrap();
    }
    let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
    let refused = |model, fit| {
        let profile = Profile::new(model, Accelerator::A100);
        TrainingData::new(&tree, &profile, 2, fit).unwrap_err().to_string()
    };
    let error = refused(Model::Resnet50Raw, Fit::Profile);
    assert!(error.contains("files of about 112.0 KiB for resnet50-raw"), "{error}");
    assert!(
        error.contains("10 files")
            && error.contains("--profile resnet50-raw")
            && error.contains("--any-size"),
        "{error}"
    );
    let error = refused(Model::Resnet50, Fit::Profile);
    assert!(error.contains("records") && error.contains("resnet50-raw"), "{error}");
    let error = refused(Model::Resnet50Raw, Fit::AnySize);
    assert!(error.contains("1600 samples (2 steps of 400 for each of 2 accelerators)"), "{error}");
    assert!(error.contains("10 samples in 10 files") && error.contains("--ranks"), "{error}");
    let cosmoflow = Profile::new(Model::Cosmoflow, Accelerator::A100);
    assert!(TrainingData::new(&tree, &cosmoflow, 2, Fit::AnySize).is_ok());
}
