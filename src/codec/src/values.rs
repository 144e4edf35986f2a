//! Lanes as symbols: sign, exponent relative to a reference, and the top bits of the mantissa are coded; the bits below are stored.

use crate::shape::Dtype;
use crate::stored_bits::StoredBits;

/// Form of the lanes of a type ([`crate::lanes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of a lane below the exponent.
    pub mantissa: u32,
    /// Bits of the mantissa that are coded.
    pub coded: u32,
    /// Exponent field of 1.0.
    bias: i32,
    /// Greatest exponent field.
    exponent_max: u16,
    /// Bits stored unchanged.
    pub stored: StoredBits,
    /// Least magnitude of a lane that is not a number.
    no_number: u16,
}

/// Exponents of a symbol around the reference: 1 to 31, of which 16 stands for the reference; 0 is an escape.
pub(crate) const EXPONENT_CENTRE: i32 = 16;
/// Symbol whose code announces a lane that is stored whole.
pub(crate) const ESCAPE: u16 = 0;

impl Format {
    /// Returns the form of a type whose elements stand on their own.
    pub(crate) fn of(dtype: Dtype) -> Self {
        let stored = |bits, shift| StoredBits { bits, shift };
        let half = Self { mantissa: 10, coded: 2, bias: 15, exponent_max: 31, stored: stored(8, 0), no_number: 0x7c00 };
        match dtype {
            Dtype::Bf16 | Dtype::F32 => {
                Self { mantissa: 7, coded: 1, bias: 127, exponent_max: 255, stored: stored(6, 0), no_number: 0x7f80 }
            }
            Dtype::F16 => half,
            Dtype::E5m2 => Self { stored: stored(0, 0), ..half },
            Dtype::Q8_0 | Dtype::Q4_0 => unreachable!("quantised elements have no lanes"),
            Dtype::E4m3 => Self { bias: 7, exponent_max: 15, stored: stored(1, 7), no_number: 0x3f80, ..half },
        }
    }

    /// Returns the bits of a symbol.
    #[inline(always)]
    pub(crate) fn symbol_bits(self) -> u32 {
        6 + self.coded
    }

    /// Returns the bits of the mantissa that are not coded.
    #[inline(always)]
    pub(crate) fn below(self) -> u32 {
        self.mantissa - self.coded
    }

    /// Returns the value of a lane; 0 for NaN and infinities.
    pub(crate) fn value(self, lane: u16) -> f64 {
        if lane & 0x7fff >= self.no_number {
            return 0.0;
        }
        let field = (lane >> self.mantissa) & self.exponent_max;
        let fraction = f64::from(lane & ((1 << self.mantissa) - 1)) / f64::from(1u32 << self.mantissa);
        let (whole, exponent) = if field == 0 { (0.0, 1 - self.bias) } else { (1.0, i32::from(field) - self.bias) };
        let magnitude = (whole + fraction) * 2f64.powi(exponent);
        if lane >> 15 == 1 { -magnitude } else { magnitude }
    }

    /// Returns the exponent that symbols count from, in the place of a lane's exponent, for a channel of this reference exponent. Exponents
    /// that the type does not have count as the nearest.
    #[inline(always)]
    pub(crate) fn origin(self, exponent: i8) -> u16 {
        let field = (i32::from(exponent) + self.bias).clamp(1, i32::from(self.exponent_max));
        ((field - EXPONENT_CENTRE) << self.mantissa) as u16
    }

    /// Returns the symbol of a lane whose sign was flipped if the prediction is negative; [`ESCAPE`] outside the window.
    #[inline(always)]
    pub(crate) fn symbol(self, lane: u16, origin: u16) -> u16 {
        let relative = (lane & 0x7fff).wrapping_sub(origin);
        let symbol = (lane >> 15) << (5 + self.coded) | relative >> self.below();
        let is_inside = relative.wrapping_sub(1 << self.mantissa) < 31 << self.mantissa;
        symbol & 0u16.wrapping_sub(is_inside.into())
    }

    /// Returns the lane of a symbol for an origin of 0, without the bits below those coded.
    pub(crate) fn lane(self, symbol: u16) -> u16 {
        let sign = symbol >> (5 + self.coded);
        sign << 15 | (symbol ^ sign << (5 + self.coded)) << self.below()
    }

    /// Returns the lane of a channel from a lane for an origin of 0. Bits below those coded are cleared.
    #[inline(always)]
    pub(crate) fn shifted(self, lane: u16, origin: u16) -> u16 {
        (lane & !((1 << self.below()) - 1)).wrapping_add(origin)
    }

    /// Returns the bounds of the values that have a symbol, as multiples of two to the reference exponent, and `true` for negative ones.
    /// `None` for the escape and exponent 0, which no value within the window has.
    #[cfg(test)]
    pub(crate) fn bounds(self, symbol: u8) -> Option<(f64, f64, bool)> {
        let symbol = i32::from(symbol);
        let (exponent, top) = ((symbol >> self.coded) & 31, symbol & ((1 << self.coded) - 1));
        let steps = f64::from(1 << self.coded);
        let unit = 2f64.powi(exponent - EXPONENT_CENTRE);
        let [low, high] = [top, top + 1].map(|top| unit * (1.0 + f64::from(top) / steps));
        (exponent > 0).then_some((low, high, symbol >> (5 + self.coded) == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lanes that elements of a type have.
    fn lanes(dtype: Dtype) -> impl Iterator<Item = u16> {
        let unused = match dtype {
            Dtype::E4m3 => 0x407f,
            Dtype::E5m2 => 0x00ff,
            _ => 0,
        };
        (0..=u16::MAX).filter(move |lane| lane & unused == 0)
    }

    #[test]
    fn every_lane_is_its_symbol_and_the_bits_below_or_an_escape() {
        for dtype in Dtype::FLOATS {
            let format = Format::of(dtype);
            let StoredBits { bits, shift } = format.stored;
            let below = ((1u16 << bits) - 1) << shift;
            for exponent in [-128i8, -100, -14, -3, 0, 5, 15, 100, 127] {
                let origin = format.origin(exponent);
                let mut escaped = 0;
                for lane in lanes(dtype) {
                    match format.symbol(lane, origin) {
                        ESCAPE => escaped += 1,
                        symbol => {
                            assert!(symbol < 1 << format.symbol_bits());
                            assert_eq!(format.shifted(format.lane(symbol), origin) | lane & below, lane);
                        }
                    }
                }
                let all = lanes(dtype).count();
                assert!(escaped < all, "{dtype:?} {exponent}");
            }
        }
    }

    #[test]
    fn symbols_have_the_bounds_of_their_values() {
        for dtype in Dtype::FLOATS {
            let format = Format::of(dtype);
            for lane in lanes(dtype) {
                let symbol = format.symbol(lane, format.origin(1));
                let Some((low, high, negative)) = format.bounds(symbol as u8) else { continue };
                let value = format.value(lane) / 2.0;
                let is_normal = lane >> format.mantissa & format.exponent_max != 0 && lane & 0x7fff < format.no_number;
                let within = (low..high).contains(&value.abs()) && negative == (lane >> 15 == 1);
                assert!(within || !is_normal, "{lane:x}: {value} in {low}..{high}");
            }
        }
    }
}
