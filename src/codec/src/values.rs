//! Elements as symbols: sign, exponent relative to a reference, and the top bits of the mantissa are coded; the bits below are stored.

use crate::shape::Dtype;

/// Form of the elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the mantissa.
    mantissa: u32,
    /// Bits of the mantissa that are coded.
    coded: u32,
    /// Exponent field of 1.0.
    bias: i32,
    /// Greatest exponent field, that of infinities.
    exponent_max: u16,
}

/// Exponents of a symbol around the reference: 1 to 31, of which 16 stands for the reference; 0 is an escape.
pub(crate) const EXPONENT_CENTRE: i32 = 16;
/// Symbol whose code announces an element that is stored whole.
#[cfg(test)]
pub(crate) const ESCAPE: u8 = 0;

impl Format {
    /// Returns the form of a type.
    pub fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bf16 => Self { mantissa: 7, coded: 1, bias: 127, exponent_max: 255 },
            Dtype::F16 => Self { mantissa: 10, coded: 2, bias: 15, exponent_max: 31 },
        }
    }

    /// Returns the number of symbols.
    pub(crate) fn symbols(self) -> usize {
        64 << self.coded
    }

    /// Returns the number of bits stored unchanged.
    pub(crate) fn stored_bits(self) -> u32 {
        self.mantissa - self.coded
    }

    /// Returns the value of an element; 0 for NaN and infinities.
    pub(crate) fn value(self, bits: u16) -> f64 {
        let field = (bits >> self.mantissa) & self.exponent_max;
        if field == self.exponent_max {
            return 0.0;
        }
        let fraction = f64::from(bits & ((1 << self.mantissa) - 1)) / f64::from(1u32 << self.mantissa);
        let (whole, exponent) = if field == 0 { (0.0, 1 - self.bias) } else { (1.0, i32::from(field) - self.bias) };
        let magnitude = (whole + fraction) * 2f64.powi(exponent);
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    /// Returns the exponent field that symbols count from, for a channel of this reference exponent.
    pub(crate) fn origin(self, exponent: i8) -> i16 {
        i16::from(exponent) + self.bias as i16 - EXPONENT_CENTRE as i16
    }

    /// Returns the symbol that no code has: of elements outside the window.
    pub(crate) fn uncoded(self) -> u8 {
        1 << (5 + self.coded)
    }

    /// Returns the symbol of an element whose sign was flipped if the prediction is negative.
    #[inline]
    pub(crate) fn symbol(self, bits: u16, origin: i16) -> u8 {
        let exponent = ((bits >> self.mantissa) & self.exponent_max).wrapping_sub(origin as u16);
        let coded = (bits >> self.stored_bits()) & ((1 << self.coded) - 1);
        let symbol = (bits >> 15) << (5 + self.coded) | (exponent & 31) << self.coded | coded;
        if exponent.wrapping_sub(1) < 31 { symbol as u8 } else { self.uncoded() }
    }

    /// Returns the coded part of an element from a symbol.
    #[inline]
    pub(crate) fn coded_part(self, symbol: u8, origin: i16) -> u16 {
        let symbol = u16::from(symbol);
        let exponent = ((symbol >> self.coded) & 31).wrapping_add(origin as u16) & self.exponent_max;
        (symbol >> (5 + self.coded)) << 15
            | exponent << self.mantissa
            | (symbol & ((1 << self.coded) - 1)) << self.stored_bits()
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

    #[test]
    fn every_element_is_its_symbol_and_the_bits_below_or_an_escape() {
        for dtype in Dtype::ALL {
            let format = Format::of(dtype);
            let below = (1u16 << format.stored_bits()) - 1;
            for exponent in [-100i8, -14, -3, 0, 5, 15, 100] {
                let origin = format.origin(exponent);
                let (mut held, mut escaped) = (0, 0);
                for bits in 0..=u16::MAX {
                    match format.symbol(bits, origin) {
                        symbol if symbol == format.uncoded() => escaped += 1,
                        symbol => {
                            assert_eq!(format.coded_part(symbol, origin) | bits & below, bits);
                            held += 1;
                        }
                    }
                }
                assert_eq!(held + escaped, 1 << 16);
                assert!(held <= 31 << (format.mantissa + 1), "{dtype:?} {exponent}");
            }
        }
    }

    #[test]
    fn symbols_have_the_bounds_of_their_values() {
        for dtype in Dtype::ALL {
            let format = Format::of(dtype);
            for bits in (0..1u32 << 16).step_by(7).map(|bits| bits as u16) {
                let symbol = format.symbol(bits, format.origin(1));
                let Some((low, high, negative)) = format.bounds(symbol) else { continue };
                let value = format.value(bits) / 2.0;
                let field = (bits >> format.mantissa) & format.exponent_max;
                let is_normal = field != 0 && field != format.exponent_max;
                let within = (low..high).contains(&value.abs()) && negative == (bits >> 15 == 1);
                assert!(within || !is_normal, "{bits:x}: {value} in {low}..{high}");
            }
        }
    }
}
