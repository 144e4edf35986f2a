//! Encoding of messages: Protobuf with small buffers.
//!
//! The default codec gives every stream a buffer of 8 KiB and writes through it from one end to the other, so a thousand streams of
//! small messages go through megabytes of memory. A message of a stream has some tens of bytes: with a small buffer, which is used
//! again as soon as its messages are sent, the memory stays in the processor's caches. Longer messages get longer buffers.

use std::marker::PhantomData;

use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// First size of a stream's buffer, bytes.
const BUFFER_BYTES: usize = 512;
/// Messages that are ready are put together up to this size, bytes; the default of tonic.
const YIELD_BYTES: usize = 32 << 10;

/// Codec of the calls of the protocol.
#[derive(Clone, Debug)]
pub struct WireCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for WireCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for WireCodec<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}
