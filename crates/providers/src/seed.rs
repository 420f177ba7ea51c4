//! Renders first-boot data as an ISO 9660 image with Rock Ridge names, labelled `cidata`.
//!
//! Works in memory only. The same seed gives the same bytes.

use homestak_engine::ports::{GuestUuid, Seed};

/// Bytes of a sector of a CD.
const SECTOR: usize = 2048;
/// The sectors before the files: 16 of the system, two descriptors, two path tables, the root.
const PATH_TABLE_LITTLE: u32 = 18;
const PATH_TABLE_BIG: u32 = 19;
const ROOT: u32 = 20;
const FIRST_FILE: u32 = 21;
/// Bytes of the path table: one entry, the root.
const PATH_TABLE_BYTES: u32 = 10;
/// A readable time that never changes, so that the same seed gives the same bytes: the volume's
/// (16 digits and a zone) and a record's (years since 1900, month, day, time, zone).
const VOLUME_TIME: &[u8; 17] = b"2000010100000000\0";
const RECORD_TIME: [u8; 7] = [100, 1, 1, 0, 0, 0, 0];

/// Returns the file name of a guest's seed in a storage.
pub fn file_name(uuid: &GuestUuid) -> String {
    format!("homestak-{uuid}.iso")
}

/// Returns the guest whose seed a file is.
pub fn owner(file: &str) -> Option<GuestUuid> {
    GuestUuid::new(file.strip_prefix("homestak-")?.strip_suffix(".iso")?)
}

/// Renders the image.
pub fn image(seed: &Seed) -> Vec<u8> {
    // Readers without Rock Ridge see the short names; sorted, as the format requires.
    render(&[
        ("META_DAT.;1", "meta-data", seed.meta_data.as_bytes()),
        (
            "NETWORK_.;1",
            "network-config",
            seed.network_config.as_bytes(),
        ),
        ("USER_DAT.;1", "user-data", seed.user_data.as_bytes()),
    ])
}

fn render(files: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut root = Vec::new();
    root.extend(record(&[0], ROOT, SECTOR, Entry::Root));
    root.extend(record(&[1], ROOT, SECTOR, Entry::Parent));
    let mut data = Vec::new();
    let mut sector = FIRST_FILE;
    for (short, name, content) in files {
        root.extend(record(
            short.as_bytes(),
            sector,
            content.len(),
            Entry::File(name),
        ));
        data.extend_from_slice(content);
        data.resize(data.len().next_multiple_of(SECTOR), 0);
        sector += sectors(content.len());
    }
    // Drives read ahead; without padding after the last file the kernel reports read errors.
    data.resize(data.len() + 8 * SECTOR, 0);
    sector += 8;

    let mut image = vec![0; 16 * SECTOR];
    image.extend(primary(sector));
    image.extend(padded(b"\xffCD001\x01".to_vec()));
    image.extend(padded(path_table(ROOT.to_le_bytes(), 1_u16.to_le_bytes())));
    image.extend(padded(path_table(ROOT.to_be_bytes(), 1_u16.to_be_bytes())));
    image.extend(padded(root));
    image.extend(data);
    image
}

enum Entry<'a> {
    Root,
    Parent,
    File(&'a str),
}

/// Creates a directory record with its Rock Ridge entries.
fn record(id: &[u8], sector: u32, bytes: usize, entry: Entry<'_>) -> Vec<u8> {
    let mut system_use = Vec::new();
    let (directory, mode) = match entry {
        Entry::Root => {
            // SP: the sharing protocol is used. ER: by Rock Ridge; readers look for both here.
            system_use.extend_from_slice(b"SP\x07\x01\xbe\xef\x00");
            system_use.extend_from_slice(b"ER\x12\x01\x0a\x00\x00\x01RRIP_1991A");
            (true, 0o040_500)
        }
        Entry::Parent => (true, 0o040_500),
        Entry::File(name) => {
            let length = u8::try_from(name.len() + 5).unwrap_or(u8::MAX);
            system_use.extend_from_slice(&[b'N', b'M', length, 1, 0]);
            system_use.extend_from_slice(name.as_bytes());
            // It may hold a token: for root only, wherever it is mounted.
            (false, 0o100_400)
        }
    };
    // PX: mode, links, owner, group.
    system_use.extend_from_slice(b"PX\x24\x01");
    for number in [mode, if directory { 2 } else { 1 }, 0, 0] {
        system_use.extend(both32(number));
    }

    let mut bytes_of = vec![0, 0];
    bytes_of.extend(both32(sector));
    bytes_of.extend(both32(clamp(bytes)));
    bytes_of.extend(RECORD_TIME);
    bytes_of.extend([if directory { 2 } else { 0 }, 0, 0]);
    bytes_of.extend(both16(1));
    bytes_of.push(u8::try_from(id.len()).unwrap_or(u8::MAX));
    bytes_of.extend_from_slice(id);
    if id.len().is_multiple_of(2) {
        bytes_of.push(0);
    }
    bytes_of.extend(system_use);
    if !bytes_of.len().is_multiple_of(2) {
        bytes_of.push(0);
    }
    bytes_of[0] = u8::try_from(bytes_of.len()).unwrap_or(u8::MAX);
    bytes_of
}

