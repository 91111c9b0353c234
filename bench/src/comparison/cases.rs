//! Which questions are asked of every contender?

use serde::{Deserialize, Serialize};

/// Which of two figures is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The higher one.
    Higher,
    /// The lower one.
    Lower,
}

/// A question.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The question for people.
    pub title: &'static str,
    /// How the answer is found.
    pub method: &'static str,
    /// Unit of the answer.
    pub unit: &'static str,
    /// Which answer is better.
    pub better: Better,
    /// What S3 requests are divided by.
    pub item: &'static str,
}

/// All questions, in the order in which they are told.
pub const CASES: &[Case] = &[
    Case {
        name: "epoch-first",
        title: "First epoch of small files",
        method: "10,000 files of 100 KiB in 100 folders, shuffled, 8 threads that open, read and close; nothing cached \
                 anywhere. Whoever is not done after 10 s is judged by the files read until then. The plain download has its \
                 best number of requests in flight, not 8.",
        unit: "files/s",
        better: Better::Higher,
        item: "file",
    },
    Case {
        name: "epoch-second",
        title: "Second epoch of small files",
        method: "The files of the first epoch in another order, through the same mount, after the kernel's page cache was \
                 dropped: they come from each tool's own cache.",
        unit: "files/s",
        better: Better::Higher,
        item: "file",
    },
    Case {
        name: "large-first",
        title: "First read of a large file",
        method: "One file of 1 GiB, read by one thread from its beginning to its end, 1 MiB at a time; nothing cached anywhere. \
                 The plain download gets parts of 8 MiB in parallel.",
        unit: "MB/s",
        better: Better::Higher,
        item: "MB",
    },
    Case {
        name: "large-second",
        title: "Second read of a large file",
        method: "The same again through the same mount, after the kernel's page cache was dropped.",
        unit: "MB/s",
        better: Better::Higher,
        item: "MB",
    },
    Case {
        name: "random-first",
        title: "Random 4 KiB reads, nothing cached",
        method: "One thread reads 4 KiB at random in a file of 16 GiB for 3 s: median of a read. ext4 has the first GiB of it; \
                 a plain download is a GET of 4 KiB.",
        unit: "ms",
        better: Better::Lower,
        item: "read",
    },
    Case {
        name: "random-second",
        title: "Random 4 KiB reads of a file read before",
        method: "The file of 1 GiB after both reads, page cache dropped: one thread, 3 s, median of a read.",
        unit: "ms",
        better: Better::Lower,
        item: "read",
    },
    Case {
        name: "listing-first",
        title: "First listing",
        method: "`ls -lR` of 20,000 files in 100 folders, from the start of the programs on: mounting counts, and with Millrace the start \
                 of a worker and the making of the index. Whoever is not done after 10 s is judged by the entries seen until \
                 then. The plain download lists the bucket, page after page.",
        unit: "entries/s",
        better: Better::Higher,
        item: "entry",
    },
    Case {
        name: "listing-second",
        title: "Second listing",
        method: "The same through the same mount, after the kernel's caches were dropped.",
        unit: "entries/s",
        better: Better::Higher,
        item: "entry",
    },
];
