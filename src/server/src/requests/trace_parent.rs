//! The place of a call in the trace of its client.

/// Place of a call in the trace of its client: the header `traceparent` of W3C's Trace Context, level 1, of which the version 00 is read and the parts
/// of later ones that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace, not zero.
    pub trace_id: u128,
    /// Id of the client's span, not zero.
    pub span_id: u64,
    /// `true` if the client records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the header. `None` for what is not one: the request then begins a trace of its own, as the standard says.
    pub fn parse(header: &str) -> Option<Self> {
        let hex = |part: Option<&str>, digits: usize| {
            let part = part?;
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let is_good = part.len() == digits && part.bytes().all(is_hex);
            is_good.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let mut parts = header.trim().split('-');
        let version = hex(parts.next(), 2)?;
        let (trace_id, span_id, flags) = (hex(parts.next(), 32)?, hex(parts.next(), 16)?, hex(parts.next(), 2)?);
        let is_known = version == 0 && parts.next().is_none() || (1..0xff).contains(&version);
        (is_known && trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id: span_id as u64,
            sampled: flags & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_parent_is_read_as_the_standard_says() {
        let whole = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = TraceParent::parse(whole).unwrap();
        assert_eq!((read.span_id, read.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(read.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(TraceParent::parse(&whole.replace("-01", "-02")).map(|parent| parent.sampled), Some(false));
        assert_eq!(TraceParent::parse(&(whole.replacen("00", "cc", 1) + "-what-comes")), Some(read), "a later version");
        let wrong = [
            whole.to_uppercase(),
            whole.replacen("00", "ff", 1),
            whole.to_owned() + "-more",
            whole.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            whole.replace("00f067aa0ba902b7", &"0".repeat(16)),
            whole.replace("-01", "-1"),
            whole.replace("00f0", "+0f0"),
            String::new(),
        ];
        for wrong in wrong {
            assert_eq!(TraceParent::parse(&wrong), None, "{wrong}");
        }
    }
}
