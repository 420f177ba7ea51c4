//! Windows: times of the week in which a node may be updated and restarted, such as
//! `sat,sun 22:00-04:00`. They are in the local time of the node.

use serde_json::json;

use super::code::Code;
use super::decode::{Context, Decode};
use super::schema::Definitions;
use super::source::Span;
use super::tree::{Data, Value};

/// The most windows of a spec.
const MAX_WINDOWS: usize = 16;
/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// The names of the days, from Monday, which is day 0.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// The pattern of a window, for the schema.
const PATTERN: &str = "^((mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?\
     (,(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?)* )?\
     ([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$";

/// A time of the day on some days of the week. One that ends before it starts ends on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The days on which it starts: bit 0 is Monday.
    days: u8,
    /// The first minute of the day.
    start: u16,
    /// The minute after the last one: 1440 for midnight.
    end: u16,
}

/// Why a text is not a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Days that do not exist, or with other letters.
    #[error("the days are not like `mon-fri` or `sat,sun`")]
    Days,
    /// Times in another format.
    #[error("the times are not like `22:00-04:00`")]
    Times,
    /// It ends when it starts: it could mean never or always.
    #[error("it ends at the time at which it starts")]
    Empty,
}

impl Window {
    /// Reads `[DAYS ]HH:MM-HH:MM`.
    pub fn parse(text: &str) -> Result<Self, WindowError> {
        let (days, times) = match text.split_once(' ') {
            Some((days, times)) => (parse_days(days).ok_or(WindowError::Days)?, times),
            None => (0x7f, text),
        };
        let (start, end) = times.split_once('-').ok_or(WindowError::Times)?;
        let start = minute(start).filter(|minute| *minute < DAY);
        let (Some(start), Some(end)) = (start, minute(end)) else {
            return Err(WindowError::Times);
        };
        if start == end {
            return Err(WindowError::Empty);
        }
        Ok(Self { days, start, end })
    }

    /// Returns whether a minute of the week is in it. Day 0 is Monday.
    pub fn contains(self, weekday: u8, minute_of_day: u16) -> bool {
        if weekday > 6 || minute_of_day >= DAY {
            return false;
        }
        let starts_on = |day: u8| self.days & (1 << day) != 0;
        if self.start < self.end {
            return starts_on(weekday) && (self.start..self.end).contains(&minute_of_day);
        }
        let before = (weekday + 6) % 7;
        (starts_on(weekday) && minute_of_day >= self.start)
            || (starts_on(before) && minute_of_day < self.end)
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.days != 0x7f {
            write!(f, "{} ", days_text(self.days))?;
        }
        let (start, end) = (self.start, self.end);
        write!(
            f,
            "{:02}:{:02}-{:02}:{:02}",
            start / 60,
            start % 60,
            end / 60,
            end % 60
        )
    }
}

/// The windows of a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(pub Vec<Window>);

impl Windows {
    /// Returns whether a minute of the week is in one of them. Day 0 is Monday.
    pub fn contains(&self, weekday: u8, minute_of_day: u16) -> bool {
        let mut windows = self.0.iter();
        windows.any(|window| window.contains(weekday, minute_of_day))
    }

    /// Returns the index of a window whose every minute is in other windows.
    fn redundant(&self) -> Option<usize> {
        let is_covered = |index: usize, window: &Window| {
            let mut minutes = (0..7).flat_map(|day| (0..DAY).map(move |minute| (day, minute)));
            minutes.all(|(day, minute)| {
                let mut others = self.0.iter().enumerate();
                !window.contains(day, minute)
                    || others.any(|(other, window)| other != index && window.contains(day, minute))
            })
        };
        let mut windows = self.0.iter().enumerate().rev();
        windows.find_map(|(index, window)| is_covered(index, window).then_some(index))
    }

    /// Returns them as texts, as a spec for a node has them.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl std::fmt::Display for Windows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.texts().join(", "))
    }
}

/// A text, or a list of texts.
impl Decode for Windows {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let items = match &value.data {
            Data::Seq(items) => items.as_slice(),
            Data::Scalar(_) | Data::Map(_) => std::slice::from_ref(value),
        };
        if items.is_empty() {
            cx.error(
                Code::Empty,
                value.span,
                "the list of windows is empty, so it would never be the time",
                "list a window such as `sun 02:00-05:00`, or remove the key to allow any time",
            );
            return None;
        }
        if items.len() > MAX_WINDOWS {
            cx.error(
                Code::TooManyValues,
                value.span,
                format!("there are {} windows", items.len()),
                format!("list {MAX_WINDOWS} windows at most"),
            );
            return None;
        }
        let windows: Vec<Option<Window>> = items.iter().map(|item| one(item, cx)).collect();
        let windows: Vec<Window> = windows.into_iter().collect::<Option<_>>()?;
        let windows = Self(windows);
        if let Some(index) = windows.redundant() {
            report_redundant(items[index].span, windows.0[index], cx);
            return None;
        }
        Some(windows)
    }

    fn schema(_: &mut Definitions) -> serde_json::Value {
        let window = json!({ "type": "string", "pattern": PATTERN });
        json!({
            "anyOf": [
                window,
                { "type": "array", "items": window, "minItems": 1, "maxItems": MAX_WINDOWS },
            ]
        })
    }
}

fn one(value: &Value, cx: &mut Context<'_>) -> Option<Window> {
    let text = cx.text(value)?;
    match Window::parse(text) {
        Ok(window) => Some(window),
        Err(error) => {
            let message = format!("{} is not a window: {error}", cx.quoted(text));
            let hint = match error {
                WindowError::Empty => "write `00:00-24:00` for the whole day",
                WindowError::Days | WindowError::Times => {
                    "write `HH:MM-HH:MM`, optionally after days: `sat,sun 22:00-04:00`"
                }
            };
            cx.error(Code::Malformed, value.span, message, hint);
            None
        }
    }
}

fn report_redundant(span: Span, window: Window, cx: &mut Context<'_>) {
    cx.error(
        Code::Repeated,
        span,
        format!("the window `{window}` is contained in the others"),
        "remove it",
    );
}

fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u16>().ok())?
    };
    let (hour, minute) = (number(hour)?, number(minute)?);
    let total = hour * 60 + minute;
    (minute < 60 && total <= DAY).then_some(total)
}

fn parse_days(text: &str) -> Option<u8> {
    let day = |name: &str| DAYS.iter().position(|day| *day == name);
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (day(first)?, day(last)?);
        days |= 1 << at;
        while at != last {
            at = (at + 1) % 7;
            days |= 1 << at;
        }
    }
    Some(days)
}

/// Returns days as text: three or more in a row as a range.
fn days_text(days: u8) -> String {
    let mut parts = Vec::new();
    let mut day = 0;
    while day < 7 {
        let row = (day..7).take_while(|day| days & (1 << day) != 0).count();
        match row {
            0 => {}
            1 | 2 => parts.extend((day..day + row).map(|day| DAYS[day].to_owned())),
            _ => parts.push(format!("{}-{}", DAYS[day], DAYS[day + row - 1])),
        }
        day += row.max(1);
    }
    parts.join(",")
}

#[cfg(test)]
mod tests;
