//! Predictors: nothing, a difference or an exclusive or with the byte before.

/// Prediction of a byte from the byte before in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    /// None: bytes stay unchanged.
    Raw = 0,
    /// Difference to the byte before, modulo 256.
    Delta = 1,
    /// Exclusive or with the byte before.
    Xor = 2,
}

impl Predictor {
    /// All predictors, in the order of numbers, which is also the order of the encoder's tries.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Delta, Self::Xor];

    /// Returns the predictor of a number in a stream.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Appends what is left of `bytes` to `residuals`.
    pub(super) fn apply(self, bytes: &[u8], residuals: &mut Vec<u8>) {
        let pairs = std::iter::once(&0).chain(bytes).zip(bytes);
        match self {
            Self::Raw => residuals.extend(bytes),
            Self::Delta => residuals.extend(pairs.map(|(before, byte)| byte.wrapping_sub(*before))),
            Self::Xor => residuals.extend(pairs.map(|(before, byte)| byte ^ before)),
        }
    }

    /// Turns residuals back into bytes.
    pub(super) fn undo(self, residuals: &mut [u8]) {
        let mut before = 0u8;
        match self {
            Self::Raw => {}
            Self::Delta => residuals.iter_mut().for_each(|byte| {
                before = before.wrapping_add(*byte);
                *byte = before;
            }),
            Self::Xor => residuals.iter_mut().for_each(|byte| {
                before ^= *byte;
                *byte = before;
            }),
        }
    }
}

/// Set of predictors to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictors(u8);

impl Predictors {
    /// All predictors, as the reference uses.
    pub const ALL: Self = Self(0b111);
    /// Bytes without prediction alone.
    pub const RAW: Self = Self(0b001);

    /// Reads a comma-separated list as the reference does: `raw`, `delta_seq` and `xor_seq`, with spaces and tabs around; other names are
    /// ignored, and a list without any known name means `raw`.
    ///
    /// ```
    /// use trunkline_codec::gear::{Predictor, Predictors};
    ///
    /// let set = Predictors::from_list("raw, xor_seq,pair_delta");
    /// assert!(set.contains(Predictor::Xor) && !set.contains(Predictor::Delta));
    /// assert_eq!(Predictors::from_list("pair_delta"), Predictors::RAW);
    /// ```
    pub fn from_list(list: &str) -> Self {
        let bits = list.split(',').map(|name| match name.trim_matches([' ', '\t']) {
            "raw" => 0b001,
            "delta_seq" => 0b010,
            "xor_seq" => 0b100,
            _ => 0,
        });
        match bits.fold(0, |set, bit| set | bit) {
            0 => Self::RAW,
            set => Self(set),
        }
    }

    /// Returns `true` if the set has the predictor.
    pub fn contains(self, predictor: Predictor) -> bool {
        self.0 & (1 << predictor as u8) != 0
    }
}
