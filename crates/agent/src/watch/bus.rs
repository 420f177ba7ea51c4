//! Signals of systemd on the system bus: units that start, stop, or are enabled.
//!
//! Of D-Bus there are three kinds of calls and the lengths of messages; what happened is looked
//! up.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Where the bus is.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// Longer messages are none that were asked for.
const LONGEST: usize = 1 << 20;
/// How long the bus may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

const CALL: u8 = 1;
const ANSWER: u8 = 2;
const FAULT: u8 = 3;
const SIGNAL: u8 = 4;

/// A connection that hears of some units.
pub(super) struct Bus {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Bus {
    /// Connects and asks to hear of units.
    pub(super) fn new(units: &BTreeSet<String>) -> std::io::Result<Self> {
        let stream = UnixStream::connect(SOCKET)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut bus = Self {
            stream,
            unread: Vec::new(),
        };
        bus.greet()?;
        let calls = calls(units);
        for (nth, call) in calls.iter().enumerate() {
            let serial = u32::try_from(nth + 1).unwrap_or(u32::MAX);
            bus.stream.write_all(&call.message(serial))?;
        }
        let mut left = calls.len();
        while left > 0 {
            bus.read()?;
            while let Some(kind) = bus.next()? {
                match kind {
                    ANSWER => left -= 1,
                    FAULT => return Err(Error::other("the bus refuses")),
                    _ => {}
                }
            }
        }
        bus.stream.set_nonblocking(true)?;
        Ok(bus)
    }

    /// Says who we are; the bus knows from the kernel that it is true.
    fn greet(&mut self) -> std::io::Result<()> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream
            .write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            line.push(byte[0]);
            if line.len() > 256 {
                return Err(Error::other("the bus does not answer as one"));
            }
        }
        if !line.starts_with(b"OK ") {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "the bus refuses us",
            ));
        }
        self.stream.write_all(b"BEGIN\r\n")
    }

    fn read(&mut self) -> std::io::Result<()> {
        let mut room = [0; 4096];
        let n_read = self.stream.read(&mut room)?;
        if n_read == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the bus went away"));
        }
        self.unread.extend_from_slice(&room[..n_read]);
        Ok(())
    }

    /// Takes one whole message, and returns its kind.
    fn next(&mut self) -> std::io::Result<Option<u8>> {
        let Some((kind, length)) = measure(&self.unread)? else {
            return Ok(None);
        };
        if self.unread.len() < length {
            return Ok(None);
        }
        self.unread.drain(..length);
        Ok(Some(kind))
    }

    /// Takes what was said, and tells whether it was about a unit.
    pub(super) fn take(&mut self) -> std::io::Result<bool> {
        let mut any = false;
        loop {
            match self.read() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            while let Some(kind) = self.next()? {
                any |= kind == SIGNAL;
            }
        }
    }
}

impl AsFd for Bus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns kind and length of a message, as soon as enough of it is there.
fn measure(bytes: &[u8]) -> std::io::Result<Option<(u8, usize)>> {
    let Some(head) = bytes.first_chunk::<16>() else {
        return Ok(None);
    };
    let number = |at: usize| {
        let mut four = [0; 4];
        four.copy_from_slice(&head[at..at + 4]);
        match head[0] {
            b'B' => u32::from_be_bytes(four),
            _ => u32::from_le_bytes(four),
        }
    };
    let size = |at: usize| usize::try_from(number(at)).unwrap_or(usize::MAX);
    let (body, fields) = (size(4), size(12));
    if !matches!(head[0], b'l' | b'B') || body > LONGEST || fields > LONGEST {
        return Err(Error::new(
            ErrorKind::InvalidData,
            "the bus speaks nonsense",
        ));
    }
    Ok(Some((head[1], (16 + fields).next_multiple_of(8) + body)))
}

/// A call with at most one text as argument.
struct Call {
    to: &'static str,
    path: &'static str,
    interface: &'static str,
    member: &'static str,
    argument: Option<String>,
}

