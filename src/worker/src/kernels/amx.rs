//! Products of BF16 weights with rows rounded to BF16, by the tiles of AMX.
//!
//! AMX multiplies two tiles, of sixteen rows and sixteen outputs, in sixteen cycles; vectors of F32 need more than two hundred. It is another
//! arithmetic than that of `crate::kernels::tile`, for every number of rows the same: a row is rounded to the nearest BF16, ties to even. Each
//! 32 inputs of an output are two chains of fused multiply-adds from zero, of the even and of the odd inputs in ascending order; their sum is added
//! to the output. Numbers below the normal ones are zeros, as inputs and as results. That is `TDPBF16PS` in Intel's manual (Software Developer's Manual,
//! volume 2); on machines with AMX the tests compare both.

use std::sync::OnceLock;

use crate::kernels::kernel::{LANES, Sums, vectorised};

/// Inputs of a tile: sixteen pairs.
const INPUTS: usize = 32;
/// Rows of a tile.
const TILE: usize = 16;
/// Rows multiplied at a time: two tiles, as many as keep the machine busy.
pub(crate) const ROWS: usize = 2 * TILE;
/// Words of sixteen outputs in a tile of weights.
const WORDS: usize = INPUTS / 2 * LANES;

/// Arithmetic of products with BF16 weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// Weights are widened to F32: equal bits on every machine.
    #[default]
    Portable,
    /// Rows are rounded to BF16 and multiplied by tiles.
    Amx(Amx),
}

impl Kernel {
    /// Names of all kernels.
    pub const NAMES: [&str; 2] = ["portable", "amx-bf16"];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => Self::NAMES[0],
            Self::Amx(_) => Self::NAMES[1],
        }
    }

    /// Returns the kernel of a name, if the machine has it.
    pub fn of_name(name: &str) -> Option<Self> {
        if name == Self::Portable.name() {
            return Some(Self::Portable);
        }
        Amx::get().map(Self::Amx).filter(|kernel| kernel.name() == name)
    }

    /// Returns the fastest kernel of the machine.
    pub fn of_machine() -> Self {
        Amx::get().map_or(Self::Portable, Self::Amx)
    }

    /// Returns the tiles, if they are the kernel.
    pub(crate) fn amx(self) -> Option<Amx> {
        match self {
            Self::Portable => None,
            Self::Amx(amx) => Some(amx),
        }
    }
}

/// The instructions, which the machine has and the system lets the process use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amx(());

impl Amx {
    /// Returns the instructions if the machine has them; asks the system for the tiles once.
    pub fn get() -> Option<Self> {
        static IS_THERE: OnceLock<bool> = OnceLock::new();
        IS_THERE.get_or_init(is_there).then_some(Self(()))
    }
}

/// Sixteen pairs of one row: a line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u16; INPUTS]);

/// Rounded rows as tiles, in memory to be used again: `[tile][step][row]`, a step being [`INPUTS`] inputs.
#[derive(Default)]
pub(crate) struct Lines(Vec<Line>);

/// Returns the number of steps of a row.
pub(crate) fn steps(inputs: usize) -> usize {
    inputs.div_ceil(INPUTS)
}

impl Lines {
    /// Returns room for `rows` rows of `inputs` elements.
    pub(crate) fn room(&mut self, rows: usize, inputs: usize) -> &mut [Line] {
        self.0.resize(rows * steps(inputs), Line([0; INPUTS]));
        &mut self.0
    }
}

/// Rounded rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tiles<'a> {
    lines: &'a [Line],
    steps: usize,
}

impl<'a> Tiles<'a> {
    /// Rounds rows of `inputs` elements into `lines`, which are as many as [`Lines::room`] returns for them.
    pub(crate) fn round(x: &[f32], inputs: usize, lines: &'a mut [Line]) -> Self {
        let steps = steps(inputs);
        vectorised(
            #[inline(always)]
            || {
                for (x, lines) in x.chunks(TILE * inputs).zip(lines.chunks_mut(TILE * steps)) {
                    let rows = x.len() / inputs;
                    for (row, x) in x.chunks_exact(inputs).enumerate() {
                        for (step, x) in x.chunks(INPUTS).enumerate() {
                            round(x, &mut lines[step * rows + row].0);
                        }
                    }
                }
            },
        );
        Self { lines, steps }
    }

    /// Returns the rows in parts of [`ROWS`] rows, the last of fewer.
    pub(crate) fn parts(self) -> impl Iterator<Item = Tiles<'a>> {
        self.lines.chunks((ROWS * self.steps).max(1)).map(move |lines| Self { lines, ..self })
    }

    /// Returns the number of rows.
    pub(crate) fn rows(self) -> usize {
        self.lines.len() / self.steps.max(1)
    }
}

