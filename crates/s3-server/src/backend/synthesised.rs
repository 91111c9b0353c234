//! Which keys and bodies does a synthetic bucket compute from its spec?

use std::io;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::spec::SyntheticSpec;
use super::{Backend, Content, Meta, Object};
use crate::listing::{self, Entry, Keys, ListPage, ListQuery};
use crate::synthetic::{self, Pattern};

/// 2024-01-01T00:00:00Z: fixed, so that every run lists the same.
const MODIFIED: Duration = Duration::from_secs(1_704_067_200);

/// Objects computed from a spec.
pub(crate) struct Synthesised {
    spec: SyntheticSpec,
    names: Names,
}

enum Names {
    /// Ascending, no duplicates.
    Listed(Vec<Vec<u8>>),
    Numbered(Numbered),
}

/// Keys `<prefix><folders>f<number><suffix>`, in order of their numbers since all numbers are padded.
struct Numbered {
    objects: u64,
    prefix: Vec<u8>,
    suffix: Vec<u8>,
    /// From the outermost: a folder's name is `number / divisor % modulus`, padded.
    levels: Vec<Level>,
    width: usize,
}

struct Level {
    divisor: u64,
    modulus: u64,
    width: usize,
}

impl Synthesised {
    pub fn new(spec: SyntheticSpec) -> Self {
        let names = match &spec.keys {
            Some(keys) => {
                let mut keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
                keys.sort_unstable();
                keys.dedup();
                Names::Listed(keys)
            }
            None => Names::Numbered(Numbered::new(&spec)),
        };
        Self { spec, names }
    }

    fn meta(&self, key: &[u8]) -> Meta {
        let size = self.spec.size_of(key);
        Meta {
            size,
            etag: synthetic::etag(self.spec.seed, key, size, 0),
            modified: SystemTime::UNIX_EPOCH + MODIFIED,
            storage_class: None,
        }
    }
}

impl Names {
    fn len(&self) -> u64 {
        match self {
            Self::Listed(keys) => keys.len() as u64,
            Self::Numbered(numbered) => numbered.objects,
        }
    }

    fn write_key(&self, index: u64, key: &mut Vec<u8>) {
        key.clear();
        match self {
            Self::Listed(keys) => key.extend_from_slice(keys.get(index as usize).map_or(&[], Vec::as_slice)),
            Self::Numbered(numbered) => numbered.write_key(index, key),
        }
    }

