//! Which records do a file and the directories on its way make?

use std::io::Write;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{I64, U32, U64};

use super::entry::{AssembleIndex, FileEntry, SourceEntry, Streams, too_many};
use super::etag::Etag;
use super::format::{
    DIR_BIT, DirRecord, FLAG_ARCHIVED, FileRecord, LeftOutRecord, MAX_NODES, NONE, PackRecord, SourceRecord,
    TextRef,
};
use super::left_out::LeftOutList;
use super::slots::{HashRecord, name_hash};
use super::view::DirIndex;
use super::write::Assembled;
use crate::block::{BlockSize, PACK_ALIGN_BYTES, chunk_count};
use crate::ids::ContentId;
use crate::pack::PackCutter;
use crate::placement::PlacementKey;

/// Turns files and directories, in path order and each once, into records.
#[derive(Debug)]
pub(super) struct Records<W> {
    streams: Streams<W>,
    block: BlockSize,
    files: u32,
    children: u32,
    packs: u32,
    members: u32,
    text_bytes: u64,
    total_bytes: u64,
    dirs: Vec<DirRecord>,
    /// The directories from the root to where the last entry was.
    open_dirs: Vec<OpenDir>,
    /// Path of the last of them.
    path: Vec<u8>,
    open_pack: Option<OpenPack>,
}

#[derive(Debug, Default)]
struct OpenDir {
    number: u32,
    /// Length of the path of the directory above.
    parent_len: usize,
    children: Vec<u32>,
    subdirs: u32,
    newest_ms: Option<i64>,
}

/// The packing of the source that the last packed file came from.
#[derive(Debug)]
struct OpenPack {
    source: u8,
    cutter: PackCutter,
    placement: PlacementKey,
    first_member: u32,
    contents: Vec<ContentId>,
    last_path: Vec<u8>,
    len: u64,
    slots: u32,
}

impl<W: Write> Records<W> {
    pub fn new(block: BlockSize, streams: Streams<W>) -> Self {
        let root = DirRecord {
            name: TextRef::default(),
            parent: U32::ZERO,
            first_child: U32::ZERO,
            children: U32::ZERO,
            subdirs: U32::ZERO,
            modified_ms: I64::ZERO,
            first_file: U32::ZERO,
            files: U32::ZERO,
        };
        Self {
            streams,
            block,
            files: 0,
            children: 0,
            packs: 0,
            members: 0,
            text_bytes: 0,
            total_bytes: 0,
            dirs: vec![root],
            open_dirs: vec![OpenDir::default()],
            path: Vec::new(),
            open_pack: None,
        }
    }

    /// Makes the directory at `path` and those on the way to it the open ones.
    pub fn directory(&mut self, path: &[u8]) -> Result<(), AssembleIndex> {
        while !is_at_or_below(&self.path, path) {
            self.close_dir()?;
        }
        while self.path.len() < path.len() {
            let start = if self.path.is_empty() { 0 } else { self.path.len() + 1 };
            let rest = path.get(start..).unwrap_or_default();
            let end = rest.iter().position(|&byte| byte == b'/').map_or(path.len(), |slash| start + slash);
            self.open_dir(&path[start..end])?;
            self.path.clear();
            self.path.extend_from_slice(&path[..end]);
        }
        Ok(())
    }

    /// Adds a file of the source at `base`; `content` names its object where it is to be packed.
    pub fn file(
        &mut self,
        entry: &FileEntry<'_>,
        base: &str,
        content: Option<ContentId>,
    ) -> Result<(), AssembleIndex> {
        let FileEntry { path, source: source_number, size, modified_ms, etag, archived } = *entry;
        let name_start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        self.directory(&path[..name_start.saturating_sub(1)])?;
        if self.files == MAX_NODES {
            return Err(too_many("files"));
        }
        let name = &path[name_start..];
        let number = self.files;
        let parent = self.add_child(number, name)?;
        if let Some(dir) = self.open_dirs.last_mut() {
            dir.newest_ms = dir.newest_ms.max(Some(modified_ms));
        }
        let mut record = FileRecord {
            name: self.text(name)?,
            parent: U32::new(parent),
            source: source_number,
            flags: if archived { FLAG_ARCHIVED } else { 0 },
            reserved: [0; 2],
            size: U64::new(size),
            modified_ms: I64::new(modified_ms),
            etag: [0; 16],
            etag_parts: U32::ZERO,
            pack: U32::new(NONE),
            pack_page: U32::ZERO,
            first_slot: U32::ZERO,
        };
        self.set_etag(&mut record, etag)?;
        if let Some(content) = content {
            self.set_pack(&mut record, path, base, content)?;
        }
        self.files += 1;
        self.total_bytes = self
            .total_bytes
            .checked_add(size)
            .ok_or(AssembleIndex::TooMany { what: "bytes", limit: u64::MAX })?;
        put(&mut self.streams.files, "files", record.as_bytes())
    }

