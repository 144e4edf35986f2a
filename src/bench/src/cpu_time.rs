//! Processor time of this process's threads, by name.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Clock ticks of `/proc` in a second, as Linux shows them on every machine.
const TICKS_PER_S: f64 = 100.0;

/// Returns the processor time so far of the threads with each of these names, seconds. Linux shows the first 15 bytes of a name.
///
/// # Errors
/// If there is no `/proc`.
pub fn cpu_s<const N: usize>(names: [&str; N]) -> anyhow::Result<[f64; N]> {
    let mut times = [0.0; N];
    let tasks = fs::read_dir("/proc/self/task").context("processor times are read from /proc, as Linux has it")?;
    for task in tasks {
        let task = task?.path();
        // A thread may end meanwhile.
        let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
        let Some(at) = names.iter().position(|of| *of == name.trim_end()) else { continue };
        times[at] += time_s(&task).unwrap_or(0.0);
    }
    Ok(times)
}

/// Returns the processor time of a thread, to the nanosecond where the system has it.
fn time_s(task: &Path) -> Option<f64> {
    if let Ok(times) = fs::read_to_string(task.join("schedstat")) {
        return Some(times.split_whitespace().next()?.parse::<f64>().ok()? / 1e9);
    }
    // User and system time are fields 14 and 15 of the line, the name being field 2.
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let ticks =
        stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_time_of_a_thread_counts_under_its_name() {
        let work = || {
            let before = cpu_s(["bench-works", "bench-idles"]).unwrap();
            let mut times = before;
            while times[0] - before[0] < 0.05 {
                times = cpu_s(["bench-works", "bench-idles"]).unwrap();
            }
            times
        };
        let working = thread::Builder::new().name("bench-works".into()).spawn(work).unwrap();
        let [works, idles] = working.join().unwrap();
        assert!(works >= 0.05 && idles == 0.0, "{works} {idles}");
    }
}
