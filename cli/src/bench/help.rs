//! What does a newcomer have to know to measure a mount?

/// What `millrace bench --help` begins with.
pub const ABOUT: &str =
    "Measure any folder as training jobs use it: a mount of ours, of others, a local disk";

/// What it goes on with.
pub const LONG_ABOUT: &str = "Measure any folder as training jobs use it: a mount of ours, of others, a local disk.

Nothing is written there, and nothing of Millrace has to run. A table goes to stdout as results come; -o json prints one \
document instead, --json FILE keeps one too, --plot FILE draws it. `millrace bench generate` makes data to measure with.";

/// At the end of `-h`.
pub const AFTER: &str = "Examples:
  millrace bench /mnt/imagenet                       # everything that the files allow, about two minutes
  millrace bench /mnt/imagenet train --ranks 1,2,4   # how many accelerators would it keep busy?
--help explains the cases, warm and cold, and how to read the results.";

/// At the end of `--help`.
pub const AFTER_LONG: &str = "Cases:
  metadata     find (names only), find -size (a stat each), ls -lR (stat, label, access list), and stat of all files in
               another order: what a loader does before its first batch. Many small files make this slow on S3 mounts.
  seq          large files from beginning to end: checkpoints, shards, `cp`.
  random       blocks at random in the largest files, for all of --runtime: formats with an index (Parquet, HDF5, .npy).
  mmap         seq through a memory mapping: safetensors, memory-mapped arrays. A mount that cannot read ends the program
               with SIGBUS, as it would a training job.
  direct       seq with O_DIRECT: what the mount itself can do, without the kernel's page cache.
  small-files  files up to 1 MiB, shuffled; open, read, close: folders of images. One operation is one file.
  train        emulated accelerators (below). Needs data of the profile's kind: your own, or made by `bench generate`.
  overhead     what this program itself adds to a 4 KiB read, and leaves of an accelerator's time, where all comes from memory:
               look here first on a machine that is busy with other things.

Reading the table:
  MB/s are 10^6 bytes. ops/s are reads for seq, random (IOPS), mmap and direct, whole files for small-files, listings and
  stats for metadata; p50, p99 and max are their times. Operations below some 40 µs are timed one in so many, so that
  the measuring takes less than 1 %; max is the slowest of those that were timed. \"not all\" means that --runtime was over
  before all files were read.

Warm or cold:
  Of three caches one may answer: the page cache of this kernel, the store of the mount on this machine, and the workers.
  The first run after mounting is cold in the first two. Run it again, or with --repeat 3, and it is warm. --drop-caches
  empties the first (root only), so that the second is measured. Data that fits in memory says little about data that does
  not: read at least five times your memory, or run in a memory cgroup (systemd-run --scope -p MemoryMax=1G ...).

Accelerator utilization (AU):
  Each emulated accelerator takes a batch, computes (sleeps) as long as the real one would, and waits for the others;
  threads read ahead for it. AU is the share of the time that it computed; what is missing to 100 % it waited for data or,
  behind a slower one, for others. Sizes, times and arithmetic are those of MLPerf Storage v2.0 and DLIO; without its rules
  (500 steps an epoch, five times the memory, five runs) it is DLIO-style AU, no MLPerf result.
    profile       a step reads     A100 asks for  H100 asks for  needs AU
    resnet50      400 x 115 kB        105 MB/s       205 MB/s    90 %    record files of 143 MB, 1,251 samples each
    resnet50-raw  400 x 115 kB        105 MB/s       205 MB/s    90 %    one file a sample: the hard case for mounts
    cosmoflow     1 x 2.8 MB          513 MB/s       808 MB/s    70 %    one file a sample
    unet3d        7 x 147 MB        1,614 MB/s     3,177 MB/s    90 %    one file a sample
  Each accelerator more asks for as much again: the largest --ranks that are \"fast enough\" are what a mount sustains.
  The first epoch may be cold; look at each epoch's line. A low AU with much \"waiting for data\" is the storage's; more
  --read-threads hide latency, and do not help against too little bandwidth.

Examples:
  millrace bench /mnt/imagenet                                  # everything that the files allow, about two minutes
  millrace bench /mnt/imagenet seq random --threads 1,8 --runtime 30s
  millrace bench /mnt/imagenet small-files --threads 8 --repeat 3
  sudo millrace bench /mnt/imagenet random --block-size 4k,256k --drop-caches
  millrace bench /mnt/imagenet train --ranks 1,2,4 --plot au.svg
  millrace bench /mnt/mine train --profile unet3d --any-size    # your own files under another job's times
  millrace bench generate /data/raw --profile resnet50-raw --files 20000   # 2.3 GB; upload it, mount it, then train
  millrace bench /mnt/raw train --worker-metrics http://127.0.0.1:7422/metrics   # and what S3 was asked for
  millrace bench /mnt/imagenet metadata -o json | jq '.results[] | {variant, files_per_second}'
  for mount in /mnt/millrace /mnt/rclone /data/ext4; do millrace bench $mount seq --seed 1; done";

/// What `millrace bench generate --help` begins with.
pub const GENERATE_ABOUT: &str =
    "Make the data set of a training job in an empty folder, for train and small-files";

/// What it goes on with.
pub const GENERATE_LONG_ABOUT: &str = "Make the data set of a training job in an empty folder, for train and small-files.

Files have the sizes that the job's have, and pseudo-random bytes; they are in no format. Say how many by --files or --scale: whole \
data sets have 25 GB to 1.5 TB. To measure a mount of S3, upload the folder and mount the bucket.";

/// At its end.
pub const GENERATE_AFTER: &str = "Examples:
  millrace bench generate /data/raw --profile resnet50-raw --files 20000            # 2.3 GB
  millrace bench generate /data/cosmo --profile cosmoflow --scale 1/500             # 3.0 GB
  millrace bench generate /data/unet --profile unet3d --files 168 --sample-scale 1/16   # 1.5 GB; train --sample-scale 1/16";
