//! Does it matter when the operator is killed?

mod crowd;
mod settled;

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant, SystemTime};

use millrace_operator::controller::fault::POINTS;
use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::Namespace;
use millrace_tests::kubernetes::own_operator::OwnOperator;
use millrace_tests::program::Program;

use self::crowd::{Crowd, Dice};

/// What every Dataset shows.
const CONTENTS: Contents = Contents { objects: 3, bytes: 100_000 };

/// How often the operator is killed.
const KILLS: usize = 50;

/// For the operator to pass its point: everything that is done to make it do so takes a second or two.
const DEATH: Duration = Duration::from_secs(40);

/// For everything to be right after the operator has started again: workers may have to be made anew by Kubernetes, which tries
/// again less and less often.
const SETTLED: Duration = Duration::from_secs(60);

/// Between two looks at what is so.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// How long the operator may go without passing its point before more is done.
const PROVOKE_EVERY: Duration = Duration::from_millis(700);

/// Signal of a process that has aborted.
const SIGABRT: i32 = 6;

/// How often a point can be passed at most within what is done in a round.
fn passings(point: &str) -> usize {
    match point {
        // Each Dataset has two Secrets, made or found once in an operator's life, and few objects that were never changed.
        "secret" | "adopted" | "secrets" | "told" => 2,
        "deleted" => 3,
        "cleanup" => 5,
        "object" => 12,
        _ => 5,
    }
}

#[test]
fn fifty_kills_of_the_operator_leave_nothing_undone_and_nothing_behind() {
    let Some(cluster) = Cluster::alone("fifty_kills_of_the_operator_leave_nothing_undone_and_nothing_behind")
    else {
        return;
    };
    let seed = seed();
    println!("MILLRACE_KILLS_SEED={seed} repeats these kills");
    let mut dice = Dice::new(seed);
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    let mut own = OwnOperator::take_over(&cluster);
    let mut crowd = Crowd::new(&space, &bucket);
    let mut points: Vec<&str> = POINTS.into_iter().cycle().take(KILLS.max(POINTS.len())).collect();
    for at in (1..points.len()).rev() {
        points.swap(at, dice.below(at + 1));
    }
    // There is something to delete from the first round on.
    crowd.create();
    let mut first = own.start(None);
    settle(&mut own, &mut crowd, &mut first);
    first.kill();
    for (round, point) in points.into_iter().enumerate() {
        let fault = format!("{point}:{}", 1 + dice.below(passings(point)));
        // Of its own: how often it is thrown in a round is a matter of time.
        crowd.dice = dice.another();
        let (said, died) = kill(&mut own, &mut crowd, &mut dice, point, &fault);
        let mut successor = own.start(None);
        let settled = settle(&mut own, &mut crowd, &mut successor);
        successor.kill();
        println!("{round}: {fault} after {said}: died in {died:.1?}, settled in {settled:.1?}");
    }
    own.give_back();
    while !crowd.wanted.is_empty() {
        crowd.delete();
    }
    let began = Instant::now();
    while let Err(error) = settled::look(&space, &mut crowd.wanted) {
        assert!(began.elapsed() < SETTLED, "at the end, with the installed operator: {error}");
        std::thread::sleep(LOOK_EVERY);
    }
}

fn seed() -> u64 {
    if let Ok(seed) = std::env::var("MILLRACE_KILLS_SEED") {
        return seed.parse().expect("MILLRACE_KILLS_SEED is a number");
    }
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Has an operator die at a point, while users do what they do; in words, what, and after what time it died.
fn kill(
    own: &mut OwnOperator<'_>,
    crowd: &mut Crowd<'_>,
    dice: &mut Dice,
    point: &str,
    fault: &str,
) -> (String, Duration) {
    let mut said = Vec::new();
    if crowd.wanted.len() < 2 {
        said.push(crowd.create());
    }
    // Some things happen while nobody reconciles, others while somebody does.
    let before = dice.below(3);
    for _ in 0..before {
        said.push(crowd.act());
    }
    let began = Instant::now();
    let mut operator = own.start(Some(fault));
    match point {
        "cleanup" | "deleted" => said.push(crowd.delete()),
        _ => said.extend((before..2).map(|_| crowd.act())),
    }
    let mut provoked = Instant::now();
    let mut provocations = 0;
    while !operator.has_ended() {
        own.renew();
        assert!(
            began.elapsed() < DEATH,
            "the operator has not passed {fault} after {}, and lives on: {}",
            said.join(", "),
            operator.log()
        );
        if provoked.elapsed() > PROVOKE_EVERY {
            said.push(provoke(crowd, point, provocations));
            provocations += 1;
            provoked = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = operator.wait_for_end(Duration::ZERO);
    let log = operator.log();
    let last = log.lines().rev().find(|line| line.contains("ended by a test")).unwrap_or_default();
    assert!(
        status.signal() == Some(SIGABRT) && last.contains(point),
        "{fault}: the operator ended by itself ({status}): {log}"
    );
    (said.join(", "), began.elapsed())
}

/// Does what makes the operator pass a point.
fn provoke(crowd: &mut Crowd<'_>, point: &str, provocations: usize) -> String {
    match (point, provocations % 4) {
        ("secret" | "secrets", 3) => crowd.create(),
        // Deletions run by themselves; where one is through, the next follows, of a Dataset that has objects by then.
        ("cleanup" | "deleted", 0) => crowd.create(),
        ("cleanup" | "deleted", 3) => crowd.delete(),
        ("cleanup" | "deleted", _) => "wait".to_owned(),
        // Only an object that was not changed before is adopted, once.
        ("adopted", 0 | 2) => crowd.edit(8),
        ("adopted", 1) => crowd.edit(0),
        ("adopted", _) => crowd.edit(7),
        _ => crowd.refresh(),
    }
}

/// Waits until everything is as the users want it; how long that took.
fn settle(own: &mut OwnOperator<'_>, crowd: &mut Crowd<'_>, operator: &mut Program) -> Duration {
    let began = Instant::now();
    loop {
        own.renew();
        let Err(error) = settled::look(crowd.space, &mut crowd.wanted) else { return began.elapsed() };
        assert!(!operator.has_ended(), "the successor has ended: {}", operator.log());
        assert!(began.elapsed() < SETTLED, "not within {SETTLED:?}: {error}");
        std::thread::sleep(LOOK_EVERY);
    }
}
