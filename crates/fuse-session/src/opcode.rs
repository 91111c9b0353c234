//! Which operations can the kernel ask for, and which of them change the file system?

macro_rules! opcodes {
    ($($number:literal $variant:ident $name:literal $effect:ident),* $(,)?) => {
        /// An operation of the FUSE protocol.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the names are the kernel's")]
        pub enum Opcode { $($variant = $number),* }

        impl Opcode {
            /// Every operation, sorted by its number.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Gives the operation of this number, `None` when this crate does not know it.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// Gives the name in lower case, as used in metric labels.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Tells whether the operation changes the file system, so that a read-only one answers EROFS.
            pub fn is_write(self) -> bool {
                match self { $(Self::$variant => $effect),* }
            }
        }
    };
}

const READS: bool = false;
const WRITES: bool = true;

opcodes! {
    1 Lookup "lookup" READS, 2 Forget "forget" READS, 3 Getattr "getattr" READS, 4 Setattr "setattr" WRITES,
    5 Readlink "readlink" READS, 6 Symlink "symlink" WRITES, 8 Mknod "mknod" WRITES, 9 Mkdir "mkdir" WRITES,
    10 Unlink "unlink" WRITES, 11 Rmdir "rmdir" WRITES, 12 Rename "rename" WRITES, 13 Link "link" WRITES,
    14 Open "open" READS, 15 Read "read" READS, 16 Write "write" WRITES, 17 Statfs "statfs" READS,
    18 Release "release" READS, 20 Fsync "fsync" READS, 21 Setxattr "setxattr" WRITES,
    22 Getxattr "getxattr" READS, 23 Listxattr "listxattr" READS, 24 Removexattr "removexattr" WRITES,
    25 Flush "flush" READS, 26 Init "init" READS, 27 Opendir "opendir" READS, 28 Readdir "readdir" READS,
    29 Releasedir "releasedir" READS, 30 Fsyncdir "fsyncdir" READS, 31 Getlk "getlk" READS,
    32 Setlk "setlk" READS, 33 Setlkw "setlkw" READS, 34 Access "access" READS, 35 Create "create" WRITES,
    36 Interrupt "interrupt" READS, 37 Bmap "bmap" READS, 38 Destroy "destroy" READS, 39 Ioctl "ioctl" READS,
    40 Poll "poll" READS, 41 NotifyReply "notify_reply" READS, 42 BatchForget "batch_forget" READS,
    43 Fallocate "fallocate" WRITES, 44 Readdirplus "readdirplus" READS, 45 Rename2 "rename2" WRITES,
    46 Lseek "lseek" READS, 47 CopyFileRange "copy_file_range" WRITES, 48 SetupMapping "setup_mapping" READS,
    49 RemoveMapping "remove_mapping" READS, 50 Syncfs "syncfs" READS, 51 Tmpfile "tmpfile" WRITES,
    52 Statx "statx" READS, 53 CopyFileRange64 "copy_file_range_64" WRITES,
}

#[cfg(test)]
mod tests {
    use super::Opcode;

    #[test]
    fn every_number_leads_back_to_its_operation() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
        }
        assert_eq!(Opcode::from_number(7), None);
        assert_eq!(Opcode::from_number(4096), None);
    }
}