fn primary(total_sectors: u32) -> Vec<u8> {
    let mut bytes = b"\x01CD001\x01\x00".to_vec();
    bytes.extend(text("LINUX", 32));
    bytes.extend(text("cidata", 32));
    bytes.extend([0; 8]);
    bytes.extend(both32(total_sectors));
    bytes.extend([0; 32]);
    bytes.extend(both16(1));
    bytes.extend(both16(1));
    bytes.extend(both16(2048));
    bytes.extend(both32(PATH_TABLE_BYTES));
    bytes.extend(PATH_TABLE_LITTLE.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(PATH_TABLE_BIG.to_be_bytes());
    bytes.extend([0; 4]);
    // The root's record here is the plain 34 bytes, without Rock Ridge.
    let mut root = record(&[0], ROOT, SECTOR, Entry::Parent);
    root.truncate(34);
    root[0] = 34;
    bytes.extend(root);
    bytes.extend(text("", 128));
    bytes.extend(text("", 128));
    bytes.extend(text("", 128));
    bytes.extend(text("HOMESTAK", 128));
    bytes.extend(text("", 37 * 3));
    bytes.extend_from_slice(VOLUME_TIME);
    bytes.extend_from_slice(VOLUME_TIME);
    // Never expires, effective at once.
    bytes.extend_from_slice(b"0000000000000000\0");
    bytes.extend_from_slice(b"0000000000000000\0");
    bytes.push(1);
    padded(bytes)
}

fn path_table(root: [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(root);
    bytes.extend(parent);
    bytes.extend([0, 0]);
    bytes
}

fn text(value: &str, width: usize) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.resize(width, b' ');
    bytes
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    bytes
}

fn sectors(bytes: usize) -> u32 {
    clamp(bytes.div_ceil(SECTOR))
}

/// A seed is a few kilobytes; four gigabytes of it cannot be in memory as a `String` by accident.
fn clamp(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn both32(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn both16(number: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes[..2].copy_from_slice(&number.to_le_bytes());
    bytes[2..].copy_from_slice(&number.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use homestak_engine::ports::FirstBootConfig;

    use super::*;

    fn seed() -> Seed {
        Seed {
            user_data: format!("#cloud-config\nhostname: n1\n{}", "# filler\n".repeat(500)),
            meta_data: "instance-id: n1\n".to_owned(),
            network_config: String::new(),
            identity: FirstBootConfig {
                uuid: GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID"),
                hostname: "n1".to_owned(),
                user: "ops".to_owned(),
                keys: Vec::new(),
                host_key: None,
                mac: "bc:24:11:00:00:01".to_owned(),
                address: None,
                gateway: None,
                dns: Vec::new(),
                packages: Vec::new(),
                enrolment: None,
            },
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        assert_eq!(image(&seed()), image(&seed()));
    }

    #[test]
    fn descriptors_are_at_their_offsets() {
        let image = image(&seed());
        assert_eq!(image.len() % SECTOR, 0);
        assert_eq!(&image[16 * SECTOR..16 * SECTOR + 7], b"\x01CD001\x01");
        assert_eq!(&image[16 * SECTOR + 40..16 * SECTOR + 46], b"cidata");
        assert_eq!(&image[17 * SECTOR..17 * SECTOR + 7], b"\xffCD001\x01");
        let total = u32::from_le_bytes(image[16 * SECTOR + 80..][..4].try_into().expect("four"));
        assert_eq!(total as usize * SECTOR, image.len());
    }

    #[test]
    fn the_owner_of_a_seed_is_read_from_its_file_name() {
        let uuid = GuestUuid::new("5d1f2a3b-0000-4000-8000-00000000000a").expect("a UUID");
        assert_eq!(owner(&file_name(&uuid)), Some(uuid));
        assert_eq!(owner("debian-12.iso"), None);
        assert_eq!(owner("homestak-notes.iso"), None);
    }
}
