//! Tests of windows: their form, and every minute of a week.

use proptest::prelude::*;

use super::*;

fn window(text: &str) -> Window {
    Window::parse(text).expect(text)
}

fn read(text: &str) -> (Option<Windows>, Vec<&'static str>) {
    let mut diagnostics = crate::doc::Diagnostics::default();
    let source = crate::doc::Source::new("x.yaml", text);
    let value = crate::doc::yaml::parse(crate::doc::FileId(0), &source, &mut diagnostics);
    let value = value.expect("YAML");
    let windows = Windows::decode(&value, &mut Context::new(&mut diagnostics));
    let codes = diagnostics.iter().map(|one| one.code.id()).collect();
    (windows, codes)
}

#[test]
fn a_window_without_days_is_on_every_day() {
    for day in 0..7 {
        assert!(window("02:00-05:00").contains(day, 120));
        assert!(window("02:00-05:00").contains(day, 299));
        assert!(!window("02:00-05:00").contains(day, 119));
        assert!(!window("02:00-05:00").contains(day, 300));
    }
}

#[test]
fn a_window_over_midnight_belongs_to_the_day_on_which_it_starts() {
    let friday = window("fri 22:00-04:00");
    assert!(friday.contains(4, 22 * 60));
    assert!(friday.contains(5, 239));
    assert!(!friday.contains(5, 240));
    assert!(!friday.contains(4, 100));
    let sunday = window("sun 23:00-01:00");
    assert!(sunday.contains(0, 59), "on Monday");
    assert!(!sunday.contains(1, 59));
}

#[test]
fn the_whole_day_ends_at_24_00() {
    let all = window("00:00-24:00");
    assert!((0..7).all(|day| (0..DAY).all(|minute| all.contains(day, minute))));
    assert_eq!(Window::parse("00:00-00:00"), Err(WindowError::Empty));
    assert!(window("mon 22:00-00:00").contains(0, DAY - 1));
    assert!(!window("mon 22:00-00:00").contains(1, 0));
}

#[test]
fn days_are_lists_and_ranges_that_may_pass_the_end_of_the_week() {
    let days = |text: &str| -> Vec<u8> {
        let window = window(&format!("{text} 00:00-24:00"));
        (0..7).filter(|day| window.contains(*day, 0)).collect()
    };
    assert_eq!(days("mon-fri"), [0, 1, 2, 3, 4]);
    assert_eq!(days("sat,sun"), [5, 6]);
    assert_eq!(days("sat-mon"), [0, 5, 6]);
    assert_eq!(days("tue,thu-fri"), [1, 3, 4]);
    assert_eq!(days("wed-wed"), [2]);
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "",
        " ",
        "02:00",
        "02:00-",
        "-05:00",
        "2:00-5:00",
        "02:00-25:00",
        "24:00-25:00",
        "24:00-02:00",
        "02:60-03:00",
        "02:00 - 05:00",
        "02:00-05:00 ",
        " 02:00-05:00",
        "mon  02:00-05:00",
        "Mon 02:00-05:00",
        "monday 02:00-05:00",
        "mon- 02:00-05:00",
        "-mon 02:00-05:00",
        "mon,,tue 02:00-05:00",
        ",mon 02:00-05:00",
        "mon-tue-wed 02:00-05:00",
        "+2:00-05:00",
        "02:00-05:00-06:00",
        "02:00:00-05:00:00",
        "mon",
        "mon-fri",
        "٠٢:00-05:00",
        "02:00-05:00\n",
        "24:01-02:00",
    ] {
        assert!(Window::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_spec_has_a_text_or_a_list_and_no_window_without_effect() {
    assert_eq!(
        read("02:00-05:00").0,
        Some(Windows(vec![window("02:00-05:00")]))
    );
    let both = read("[\"mon 02:00-05:00\", \"sun 02:00-05:00\"]");
    assert_eq!(both.0.expect("windows").0.len(), 2);
    assert_eq!(both.1, [""; 0]);
    assert_eq!(read("[]"), (None, vec!["SK0208"]));
    assert_eq!(read("{a: b}"), (None, vec!["SK0202"]));
    assert_eq!(read("[[02:00-05:00]]"), (None, vec!["SK0202"]));
    assert_eq!(
        read("[\"02:00-05:00\", \"sun 02:00-05:00\"]"),
        (None, vec!["SK0213"])
    );
    assert_eq!(
        read("[\"02:00-05:00\", \"02:00-05:00\"]"),
        (None, vec!["SK0213"])
    );
    assert_eq!(
        read("[\"mon 00:00-12:00\", \"mon 10:00-14:00\", \"mon 12:00-24:00\"]"),
        (None, vec!["SK0213"]),
        "the second is in the two others"
    );
    assert_eq!(
        read("[\"02:00-05:00\", \"04:00-06:00\"]").1,
        [""; 0],
        "both add minutes"
    );
    let many = format!("[{}]", vec!["\"02:00-05:00\""; 17].join(","));
    assert_eq!(read(&many), (None, vec!["SK0107"]));
}

/// The minutes of a week, by another way: one after the other from each start.
fn model(days: &[usize], start: usize, length: usize) -> Vec<bool> {
    let mut week = vec![false; 7 * 1440];
    for day in days {
        for minute in 0..length {
            week[(day * 1440 + start + minute) % (7 * 1440)] = true;
        }
    }
    week
}

proptest! {
    #[test]
    fn every_minute_of_a_week_is_in_a_window_as_in_a_simple_model(
        list in prop::collection::vec(
            (prop::collection::btree_set(0usize..7, 1..=7), 0usize..1440, 1usize..1440),
            1..4,
        ),
    ) {
        let mut expected = vec![false; 7 * 1440];
        let mut windows = Vec::new();
        for (days, start, length) in &list {
            let days: Vec<usize> = days.iter().copied().collect();
            for (all, one) in expected.iter_mut().zip(model(&days, *start, *length)) {
                *all |= one;
            }
            let names: Vec<&str> = days.iter().map(|day| DAYS[*day]).collect();
            let end = (start + length) % 1440;
            let text = format!(
                "{} {:02}:{:02}-{:02}:{:02}",
                names.join(","), start / 60, start % 60, end / 60, end % 60
            );
            windows.push(Window::parse(&text).expect("a window"));
        }
        let windows = Windows(windows);
        for (at, expected) in expected.iter().enumerate() {
            let (day, minute) = (at / 1440, at % 1440);
            let found = windows.contains(u8::try_from(day).unwrap(), u16::try_from(minute).unwrap());
            prop_assert_eq!(found, *expected, "{} day {} minute {}", windows, day, minute);
        }
    }

    #[test]
    fn a_window_is_read_as_it_is_shown(days in 1u8..0x80, start in 0u16..1440, end in 0u16..=1440) {
        prop_assume!(start != end);
        let one = Window { days, start, end };
        prop_assert_eq!(Window::parse(&one.to_string()), Ok(one));
    }

    #[test]
    fn no_text_is_read_as_a_window_that_is_not_shown_as_such(text in "[a-z0-9:, -]{0,24}") {
        if let Ok(one) = Window::parse(&text) {
            prop_assert_eq!(Window::parse(&one.to_string()), Ok(one));
        }
    }
}