/// The calls that make the bus tell of units.
fn calls(units: &BTreeSet<String>) -> Vec<Call> {
    const BUS: &str = "org.freedesktop.DBus";
    const SYSTEMD: &str = "org.freedesktop.systemd1";
    const MANAGER: &str = "org.freedesktop.systemd1.Manager";
    let bus = |member, argument| Call {
        to: BUS,
        path: "/org/freedesktop/DBus",
        interface: BUS,
        member,
        argument,
    };
    let mut calls = vec![bus("Hello", None)];
    let all =
        format!("type='signal',sender='{SYSTEMD}',interface='{MANAGER}',member='UnitFilesChanged'");
    let each = units.iter().map(|unit| {
        format!(
            "type='signal',sender='{SYSTEMD}',path='/org/freedesktop/systemd1/unit/{}',interface='org.freedesktop.DBus.Properties',member='PropertiesChanged',arg0='org.freedesktop.systemd1.Unit'",
            label(unit)
        )
    });
    for rule in std::iter::once(all).chain(each) {
        calls.push(bus("AddMatch", Some(rule)));
    }
    // Without a subscriber systemd says nothing.
    calls.push(Call {
        to: SYSTEMD,
        path: "/org/freedesktop/systemd1",
        interface: MANAGER,
        member: "Subscribe",
        argument: None,
    });
    calls
}

/// Writes the name of a unit as a part of a path.
fn label(unit: &str) -> String {
    let mut label = String::new();
    for (nth, byte) in unit.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || nth > 0 && byte.is_ascii_digit() {
            label.push(char::from(byte));
        } else {
            label += &format!("_{byte:02x}");
        }
    }
    label
}

impl Call {
    fn message(&self, serial: u32) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(argument) = &self.argument {
            put_text(&mut body, argument);
        }
        let mut fields = Vec::new();
        for (code, kind, text) in [
            (1, b'o', self.path),
            (2, b's', self.interface),
            (3, b's', self.member),
            (6, b's', self.to),
        ] {
            pad(&mut fields, 8);
            fields.extend([code, 1, kind, 0]);
            put_text(&mut fields, text);
        }
        if self.argument.is_some() {
            pad(&mut fields, 8);
            // The signature: one text.
            fields.extend([8, 1, b'g', 0, 1, b's', 0]);
        }
        let mut message = vec![b'l', CALL, 0, 1];
        put_size(&mut message, body.len());
        message.extend(serial.to_le_bytes());
        put_size(&mut message, fields.len());
        message.extend(fields);
        pad(&mut message, 8);
        message.extend(body);
        message
    }
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_size(bytes: &mut Vec<u8>, size: usize) {
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    bytes.extend(size.to_le_bytes());
}

/// Texts are aligned to four bytes; within fields that holds because each begins at eight.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    put_size(bytes, text.len());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

#[cfg(test)]
mod tests {
    use super::{ANSWER, CALL, calls, label, measure};

    #[test]
    fn units_are_written_as_the_bus_wants_them() {
        assert_eq!(label("cron.service"), "cron_2eservice");
        assert_eq!(label("9p@a-b.mount"), "_39p_40a_2db_2emount");
    }

    #[test]
    fn a_call_is_as_long_as_it_says() {
        for call in calls(&["cron.service".to_owned()].into()) {
            let message = call.message(7);
            let (kind, length) = measure(&message).unwrap().unwrap();
            assert_eq!((kind, length), (CALL, message.len()));
        }
    }

    #[test]
    fn parts_of_messages_are_waited_for_and_nonsense_ends_the_connection() {
        assert!(measure(b"l\x02").unwrap().is_none());
        let mut head = vec![b'B', ANSWER, 0, 1];
        head.extend([0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 9]);
        assert_eq!(measure(&head).unwrap(), Some((ANSWER, 32 + 5)));
        head[0] = b'x';
        assert!(measure(&head).is_err());
        let long = [b'l', 4, 0, 1, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(measure(&long).is_err());
    }
}