    /// Number of keys below `from`.
    fn rank(&self, from: &[u8]) -> u64 {
        let mut key = Vec::new();
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            self.write_key(middle, &mut key);
            if key.as_slice() < from { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn contains(&self, wanted: &[u8]) -> bool {
        let index = self.rank(wanted);
        let mut key = Vec::new();
        self.write_key(index, &mut key);
        index < self.len() && key == wanted
    }
}

impl Numbered {
    fn new(spec: &SyntheticSpec) -> Self {
        let last = spec.objects.saturating_sub(1);
        let mut levels = Vec::new();
        if spec.per_dir > 1 {
            for level in (1..=spec.depth).rev() {
                let divisor = spec.per_dir.saturating_pow(level);
                // The outermost folders take what is left, so that every number has its place.
                let modulus = if level == spec.depth { u64::MAX } else { spec.per_dir };
                let width = digits((last / divisor).min(modulus - 1));
                levels.push(Level { divisor, modulus, width });
            }
        }
        Self {
            objects: spec.objects,
            prefix: spec.prefix.as_bytes().to_vec(),
            suffix: spec.suffix.as_bytes().to_vec(),
            levels,
            width: digits(last).max(8),
        }
    }

    fn write_key(&self, index: u64, key: &mut Vec<u8>) {
        key.extend_from_slice(&self.prefix);
        for level in &self.levels {
            key.push(b'd');
            write_padded(key, index / level.divisor % level.modulus, level.width);
            key.push(b'/');
        }
        key.push(b'f');
        write_padded(key, index, self.width);
        key.extend_from_slice(&self.suffix);
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

fn write_padded(out: &mut Vec<u8>, mut number: u64, width: usize) {
    let from = out.len();
    out.resize(from + width, b'0');
    for place in out[from..].iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

struct Cursor<'a> {
    objects: &'a Synthesised,
    index: u64,
}

impl Keys for Cursor<'_> {
    fn seek(&mut self, from: &[u8]) {
        self.index = self.objects.names.rank(from);
    }

    fn next(&mut self) -> Option<Entry> {
        if self.index >= self.objects.names.len() {
            return None;
        }
        let mut key = Vec::with_capacity(64);
        self.objects.names.write_key(self.index, &mut key);
        self.index += 1;
        let meta = self.objects.meta(&key);
        Some(Entry { key, meta })
    }
}

#[async_trait]
impl Backend for Synthesised {
    async fn list(&self, query: ListQuery) -> io::Result<ListPage> {
        Ok(listing::page(&mut Cursor { objects: self, index: 0 }, &query))
    }

    async fn open(&self, key: &[u8]) -> io::Result<Option<Object>> {
        let pattern = Pattern::new(self.spec.seed, key, 0);
        let known = self.names.contains(key);
        Ok(known.then(|| Object { meta: self.meta(key), content: Content::Computed(pattern) }))
    }

    async fn put(&self, _key: &[u8], _body: Bytes) -> io::Result<Option<Meta>> {
        Ok(None)
    }

    async fn delete(&self, _key: &[u8]) -> io::Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(spec: &str) -> Vec<String> {
        let objects = Synthesised::new(spec.parse().unwrap());
        let mut cursor = Cursor { objects: &objects, index: 0 };
        std::iter::from_fn(|| cursor.next()).map(|entry| String::from_utf8(entry.key).unwrap()).collect()
    }

    #[test]
    fn keys_follow_the_pattern() {
        assert_eq!(keys("objects=2"), ["f00000000.bin", "f00000001.bin"]);
        let nested = keys("objects=12,per-dir=2,depth=2,prefix=p/,suffix=");
        assert_eq!(nested[0], "p/d0/d0/f00000000");
        assert_eq!(nested[7], "p/d1/d1/f00000007");
        assert_eq!(nested[11], "p/d2/d1/f00000011");
    }

    #[test]
    fn keys_are_in_order_and_each_is_found() {
        for spec in ["objects=2345", "objects=2345,per-dir=10,depth=3", "objects=999,per-dir=100,prefix=a/"] {
            let all = keys(spec);
            assert!(all.is_sorted() && all.len() > 900, "{spec}");
            let objects = Synthesised::new(spec.parse().unwrap());
            assert!(all.iter().all(|key| objects.names.contains(key.as_bytes())));
            for absent in ["", "f", "f1.bin", "zzz", "a/"] {
                assert!(!objects.names.contains(absent.as_bytes()), "{absent}");
            }
        }
    }

    #[test]
    fn sizes_lie_in_the_range_and_depend_on_the_key_alone() {
        let spec: SyntheticSpec = "objects=1000,size=1KiB..2KiB".parse().unwrap();
        let sizes: Vec<u64> = keys("objects=1000").iter().map(|key| spec.size_of(key.as_bytes())).collect();
        assert!(sizes.iter().all(|size| (1024..=2048).contains(size)));
        assert!(sizes.iter().collect::<std::collections::HashSet<_>>().len() > 400);
    }

    #[test]
    fn a_page_in_ten_million_keys_is_found_at_once() {
        let objects = Synthesised::new("objects=10000000,per-dir=1000".parse().unwrap());
        let mut cursor = Cursor { objects: &objects, index: 0 };
        cursor.seek(b"d5000/");
        assert_eq!(cursor.next().unwrap().key, b"d5000/f05000000.bin");
    }
}
