//! Which node does a name lead to, and which names lead to a node?

use zerocopy::little_endian::U32;

use super::format::{DIR_BIT, MAX_NODES, NONE};
use super::path_rule::MAX_PATH_BYTES;
use super::slots::{Place, name_hash};
use super::view::{DirIndex, FileIndex, IndexView, Node};

/// The children of a directory, sorted by name.
#[derive(Debug, Clone)]
pub struct Children<'a> {
    refs: std::slice::Iter<'a, U32>,
}

impl Iterator for Children<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        self.refs.by_ref().find_map(|reference| node_of(reference.get()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.refs.len()))
    }
}

impl<'a> IndexView<'a> {
    /// The root directory.
    pub fn root(&self) -> DirIndex {
        DirIndex(0)
    }

    /// The child of `dir` with this name.
    pub fn lookup(&self, dir: DirIndex, name: &[u8]) -> Option<Node> {
        let hash = name_hash(dir, name);
        let mut place = Place::first(hash, self.slots.len())?;
        for _ in 0..self.header.longest_probe.get() {
            let slot = self.slots.get(place.at())?;
            if slot.node.get() == NONE {
                return None;
            }
            if slot.tag.get() == hash as u32 && self.is_child(slot.node.get(), dir, name) {
                return node_of(slot.node.get());
            }
            if !place.advance() {
                return None;
            }
        }
        None
    }

    /// The children of a directory from position `skip` on, sorted by name; starting anywhere costs nothing.
    pub fn children(&self, dir: DirIndex, skip: u32) -> Children<'a> {
        let refs = self.child_refs(dir).get(skip as usize..).unwrap_or_default();
        Children { refs: refs.iter() }
    }

    /// The last component of a node's path; empty for the root.
    pub fn name(&self, node: Node) -> Option<&'a [u8]> {
        self.text(match node {
            Node::Dir(dir) => self.dirs.get(dir.0 as usize)?.name,
            Node::File(file) => self.files.get(file.0 as usize)?.name,
        })
    }

    /// The directory that a node is in; the root is in itself.
    pub fn parent(&self, node: Node) -> Option<DirIndex> {
        let parent = match node {
            Node::Dir(dir) => self.dirs.get(dir.0 as usize)?.parent,
            Node::File(file) => self.files.get(file.0 as usize)?.parent,
        };
        Some(DirIndex(parent.get())).filter(|dir| (dir.0 as usize) < self.dirs.len())
    }

    /// The path of a node from the mount's root, without a leading slash; empty for the root.
    pub fn path(&self, node: Node) -> Option<Vec<u8>> {
        // Components from the last to the first; the length bound ends what damage might make a loop.
        let mut components = Vec::new();
        let mut len = 0;
        let mut node = node;
        while node != Node::Dir(DirIndex(0)) {
            let name = self.name(node)?;
            len += name.len() + 1;
            if name.is_empty() || len > MAX_PATH_BYTES + 1 {
                return None;
            }
            components.push(name);
            node = Node::Dir(self.parent(node)?);
        }
        components.reverse();
        Some(components.join(&b'/'))
    }

    /// The node at a path from the mount's root. Slashes at its start and end are allowed.
    pub fn resolve(&self, path: &[u8]) -> Option<Node> {
        let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(start, |last| last + 1);
        let mut node = Node::Dir(self.root());
        if start == end {
            return Some(node);
        }
        for name in path[start..end].split(|&byte| byte == b'/') {
            let Node::Dir(dir) = node else { return None };
            node = self.lookup(dir, name)?;
        }
        Some(node)
    }

    fn is_child(&self, reference: u32, dir: DirIndex, name: &[u8]) -> bool {
        let found = || match node_of(reference)? {
            Node::Dir(dir) => self.dirs.get(dir.0 as usize).map(|record| (record.parent, record.name)),
            Node::File(file) => self.files.get(file.0 as usize).map(|record| (record.parent, record.name)),
        };
        found().is_some_and(|(parent, text)| {
            parent.get() == dir.0 && text.len() == name.len() && self.text(text) == Some(name)
        })
    }
}

/// Reads a node reference; `None` for none.
pub(super) fn node_of(reference: u32) -> Option<Node> {
    let number = reference & !DIR_BIT;
    if number >= MAX_NODES {
        return None;
    }
    Some(if reference & DIR_BIT == 0 { Node::File(FileIndex(number)) } else { Node::Dir(DirIndex(number)) })
}
