//! How do a dataset's processes prove to each other that they belong together?
//!
//! One master key and the Dataset's UID give two keys by HKDF-SHA256: nodes and workers hold the *data key*, workers and
//! whoever composes them (operator or `millrace local`) the *control key*.

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Length of every key, nonce and proof, bytes.
pub const KEY_BYTES: usize = 32;

/// A secret key. Its `Debug` never shows the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

/// Which side of a connection a proof speaks for, so that neither side's proof can be played back as the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who opened the connection.
    Client,
    /// Who accepted it.
    Server,
}

/// Says why a text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a key: expected 64 hexadecimal digits, got {length} bytes of text")]
pub struct ParseKey {
    /// Length of the refused text; the text itself may be half a secret and is not kept.
    pub length: usize,
}

impl Key {
    /// Wraps the bytes of a key.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads 64 hexadecimal digits; white space around them is allowed, since keys come in files.
    ///
    /// # Errors
    /// [`ParseKey`] where the text is of another length or has other digits.
    pub fn from_hex(text: &str) -> Result<Self, ParseKey> {
        let digits = text.trim();
        let error = || ParseKey { length: digits.len() };
        if digits.len() != 2 * KEY_BYTES || !digits.is_ascii() {
            return Err(error());
        }
        let mut bytes = [0; KEY_BYTES];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }

    /// The key as 64 hexadecimal digits, to be put in a file that only its user can read.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Derives the data key of the dataset with this UID from a master key.
    pub fn data_key(master: &Key, dataset_uid: &str) -> Self {
        derive(master, dataset_uid, b"millrace data key 1")
    }

    /// Derives the control key of the dataset with this UID from a master key.
    pub fn control_key(master: &Key, dataset_uid: &str) -> Self {
        derive(master, dataset_uid, b"millrace control key 1")
    }

    /// Proves knowledge of the key to the peer that chose the other nonce.
    pub fn prove(
        &self,
        side: Side,
        server_nonce: &[u8; KEY_BYTES],
        client_nonce: &[u8; KEY_BYTES],
    ) -> [u8; KEY_BYTES] {
        self.mac(side, server_nonce, client_nonce).finalize().into_bytes().into()
    }

    /// Checks a proof of `side`, in constant time.
    pub fn verify(
        &self,
        side: Side,
        server_nonce: &[u8; KEY_BYTES],
        client_nonce: &[u8; KEY_BYTES],
        proof: &[u8; KEY_BYTES],
    ) -> bool {
        self.mac(side, server_nonce, client_nonce).verify_slice(proof).is_ok()
    }

    fn mac(
        &self,
        side: Side,
        server_nonce: &[u8; KEY_BYTES],
        client_nonce: &[u8; KEY_BYTES],
    ) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(match side {
            Side::Client => b"millrace client proof 1",
            Side::Server => b"millrace server proof 1",
        });
        mac.update(server_nonce);
        mac.update(client_nonce);
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn derive(master: &Key, dataset_uid: &str, purpose: &[u8]) -> Key {
    let mut bytes = [0; KEY_BYTES];
    Hkdf::<Sha256>::new(Some(dataset_uid.as_bytes()), &master.0)
        .expand(purpose, &mut bytes)
        .expect("32 bytes is a length that HKDF-SHA256 can give");
    Key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SERVER: [u8; KEY_BYTES] = [1; KEY_BYTES];
    const CLIENT: [u8; KEY_BYTES] = [2; KEY_BYTES];

    #[test]
    fn keys_of_datasets_and_purposes_differ_and_are_pinned() {
        let master = Key::new([7; KEY_BYTES]);
        let data = Key::data_key(&master, "uid-1");
        assert_eq!(data.to_hex(), "8afc687d3bf558654b42d46a52658154eaec496d5089e31d1295314b6aa0c944");
        let control = Key::control_key(&master, "uid-1");
        assert_eq!(control.to_hex(), "a7d06a1464131d6a9dc9d2af1f547e4523dd9f5de84acdafb4da7d050d99994b");
        assert_ne!(data, Key::data_key(&master, "uid-2"));
    }

    #[test]
    fn a_proof_holds_for_its_side_and_nonces_only() {
        let key = Key::new([9; KEY_BYTES]);
        let proof = key.prove(Side::Client, &SERVER, &CLIENT);
        assert!(key.verify(Side::Client, &SERVER, &CLIENT, &proof));
        assert!(!key.verify(Side::Server, &SERVER, &CLIENT, &proof));
        assert!(!key.verify(Side::Client, &CLIENT, &SERVER, &proof));
        assert!(!Key::new([8; KEY_BYTES]).verify(Side::Client, &SERVER, &CLIENT, &proof));
    }

    proptest! {
        #[test]
        fn no_changed_bit_of_a_proof_is_taken(key: [u8; 32], nonces: [[u8; 32]; 2], bit in 0usize..256) {
            let key = Key::new(key);
            let mut proof = key.prove(Side::Server, &nonces[0], &nonces[1]);
            prop_assert!(key.verify(Side::Server, &nonces[0], &nonces[1], &proof));
            proof[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!key.verify(Side::Server, &nonces[0], &nonces[1], &proof));
        }
    }

    #[test]
    fn a_key_reads_back_from_hex_and_never_shows_in_debug() {
        let key = Key::new([0xAB; KEY_BYTES]);
        assert_eq!(Key::from_hex(&format!(" {}\n", key.to_hex())), Ok(key.clone()));
        assert_eq!(Key::from_hex("abc"), Err(ParseKey { length: 3 }));
        assert!(Key::from_hex(&"zz".repeat(32)).is_err());
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
