//! Which inode number does a directory or file of an index have?
//!
//! Numbering scheme 1, a pure function of the index:
//!
//! | node | inode number |
//! |---|---|
//! | directory `d` (0 is the root) | `1 + d` |
//! | file `f` | `1 + dirs + f` |
//!
//! A node may have a second nodeid (the same file under [`SECOND_NODEID_BIT`]): the kernel sees another inode there, the
//! user the same number.

use crate::index::{DirIndex, FileIndex, Node};

/// Version of the scheme above. A process that continues another's mount must have the same.
pub const NUMBERING_VERSION: u32 = 1;

/// The root's number, fixed by FUSE.
pub const ROOT_INO: u64 = 1;

/// Set in the second nodeid of a file; clear in every inode number.
pub const SECOND_NODEID_BIT: u64 = 1 << 62;

/// Numbers the nodes of one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    /// How many directories the index has, the root included.
    pub dirs: u32,
    /// How many files the index has.
    pub files: u32,
}

impl Numbering {
    /// The inode number of a node of this index.
    pub fn ino_of(&self, node: Node) -> u64 {
        match node {
            Node::Dir(DirIndex(dir)) => ROOT_INO + u64::from(dir),
            Node::File(FileIndex(file)) => ROOT_INO + u64::from(self.dirs) + u64::from(file),
        }
    }

    /// The node with this number, [`SECOND_NODEID_BIT`] ignored; `None` where the index has none.
    pub fn node_of(&self, ino: u64) -> Option<Node> {
        let number = (ino & !SECOND_NODEID_BIT).checked_sub(ROOT_INO)?;
        let dirs = u64::from(self.dirs);
        if number < dirs {
            return Some(Node::Dir(DirIndex(number as u32)));
        }
        let file = number - dirs;
        (file < u64::from(self.files)).then_some(Node::File(FileIndex(file as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_pinned() {
        let numbering = Numbering { dirs: 3, files: 2 };
        let numbers = [
            (1, Node::Dir(DirIndex(0))),
            (2, Node::Dir(DirIndex(1))),
            (3, Node::Dir(DirIndex(2))),
            (4, Node::File(FileIndex(0))),
            (5, Node::File(FileIndex(1))),
        ];
        for (ino, node) in numbers {
            assert_eq!(numbering.ino_of(node), ino);
            assert_eq!(numbering.node_of(ino), Some(node));
            assert_eq!(numbering.node_of(ino | 1 << 62), Some(node), "second nodeid");
        }
        for ino in [0, 6, 1 << 62, u64::MAX, 1 << 63] {
            assert_eq!(numbering.node_of(ino), None, "{ino}");
        }
        assert_eq!((NUMBERING_VERSION, ROOT_INO), (1, 1));
    }

    proptest! {
        #[test]
        fn numbers_and_nodes_map_one_to_one(dirs in 1u32.., files: u32, pick: u64) {
            let numbering = Numbering { dirs, files };
            let ino = 1 + pick % (u64::from(dirs) + u64::from(files));
            let node = numbering.node_of(ino).unwrap();
            prop_assert_eq!(numbering.ino_of(node), ino);
            prop_assert_eq!(ino & SECOND_NODEID_BIT, 0);
        }
    }
}
