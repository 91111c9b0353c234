//! Do the frames keep their bytes, and do decoders survive any bytes?