    /// Closes what is open and writes what has no stream of its own.
    pub fn finish(
        mut self,
        sources: &[SourceEntry],
        left_out: &LeftOutList,
    ) -> Result<(Streams<W>, Assembled), AssembleIndex> {
        self.close_pack()?;
        while !self.open_dirs.is_empty() {
            self.close_dir()?;
        }
        let mut source_records = Vec::new();
        for source in sources {
            let SourceEntry { path, endpoint, bucket, prefix, region } = source;
            source_records.push(SourceRecord {
                path: self.text(path.as_bytes())?,
                endpoint: self.text(endpoint.as_bytes())?,
                bucket: self.text(bucket.as_bytes())?,
                prefix: self.text(prefix.as_bytes())?,
                region: self.text(region.as_bytes())?,
                origin: source.origin().0,
                reserved: [0; 8],
            });
        }
        let mut left_out_records = Vec::new();
        for (source, key, reason) in left_out.iter() {
            let key = self.text(key)?;
            left_out_records.push(LeftOutRecord { key, reason: reason.code(), source, reserved: [0; 6] });
        }
        let assembled = Assembled {
            block: self.block,
            total_bytes: self.total_bytes,
            left_out_total: left_out.total(),
            files: self.files,
            children: self.children,
            packs: self.packs,
            members: self.members,
            text_bytes: self.text_bytes,
            sources: source_records,
            dirs: self.dirs,
            left_out: left_out_records,
        };
        Ok((self.streams, assembled))
    }

    fn open_dir(&mut self, name: &[u8]) -> Result<(), AssembleIndex> {
        let number = u32::try_from(self.dirs.len()).ok().filter(|&number| number < MAX_NODES);
        let number = number.ok_or_else(|| too_many("directories"))?;
        let parent = self.add_child(DIR_BIT | number, name)?;
        let record = DirRecord {
            name: self.text(name)?,
            parent: U32::new(parent),
            first_child: U32::ZERO,
            children: U32::ZERO,
            subdirs: U32::ZERO,
            modified_ms: I64::ZERO,
            first_file: U32::new(self.files),
            files: U32::ZERO,
        };
        self.dirs.push(record);
        if let Some(dir) = self.open_dirs.last_mut() {
            dir.subdirs += 1;
        }
        self.open_dirs.push(OpenDir { number, parent_len: self.path.len(), ..OpenDir::default() });
        Ok(())
    }

    fn close_dir(&mut self) -> Result<(), AssembleIndex> {
        let Some(dir) = self.open_dirs.pop() else { return Ok(()) };
        let OpenDir { number, parent_len, children, subdirs, newest_ms } = dir;
        self.path.truncate(parent_len);
        if let Some(parent) = self.open_dirs.last_mut() {
            parent.newest_ms = parent.newest_ms.max(newest_ms);
        }
        if let Some(record) = self.dirs.get_mut(number as usize) {
            record.first_child = U32::new(self.children);
            record.children = U32::new(children.len() as u32);
            record.subdirs = U32::new(subdirs);
            record.modified_ms = I64::new(newest_ms.unwrap_or(0));
            record.files = U32::new(self.files - record.first_file.get());
        }
        for child in &children {
            put(&mut self.streams.children, "children", U32::new(*child).as_bytes())?;
        }
        // Files and directories are each fewer than 2^31, so that their sum fits.
        self.children += children.len() as u32;
        Ok(())
    }

