//! Do the programs that people use on folders work on a mount?

use std::process::Command;

use millrace_tests::cluster::{Cluster, MIB};
use millrace_tests::content::Files;
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::{can_mount, has_programs, output_of};

#[test]
fn df_find_ls_cp_tar_and_rsync_work() {
    let name = "df_find_ls_cp_tar_and_rsync_work";
    if !can_mount(name) || !has_programs(name, &["df", "find", "ls", "cp", "tar", "rsync", "du"]) {
        return;
    }
    let files = Files::new()
        .with_many("train/a", 150, 20_000)
        .with_many("train/b c", 3, 2 * MIB + 1)
        .with("empty", 0)
        .with("top", 70_000);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &MountSetup::keeping(cluster.new_dir("store")));
    let point = &mounted.point;
    let run = |program: &str, args: &[&str]| output_of(Command::new(program).args(args).current_dir(point));

    let df = run("df", &["-B1", "--output=size,used,avail,itotal,source", "."]);
    let numbers: Vec<&str> = df.lines().nth(1).unwrap().split_whitespace().collect();
    let bytes = files.bytes().next_multiple_of(4096).to_string();
    assert_eq!(numbers, [&bytes, &bytes, "0", &(files.0.len() + 4).to_string(), "millrace:data"]);
    assert_eq!(run("find", &[".", "-type", "f"]).lines().count(), files.0.len());
    assert_eq!(run("find", &[".", "-type", "f", "-size", "+1M"]).lines().count(), 3);
    let listing = run("ls", &["-lR"]);
    assert_eq!(listing.lines().filter(|line| line.starts_with("-r--r--r--")).count(), files.0.len());
    assert_eq!(run("du", &["-sb", "--apparent-size", "train/a"]).split('\t').next(), Some("3004096"));

    let copies = cluster.new_dir("copies");
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    run("cp", &["-r", ".", &text(&copies.join("cp"))]);
    files.check(&copies.join("cp"));
    run("rsync", &["-a", "./", &text(&copies.join("rsync"))]);
    files.check(&copies.join("rsync"));
    // All times and sizes are as in the copy, so there is nothing to do.
    assert_eq!(run("rsync", &["-ai", "./", &text(&copies.join("rsync"))]), "");
    let tar = text(&copies.join("all.tar"));
    run("tar", &["cf", &tar, "."]);
    std::fs::create_dir(copies.join("tar")).unwrap();
    run("tar", &["xf", &tar, "-C", &text(&copies.join("tar"))]);
    files.check(&copies.join("tar"));
    // Folders without the right to write in them could not be removed by an ordinary user.
    output_of(Command::new("chmod").arg("-R").arg("u+w").arg(&copies));
    cluster.assert_quiet();
}