/// Rounds to the nearest BF16, ties to even; fills up with zeros. NaN stays NaN.
#[inline(always)]
fn round(x: &[f32], out: &mut [u16; INPUTS]) {
    if let Some(x) = x.first_chunk::<INPUTS>() {
        for (out, x) in out.iter_mut().zip(x) {
            *out = rounded(*x);
        }
    } else {
        *out = [0; INPUTS];
        for (out, x) in out.iter_mut().zip(x) {
            *out = rounded(*x);
        }
    }
}

#[inline(always)]
fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding up could carry a NaN into zero.
    let quiet = bits >> 16 | 0x40;
    (if x.is_nan() { quiet } else { nearest }) as u16
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    use super::{Amx, LANES, ROWS, Sums, TILE, Tiles, WORDS};

    /// Bytes of a line, and so of a row of a tile.
    const LINE: usize = 64;
    /// Bytes of a tile of weights.
    const BYTES: usize = WORDS * size_of::<u32>();

    /// Sizes of the tiles, as the machine takes them: tiles 0 and 1 are sums of the first rows, 2 and 3 of those behind; 4 and 5 the rows, 6 and 7 weights.
    #[repr(C, align(64))]
    struct Sizes([u8; 64]);

    /// Sizes for each number of rows.
    static SIZES: [Sizes; ROWS + 1] = {
        let mut all = [const { Sizes([0; 64]) }; ROWS + 1];
        let mut rows = 1;
        while rows <= ROWS {
            let first = if rows < TILE { rows } else { TILE };
            let of_tile = [first, first, rows - first, rows - first, first, rows - first, TILE, TILE];
            all[rows].0[0] = 1;
            let mut tile = 0;
            while tile < of_tile.len() {
                if of_tile[tile] > 0 {
                    all[rows].0[16 + 2 * tile] = LINE as u8;
                    all[rows].0[48 + tile] = of_tile[tile] as u8;
                }
                tile += 1;
            }
            rows += 1;
        }
        all
    };

    /// Returns `true` if the machine has AMX for BF16 and the system gives the process its tiles.
    #[expect(unsafe_code, reason = "a call of the system")]
    pub(super) fn is_there() -> bool {
        const LEAF: u32 = 7;
        const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        let has_leaf = __cpuid_count(0, 0).eax >= LEAF;
        if !has_leaf || __cpuid_count(LEAF, 0).edx & TILES_AND_BF16 != TILES_AND_BF16 {
            return false;
        }
        // SAFETY: the call takes two numbers and touches no memory of the process; it lets the threads use more registers, or fails.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    impl Amx {
        /// Computes the products of two panels with the rows, [`ROWS`] at most: those of the first from `sums[0]` on, of the second from `sums[second]` on. If
        /// both are the same panel, both may be the same sums.
        ///
        /// # Panics
        /// If there are no rows, or more than [`ROWS`], or no inputs, or weights or sums are too few.
        #[expect(unsafe_code, reason = "the compiler does not know the machine")]
        pub(crate) fn multiply(self, x: Tiles<'_>, weights: [&[u32]; 2], sums: &mut [Sums], second: usize) {
            let (rows, steps) = (x.rows(), x.steps);
            assert!((1..=ROWS).contains(&rows), "{rows} rows");
            assert!(weights.iter().all(|panel| panel.len() >= steps * WORDS), "a panel of the rows' inputs");
            assert!(steps > 0 && x.lines.len() >= rows * steps, "rows of inputs");
            assert!(second <= sums.len() && rows <= sums.len() - second, "room for the sums");
            const { assert!(size_of::<Sums>() == LINE && LANES == TILE) };
            let (a, b, out) = (x.lines.as_ptr(), weights.map(<[u32]>::as_ptr), sums.as_mut_ptr());
            let out = [out, out.wrapping_add(second)];
            // SAFETY: the machine has the instructions and the process may use tiles, else there would be no `self`. `rows` and `steps` are at least 1, and
            // there are `rows * steps` lines: the first tile has 16 rows, or all of fewer, in each step, the second the others. Each panel has `WORDS` words
            // for each step, and each of the two places room for `rows` sums. All of this was checked above. No tile is in use before or after.
            unsafe {
                if rows > TILE {
                    two_tiles(rows, steps, [a, a.wrapping_add(TILE * steps)], b, out);
                } else {
                    one_tile(rows, steps, a, b, out);
                }
            }
        }
    }

    /// Multiplies one tile of `rows` rows with two panels.
    ///
    /// # Safety
    /// `rows` MUST be from 1 to [`TILE`], and `steps` at least 1; memory MUST be there as [`Amx::multiply`] says.
    #[expect(unsafe_code, reason = "the compiler does not know the instructions")]
    unsafe fn one_tile(rows: usize, steps: usize, a: *const super::Line, b: [*const u32; 2], out: [*mut Sums; 2]) {
        // SAFETY: see `Amx::multiply`.
        unsafe {
            asm!(
                "ldtilecfg [{sizes}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "2:",
                "tileloadd tmm4, [{a} + {line}]",
                "tileloadd tmm6, [{b0} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a}, {a_step}",
                "add {b0}, {BYTES}",
                "add {b1}, {BYTES}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out0} + {line}], tmm0",
                "tilestored [{out1} + {line}], tmm1",
                "tilerelease",
                sizes = in(reg) &SIZES[rows],
                line = in(reg) LINE,
                a = inout(reg) a => _,
                a_step = in(reg) rows * LINE,
                b0 = inout(reg) b[0] => _,
                b1 = inout(reg) b[1] => _,
                out0 = in(reg) out[0],
                out1 = in(reg) out[1],
                steps = inout(reg) steps => _,
                BYTES = const BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Multiplies a full tile and one of the other rows of `rows` with two panels: every tile that is loaded is used twice.
    ///
    /// # Safety
    /// `rows` MUST be from [`TILE`] + 1 to [`ROWS`], and `steps` at least 1; memory MUST be there as [`Amx::multiply`] says.
    #[expect(unsafe_code, reason = "the compiler does not know the instructions")]
    unsafe fn two_tiles(
        rows: usize,
        steps: usize,
        a: [*const super::Line; 2],
        b: [*const u32; 2],
        out: [*mut Sums; 2],
    ) {
        // SAFETY: see `Amx::multiply`.
        unsafe {
            asm!(
                "ldtilecfg [{sizes}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm6, [{b0} + {line}]",
                "tileloadd tmm4, [{a0} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {line}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, {BYTES}",
                "add {a1}, {a_step}",
                "add {b0}, {BYTES}",
                "add {b1}, {BYTES}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out0} + {line}], tmm0",
                "tilestored [{out1} + {line}], tmm1",
                "tilestored [{out0} + {line} + {BYTES}], tmm2",
                "tilestored [{out1} + {line} + {BYTES}], tmm3",
                "tilerelease",
                sizes = in(reg) &SIZES[rows],
                line = in(reg) LINE,
                a0 = inout(reg) a[0] => _,
                a1 = inout(reg) a[1] => _,
                a_step = in(reg) (rows - TILE) * LINE,
                b0 = inout(reg) b[0] => _,
                b1 = inout(reg) b[1] => _,
                out0 = in(reg) out[0],
                out1 = in(reg) out[1],
                steps = inout(reg) steps => _,
                BYTES = const BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod instructions {
    use super::{Amx, Sums, Tiles};

    pub(super) fn is_there() -> bool {
        false
    }

    impl Amx {
        pub(crate) fn multiply(self, _: Tiles<'_>, _: [&[u32]; 2], _: &mut [Sums], _: usize) {
            unreachable!("no machine of this kind has the instructions")
        }
    }
}

use instructions::is_there;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::noise::Noise;

    fn widened(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    /// Zero for numbers below the normal ones.
    fn normal(x: f32) -> f32 {
        if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
    }

    /// The product of a row with one output, as the module says.
    fn plain(x: &[f32], weights: &[u16]) -> f32 {
        let mut sum = 0.0;
        for (x, weights) in x.chunks(INPUTS).zip(weights.chunks(INPUTS)) {
            let mut chains = [0.0f32; 2];
            for (k, (x, weight)) in x.iter().zip(weights).enumerate() {
                let (x, weight) = (normal(widened(rounded(*x))), normal(widened(*weight)));
                chains[k % 2] = normal(x.mul_add(weight, chains[k % 2]));
            }
            sum = normal(sum + normal(chains[0] + chains[1]));
        }
        sum
    }

    /// A panel of sixteen rows of weights.
    fn panel(inputs: usize, weights: &[u16]) -> Vec<u32> {
        let mut words = vec![0; steps(inputs) * WORDS];
        for (lane, row) in weights.chunks(inputs).enumerate() {
            for (k, weight) in row.iter().enumerate() {
                words[k / 2 * LANES + lane] |= u32::from(*weight) << (16 * (k % 2));
            }
        }
        words
    }

    /// Checks the products of random rows and weights of about the sizes.
    fn check(rows: usize, inputs: usize, (x_size, weight_size): (f32, f32)) {
        let Some(amx) = Amx::get() else { return };
        let mut noise = Noise::new(rows as u64 * 1000 + inputs as u64);
        let x: Vec<f32> = (0..rows * inputs).map(|_| noise.uniform(x_size)).collect();
        let weights: Vec<u16> = (0..2 * LANES * inputs).map(|_| rounded(noise.uniform(weight_size))).collect();
        let panels: Vec<Vec<u32>> = weights.chunks(LANES * inputs).map(|weights| panel(inputs, weights)).collect();
        let mut lines = Lines::default();
        let tiles = Tiles::round(&x, inputs, lines.room(rows, inputs));
        let mut sums = vec![[f32::NAN; LANES]; 2 * rows];
        let mut from = 0;
        for part in tiles.parts() {
            amx.multiply(part, [&panels[0], &panels[1]], &mut sums[from..], rows);
            from += part.rows();
        }
        assert_eq!((from, tiles.rows()), (rows, rows));
        for (row, x) in x.chunks(inputs).enumerate() {
            for (output, weights) in weights.chunks(inputs).enumerate() {
                let (found, expected) = (sums[output / LANES * rows + row][output % LANES], plain(x, weights));
                let text =
                    || format!("row {row} of {rows}, output {output}, {inputs} inputs: {found:e}, not {expected:e}");
                assert_eq!(found.to_bits(), expected.to_bits(), "{}", text());
            }
        }
    }

    #[test]
    fn products_are_the_chains_of_roundings_that_the_module_says() {
        for rows in [1, 2, 5, 15, 16, 17, 31, 32, 33, 47, 70] {
            for inputs in [1, 2, 31, 32, 33, 64, 576, 1000] {
                check(rows, inputs, (1.0, 1.0));
            }
        }
    }

    #[test]
    fn numbers_below_the_normal_ones_are_zeros() {
        for sizes in [(1e-38, 1.0), (1.0, 2e-38), (1e-19, 1e-19), (3e38, 1e-39), (1e-30, 1e-10)] {
            check(20, 96, sizes);
        }
    }

    #[test]
    fn rows_are_rounded_to_the_nearest_and_nothing_else_is_hidden() {
        let cases = [
            (1.0, 0x3f80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (-0.0, 0x8000),
            (f32::MAX, 0x7f80),
            (f32::NEG_INFINITY, 0xff80),
        ];
        for (x, expected) in cases {
            assert_eq!(rounded(x), expected, "{x}");
        }
        for nan in [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xff80_0001)] {
            assert!(widened(rounded(nan)).is_nan());
        }
    }

    #[test]
    fn a_row_that_is_no_number_leaves_the_others() {
        let Some(amx) = Amx::get() else { return };
        let mut x = vec![1.0; 3 * INPUTS];
        (x[INPUTS + 3], x[2 * INPUTS]) = (f32::NAN, f32::INFINITY);
        let weights = panel(INPUTS, &[0x3f80; LANES * INPUTS]);
        let (mut lines, mut sums) = (Lines::default(), [[0.0; LANES]; 3]);
        // Both panels are the same, and so are their sums.
        amx.multiply(Tiles::round(&x, INPUTS, lines.room(3, INPUTS)), [&weights, &weights], &mut sums, 0);
        assert_eq!(sums[0], [32.0; LANES]);
        assert!(sums[1].iter().all(|sum| sum.is_nan()) && sums[2] == [f32::INFINITY; LANES]);
    }

    #[test]
    #[should_panic(expected = "room for the sums")]
    fn sums_beyond_the_memory_are_refused() {
        let Some(amx) = Amx::get() else { panic!("room for the sums of a machine without tiles") };
        let (mut lines, mut sums) = (Lines::default(), [[0.0; LANES]; 3]);
        let tiles = Tiles::round(&[1.0; 2 * INPUTS], INPUTS, lines.room(2, INPUTS));
        amx.multiply(tiles, [&[0; WORDS], &[0; WORDS]], &mut sums, 2);
    }

    #[test]
    fn kernels_are_found_by_name() {
        assert_eq!(Kernel::of_name("portable"), Some(Kernel::Portable));
        assert_eq!(Kernel::of_name("amx-bf16").is_some(), Amx::get().is_some());
        assert_eq!(Kernel::of_name("amx"), None);
        assert_eq!(Kernel::of_name(Kernel::of_machine().name()), Some(Kernel::of_machine()));
    }
}
