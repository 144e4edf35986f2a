//! Pages are whole, safe to open and the same each time.

use trunkline_sim_replay::replay_watched;
use trunkline_sim_report::Report;
use trunkline_sim_report::html::{Run, page as render};
use trunkline_sim_report::series::{Series, SeriesReport};

use super::{SlowPrefill, settings, trace};

fn replayed(policy: &str, replicas: u32) -> (Report, SeriesReport) {
    let mut settings = settings(replicas);
    settings.core.policy = policy.into();
    let mut series = Series::new(settings.fleet_shape());
    let report = replay_watched(&trace(60), &settings, &SlowPrefill, &mut series).unwrap();
    let told = series.finish(&report);
    (report, told)
}

fn run<'a>(label: &str, (report, series): &'a (Report, SeriesReport)) -> Run<'a> {
    Run { label: label.into(), report, series }
}

/// What the script will parse.
fn data_of(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_page_holds_all_it_needs() {
    let one = replayed("fcfs", 2);
    let page = render(&[run("fcfs", &one)]);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    let asks = ["http://", "https://", "src=", "@import", "url(", "fetch(", "import("];
    for ask in asks {
        // The name of a namespace is not an address that is asked.
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(ask), "the page asks for something by {ask}");
    }
    assert!(!page.contains("{{"), "every place is filled");
    // Every figure of the page is known to the script.
    for part in page.split("data-chart=\"").skip(1) {
        let name = part.split('"').next().unwrap();
        let known = page.contains(&format!("\n    {name}: f =>")) || page.contains(&format!("\n    \"{name}\": f =>"));
        assert!(known, "no chart is called {name}");
    }
    let data = data_of(&page);
    assert_eq!(data["runs"][0]["report"]["completed"], 60);
    assert_eq!(data["runs"][0]["series"]["ttft"]["n"], 60);
    assert!(page.contains("id=\"replicas\"") && !render(&[run("a", &replayed("fcfs", 1))]).contains("id=\"replicas\""));
}

#[test]
fn the_same_replay_gives_the_same_bytes() {
    let (mut report, series) = replayed("fcfs", 1);
    let first = render(&[Run { label: "a".into(), report: &report, series: &series }]);
    report.wall_s = 12_345.678;
    assert_eq!(first, render(&[Run { label: "a".into(), report: &report, series: &series }]));
    assert_eq!(render(&[]), "");
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let mut one = replayed("fcfs", 1);
    one.0.settings.trace = "a</script><script>alert(1)</script>&\"'{{data}}.csv".into();
    let page = render(&[run("<b>x</b>", &one), run("y", &one)]);
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("<b>x") && page.contains("&lt;b&gt;x"));
    let data = data_of(&page);
    assert_eq!(data["runs"][0]["label"], "<b>x</b>");
    assert_eq!(data["runs"][0]["report"]["settings"]["trace"], one.0.settings.trace);
}

#[test]
fn runs_are_compared_with_what_differs_apart() {
    let (fcfs, sjf) = (replayed("fcfs", 1), replayed("sjf", 1));
    let page = render(&[run("fcfs", &fcfs), run("sjf", &sjf)]);
    for part in [
        "2 runs of 60 requests",
        "<th scope=\"row\">TTFT p99</th>",
        "contest-e2e",
        "<td>fcfs</td><td>sjf</td>",
        &fcfs.0.digest,
        &sjf.0.digest,
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("class=\"cards\""));
    assert!(page.contains(">eviction</th><td>lru</td></tr>"), "said once");
}

#[test]
fn ready_replicas_have_a_chart_if_their_number_changes() {
    let mut settings = settings(3);
    let policy = "load:max=3,target=2,interval_s=1,start_delay_s=1,stabilisation_s=0".into();
    settings.routing.autoscale = Some(trunkline_sim_replay::autoscale::Autoscale { policy, initial: 1 });
    let mut series = Series::new(settings.fleet_shape());
    let report = replay_watched(&trace(60), &settings, &SlowPrefill, &mut series).unwrap();
    let series = series.finish(&report);
    let page = render(&[Run { label: "a".into(), report: &report, series: &series }]);
    assert!(page.contains("data-chart=\"ready\"") && page.contains("\n    ready: f =>") && !page.contains("{{"));
    assert!(page.contains("load:max=3,target=2,interval_s=1,start_delay_s=1,stabilisation_s=0; 1 at the start"));
    assert!(data_of(&page)["runs"][0]["series"]["ready_max"].as_array().is_some_and(|all| !all.is_empty()));
    let fixed = render(&[run("fcfs", &replayed("fcfs", 2))]);
    assert!(!fixed.contains("data-chart=\"ready\"") && data_of(&fixed)["runs"][0]["series"]["ready"].is_null());
}

#[test]
fn a_page_is_no_wider_than_its_window() {
    let (fcfs, sjf) = (replayed("fcfs", 1), replayed("sjf", 1));
    let page = render(&[run("fcfs", &fcfs), run("sjf", &sjf)]);
    // Words for screen readers are placed absolutely. In a table that scrolls they would widen the page, unless the table's box is what they are placed in.
    assert!(page.contains(".scroll { position: relative;"));
    let mut hidden = 0;
    for (at, _) in page.match_indices("class=\"hidden\"") {
        let open = page[..at].rfind("<div class=\"scroll\">").expect("a table that scrolls is open");
        assert!(!page[open..at].contains("</table></div>"), "hidden words stand outside of tables that scroll");
        hidden += 1;
    }
    assert!(hidden > 3, "the best figures are marked in words, too");
    // A first column that stays has no cell as wide as the table.
    assert!(!page.contains("<th class=\"head\" scope=\"rowgroup\" colspan") && page.contains("scope=\"rowgroup\""));
}

#[test]
fn charts_of_latencies_have_axes_of_round_numbers() {
    let (fcfs, sjf) = (replayed("fcfs", 1), replayed("sjf", 1));
    let data = data_of(&render(&[run("fcfs", &fcfs), run("sjf", &sjf)]));
    for (name, latency) in [("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2e", "e2e_s")] {
        let axis = &data["axes"][name];
        for report in [&fcfs.0, &sjf.0] {
            let max = serde_json::to_value(report).unwrap()[latency]["max"].as_f64().unwrap();
            assert!(axis["hi"].as_f64().unwrap() >= max, "{name}: every run is within");
        }
        let dense = axis["ticks"][0].as_array().unwrap();
        assert!(dense.len() >= 3, "{name}: {dense:?}");
        assert!(dense.iter().all(|tick| tick.to_string().len() <= 6), "{name}: {dense:?}");
    }
    let page = render(&[run("fcfs", &fcfs), run("sjf", &sjf)]);
    assert!(page.contains("aria-pressed") && page.contains("html(\"button\""), "names in legends are buttons");
}
