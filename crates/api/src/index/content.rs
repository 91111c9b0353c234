//! Which object is a file, and where do its bytes lie and belong?

use std::borrow::Cow;

use super::etag;
use super::format::NONE;
use super::view::{FileIndex, IndexView, Node, Pack, PackIndex};
use crate::block::{CHUNK_BYTES, LARGE_OBJECT_BYTES, PACK_ALIGN_BYTES, Span, StoreFile, chunk_count};
use crate::ids::ContentId;
use crate::placement::PlacementKey;

/// Sizes from here on have more chunks than a `u32` counts; no S3 object is near.
const MAX_SIZE_BYTES: u64 = (u32::MAX as u64) * CHUNK_BYTES;

impl<'a> IndexView<'a> {
    /// The ETag of the file's object, without quotes.
    pub fn etag(&self, file: FileIndex) -> Option<Cow<'a, str>> {
        etag::read(self, self.files.get(file.0 as usize)?)
    }

    /// The whole key of the file's object.
    pub fn key(&self, file: FileIndex) -> Option<Vec<u8>> {
        let source = self.source(self.files.get(file.0 as usize)?.source)?;
        let path = self.path(Node::File(file))?;
        let mut key = source.prefix.as_bytes().to_vec();
        key.extend_from_slice(relative(source.path.as_bytes(), &path)?);
        Some(key)
    }

    /// Where the file's bytes lie in its store file.
    ///
    /// For a large object this hashes its key: ask once an open, not once a read.
    pub fn span(&self, file: FileIndex) -> Option<Span> {
        let record = self.files.get(file.0 as usize)?;
        let size = record.size.get();
        if record.pack.get() == NONE {
            return (size < MAX_SIZE_BYTES)
                .then(|| Some(Span::of_large(self.object_id(file)?, size, self.block)))?;
        }
        let pack = self.pack(PackIndex(record.pack.get()))?;
        let offset = u64::from(record.pack_page.get()) * PACK_ALIGN_BYTES;
        let first_slot = record.first_slot.get();
        let fits = size < LARGE_OBJECT_BYTES
            && offset + size <= pack.file.len
            && u64::from(first_slot) + u64::from(chunk_count(size)) <= u64::from(pack.file.slots);
        fits.then_some(Span { file: pack.file, offset, first_slot, size })
    }

    /// The identity of the file's object, whether it is packed or not.
    pub fn object_id(&self, file: FileIndex) -> Option<ContentId> {
        let record = self.files.get(file.0 as usize)?;
        let origin = self.source(record.source)?.origin;
        let etag = self.etag(file)?;
        Some(ContentId::of_object(origin, &self.key(file)?, etag.as_bytes(), record.size.get()))
    }

    /// What block `block` of the file's store file is placed by. A pack has one block, 0.
    pub fn placement_key(&self, file: FileIndex, block: u32) -> Option<PlacementKey> {
        match self.pack_of(file) {
            Some(pack) => self.packs.get(pack.0 as usize).map(|pack| PlacementKey(pack.placement.get())),
            None => Some(PlacementKey::of_block(&self.path(Node::File(file))?, block)),
        }
    }

    /// The pack that a file is in; `None` for large and empty files.
    pub fn pack_of(&self, file: FileIndex) -> Option<PackIndex> {
        Some(PackIndex(self.files.get(file.0 as usize)?.pack.get())).filter(|pack| pack.0 != NONE)
    }

    /// One pack.
    pub fn pack(&self, pack: PackIndex) -> Option<Pack> {
        let record = self.packs.get(pack.0 as usize)?;
        let slots = record.slots.get();
        Some(Pack {
            placement: PlacementKey(record.placement.get()),
            file: StoreFile {
                content: ContentId(record.content),
                len: record.len.get().into(),
                slots,
                slots_per_block: slots,
            },
            member_count: record.members.get(),
        })
    }

    /// Bytes of all packs: of the small files, and what aligns them there.
    pub fn packed_bytes(&self) -> u64 {
        self.packs.iter().map(|record| u64::from(record.len.get())).sum()
    }

    /// The files of a pack, in the order in which they lie in it.
    pub fn pack_members(&self, pack: PackIndex) -> impl Iterator<Item = FileIndex> + use<'a> {
        let members = || {
            let record = self.packs.get(pack.0 as usize)?;
            let start = record.first_member.get() as usize;
            self.members.get(start..start.checked_add(record.members.get() as usize)?)
        };
        let files = self.files.len();
        let members = members().unwrap_or_default().iter().map(|member| FileIndex(member.get()));
        members.filter(move |file| (file.0 as usize) < files)
    }
}

/// The part of `path` below `base`; `None` where it is not below.
pub(super) fn relative<'p>(base: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    if base.is_empty() { Some(path) } else { path.strip_prefix(base)?.strip_prefix(b"/") }
}