    /// Enters a node in the innermost open directory, whose number is returned.
    fn add_child(&mut self, reference: u32, name: &[u8]) -> Result<u32, AssembleIndex> {
        let Some(dir) = self.open_dirs.last_mut() else { return Ok(0) };
        dir.children.push(reference);
        let hash = name_hash(DirIndex(dir.number), name);
        let record = HashRecord { hash: U64::new(hash), node: U32::new(reference) };
        put(&mut self.streams.hashes, "hashes", record.as_bytes())?;
        Ok(dir.number)
    }

    fn set_etag(&mut self, record: &mut FileRecord, etag: &str) -> Result<(), AssembleIndex> {
        let etag = Etag::parse(etag);
        record.flags |= etag.flags();
        match etag {
            Etag::None => {}
            Etag::Hash(hash) => record.etag = hash,
            Etag::Parts(hash, parts) => {
                record.etag = hash;
                record.etag_parts = U32::new(parts);
            }
            Etag::Text(text) => record.etag[..8].copy_from_slice(self.text(text.as_bytes())?.as_bytes()),
        }
        Ok(())
    }

    fn set_pack(
        &mut self,
        record: &mut FileRecord,
        path: &[u8],
        base: &str,
        content: ContentId,
    ) -> Result<(), AssembleIndex> {
        let size = record.size.get();
        if self.open_pack.as_ref().is_none_or(|pack| pack.source != record.source) {
            self.close_pack()?;
            self.open_pack = Some(OpenPack {
                source: record.source,
                cutter: PackCutter::new(self.block),
                placement: PlacementKey(0),
                first_member: self.members,
                contents: Vec::new(),
                last_path: base.as_bytes().to_vec(),
                len: 0,
                slots: 0,
            });
        }
        let Some(mut pack) = self.open_pack.take() else { return Ok(()) };
        let place = pack.cutter.place(path, size);
        if place.is_first {
            self.write_pack(&pack)?;
            pack.placement = PlacementKey::of_pack(&pack.last_path);
            pack.first_member = self.members;
            pack.contents.clear();
        }
        pack.contents.push(content);
        pack.last_path.clear();
        pack.last_path.extend_from_slice(path);
        pack.len = place.offset + size;
        pack.slots = place.first_slot + chunk_count(size);
        self.open_pack = Some(pack);
        record.pack = U32::new(self.packs);
        record.pack_page = U32::new((place.offset / PACK_ALIGN_BYTES) as u32);
        record.first_slot = U32::new(place.first_slot);
        self.members += 1;
        put(&mut self.streams.members, "members", U32::new(self.files).as_bytes())
    }

    fn close_pack(&mut self) -> Result<(), AssembleIndex> {
        let Some(pack) = self.open_pack.take() else { return Ok(()) };
        self.write_pack(&pack)
    }

    fn write_pack(&mut self, pack: &OpenPack) -> Result<(), AssembleIndex> {
        if pack.contents.is_empty() {
            return Ok(());
        }
        let record = PackRecord {
            placement: U64::new(pack.placement.0),
            content: ContentId::of_pack(pack.contents.iter().copied()).0,
            first_member: U32::new(pack.first_member),
            members: U32::new(pack.contents.len() as u32),
            len: U32::new(pack.len as u32),
            slots: U32::new(pack.slots),
        };
        self.packs += 1;
        put(&mut self.streams.packs, "packs", record.as_bytes())
    }

    fn text(&mut self, bytes: &[u8]) -> Result<TextRef, AssembleIndex> {
        let reference = TextRef::new(self.text_bytes, bytes.len())
            .ok_or(AssembleIndex::TooMany { what: "bytes of text", limit: 1 << 48 })?;
        put(&mut self.streams.text, "text", bytes)?;
        self.text_bytes += bytes.len() as u64;
        Ok(reference)
    }
}

fn put(stream: &mut impl Write, name: &'static str, bytes: &[u8]) -> Result<(), AssembleIndex> {
    stream.write_all(bytes).map_err(|source| AssembleIndex::Write { stream: name, source })
}

fn is_at_or_below(base: &[u8], path: &[u8]) -> bool {
    base.is_empty() || path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
