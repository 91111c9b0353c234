//! Does `millrace bench` read what is there, count it, and say what is missing?

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).arg("bench").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The JSON document of a run that succeeds.
fn measured(args: &[&str]) -> Value {
    let output = bench(&[args, &["-o", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Three files of 2 MiB and twenty small ones in two folders.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["large", "small"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    for number in 0..3 {
        std::fs::write(dir.path().join(format!("large/{number}.bin")), vec![1; 2 << 20]).unwrap();
    }
    for number in 0..20 {
        std::fs::write(dir.path().join(format!("small/{number}.jpg")), vec![2; 1000]).unwrap();
    }
    dir
}

fn path(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().unwrap()
}

#[test]
fn every_case_reads_what_is_there_once() {
    let dir = tree();
    let document =
        measured(&[path(&dir), "seq", "mmap", "small-files", "metadata", "--threads", "1,3", "--seed", "9"]);
    let results = document["results"].as_array().unwrap();
    let of = |case: &str| -> Vec<(u64, u64)> {
        let lines = results.iter().filter(|line| line["case"] == case);
        lines.map(|line| (line["bytes"].as_u64().unwrap(), line["files"].as_u64().unwrap())).collect()
    };
    assert_eq!(of("seq"), [(6 << 20, 3); 2]);
    assert_eq!(of("mmap"), [(6 << 20, 3); 2]);
    assert_eq!(of("small-files"), [(20_000, 20); 2]);
    // find, find -size, ls -lR see two folders too; stat looks at files, by 1 and by 3 threads.
    assert_eq!(of("metadata"), [(0, 25), (0, 25), (0, 25), (0, 23), (0, 23)]);
    assert!(results.iter().all(|line| line["is_complete"] == true));
    assert!(results.iter().all(|line| line["latency"]["p50_us"].as_f64().unwrap() > 0.0));
    assert_eq!(document["seed"], 9);
    assert_eq!(document["path"], dir.path().canonicalize().unwrap().to_str().unwrap());
}

#[test]
fn random_reads_end_with_the_time() {
    let dir = tree();
    let document =
        measured(&[path(&dir), "random", "--runtime", "0.05", "--block-size", "4k,64k", "--threads", "2"]);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for line in results {
        let count = |name: &str| line[name].as_u64().unwrap();
        assert!(count("operations") > 0);
        assert_eq!(count("bytes"), count("operations") * count("block_bytes"));
        assert!(line["seconds"].as_f64().unwrap() >= 0.05);
    }
}

#[test]
fn without_cases_all_are_measured_that_the_files_allow() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.jpg"), vec![0; 10_000]).unwrap();
    let output = bench(&[path(&dir), "--runtime", "0.02"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("find -size") && said.contains("small-files"), "{said}");
    assert!(
        said.contains("skipped seq: no file of at least 1 MiB") && said.contains("1 file of 9.8 KiB"),
        "{said}"
    );
}

#[test]
fn a_case_by_name_that_the_files_do_not_allow_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (args, wanted) in [
        (vec!["seq"], "found no files"),
        (vec!["train"], "millrace bench generate PATH --profile resnet50-raw"),
        (vec!["train", "--profile", "unet3d"], "139.8 MiB for unet3d"),
        (vec!["random", "--direct", "--block-size", "1000"], "no file of at least 1000 B"),
    ] {
        let output = bench(&[&[path(&dir)], args.as_slice()].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted) && said.contains(path(&dir)) && said.lines().count() == 1, "{said}");
    }
    let missing = bench(&["/no/such/folder", "seq"]);
    assert!(text(&missing.stderr).contains("/no/such/folder"), "{}", text(&missing.stderr));
}

#[test]
fn what_was_measured_before_an_error_is_kept() {
    let dir = tree();
    let output = bench(&[path(&dir), "seq", "train", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["results"][0]["bytes"], 6 << 20);
    let note = document["notes"][0].as_str().unwrap();
    assert!(note.contains("ended early: measure train") && note.contains("resnet50-raw"), "{note}");
    assert!(text(&output.stderr).contains("measure train"), "{}", text(&output.stderr));
}

#[test]
fn wrong_arguments_are_refused_with_the_right_form() {
    for (args, wanted) in [
        (["/", "--block-size", "4x"], "128k"),
        (["/", "--runtime", "soon"], "30s"),
        (["/", "--threads", "0"], "1024"),
        (["/", "--ranks", "1,none"], "128"),
        (["/", "--sample-scale", "0"], "1/16"),
        (["/", "sequential", "--direct"], "small-files"),
    ] {
        let output = bench(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(wanted), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(bench(&[]).status.code(), Some(2));
}

#[test]
fn a_data_set_that_was_made_can_be_trained_from_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let made =
        bench(&["generate", data, "--profile", "cosmoflow", "--files", "24", "--sample-scale", "1/1000"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let hint = text(&made.stdout);
    assert!(
        hint.contains("24 files") && hint.contains("train --profile cosmoflow --sample-scale 0.001"),
        "{hint}"
    );
    let again = bench(&["generate", data, "--profile", "cosmoflow", "--files", "1"]);
    assert!(text(&again.stderr).contains("is there already"), "{}", text(&again.stderr));

    let (json, plot) = (dir.path().join("r.json"), dir.path().join("r.svg"));
    let output = bench(&[
        data,
        "train",
        "--profile",
        "cosmoflow",
        "--accelerator",
        "H100",
        "--sample-scale",
        "1/1000",
        "--ranks",
        "1,2",
        "--epochs",
        "2",
        "--json",
        json.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("cosmoflow on 2 x H100 from 24 files") && said.contains("epoch 2"), "{said}");
    assert!(said.contains("MLPerf Storage asks for 500"), "{said}");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let training = document["training"].as_array().unwrap();
    assert_eq!(training.len(), 2);
    for (line, ranks) in training.iter().zip([1_u64, 2]) {
        assert_eq!((line["ranks"].as_u64(), line["samples"].as_u64()), (Some(ranks), Some(48)));
        assert_eq!(line["epochs"][1]["steps"].as_u64(), Some(24 / ranks));
        assert_eq!(line["bytes"].as_u64(), Some(2 * bytes_below(Path::new(data))));
        assert!(line["au"].as_f64().is_some_and(|au| au > 0.0 && au <= 1.0), "{line}");
    }
    let drawn = std::fs::read_to_string(&plot).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("cosmoflow on 1 x H100"), "{drawn}");
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() { bytes_below(&entry.path()) } else { metadata.len() }
        })
        .sum()
}

#[test]
fn what_s3_was_asked_for_meanwhile_is_shown() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // Once to see that it is a worker, then before and after the measurement: each time 1 MB more.
    let worker = std::thread::spawn(move || {
        for number in 1..=3_u64 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).unwrap() > 0);
            write!(stream, "HTTP/1.0 200 OK\r\n\r\ncache_worker_origin_bytes_total {number}000000\n")
                .unwrap();
        }
    });
    let dir = tree();
    let document = measured(&[path(&dir), "seq", "--worker-metrics", &format!("http://{address}/metrics")]);
    worker.join().unwrap();
    assert_eq!(document["results"][0]["origin"]["bytes"], 1e6);
    let output = bench(&[path(&dir), "seq", "--worker-metrics", "http://127.0.0.1/metrics"]);
    assert!(text(&output.stderr).contains("HOST:7422"), "{}", text(&output.stderr));
}

#[test]
fn help_teaches_to_measure_a_mount() {
    let help = text(&bench(&["--help"]).stdout);
    for word in
        ["Warm or cold", "Accelerator utilization", "Examples", "--drop-caches", "generate", "resnet50-raw"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    let help = text(&bench(&["generate", "--help"]).stdout);
    assert!(help.contains("--sample-scale") && help.contains("Examples"), "{help}");
}
