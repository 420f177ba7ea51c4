//! `/{repo}.git/{path}`: files of published copies of repositories, for git over plain HTTP, and
//! single files of a commit.
//!
//! Files are opened part by part below the published directory, and links are never followed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use homestak_api::publication::{WORKING, sha256};
use homestak_api::runtime::run_blocking;
use http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, RANGE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;

use super::{Answer, Call, upload_pack};
use crate::body::{Body, FileBody};
use crate::process::{GitOutput, git};
use crate::refusal::Refusal;
use crate::repos::{self, GitKind, RepoFile};
use crate::share::Shares;
use crate::throttle::ThrottleKey;

/// How many files are sent at a time, and to one address. Others wait, at most for the time of a request.
const FILES: usize = 256;
const FILES_PER_ADDRESS: usize = 64;
/// How many raw files are read at a time: each needs two processes, and a file in memory.
const RAW_FILES: usize = 2;
/// The largest raw file: it is in memory while it is sent.
const RAW_BYTES: u64 = 16 << 20;
/// The longest line that describes a file in a commit.
const ENTRY_BYTES: u64 = 4096;
/// The longest token, in the header.
const TOKEN_BYTES: usize = 1024;

static SENT: LazyLock<Shares> = LazyLock::new(|| Shares::new(FILES, FILES_PER_ADDRESS));
static READ: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(RAW_FILES)));

/// A published copy, and what of it is requested.
pub(super) struct Found {
    directory: PathBuf,
    name: String,
    has_working: bool,
    what: RepoFile,
}

impl Found {
    /// Returns the directory of the copy.
    pub(super) fn copy(&self) -> PathBuf {
        self.directory.join(&self.name)
    }
}

/// Returns the copy that a path names, to those who have the token.
pub(super) fn find(call: &Call<'_>, path: &str) -> Result<Found, Refusal> {
    let served = call.app.served();
    let Some(digest) = &served.secrets.repo_token_sha256 else {
        let message = "repositories are not served; `homestak server start --repos` does";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Err(Refusal::new(status, "E500", message));
    };
    authenticate(call, digest)?;
    let request = repos::parse(path)
        .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "E100", "the path is not valid"))?;
    let repo = served.repos.by_name.get(request.repo);
    let repo = repo.ok_or_else(missing)?;
    Ok(Found {
        directory: served.repos.directory.clone(),
        name: format!("{}.git", repo.name),
        has_working: repo.working.is_some(),
        what: request.what,
    })
}

/// `GET /{repo}.git/{path}`
pub(super) async fn get(call: &Call<'_>, path: &str) -> Answer {
    let found = find(call, path)?;
    let copy = found.copy();
    match found.what {
        RepoFile::Hidden => Err(missing()),
        RepoFile::Git(file, kind) => {
            let service = call.text("service").filter(|_| file == "info/refs");
            match service {
                // git finds nothing in a copy without the branch; its file is sent.
                Some(upload_pack::SERVICE) if found.has_working => {
                    upload_pack::advertise(call, &copy).await
                }
                None | Some(upload_pack::SERVICE) => {
                    let parts = [found.name.as_str(), file.as_str()].join("/");
                    send(call, (found.directory, parts), kind).await
                }
                Some(_) => {
                    let message = "repositories can only be read: `git clone` and `git fetch`";
                    Err(Refusal::new(StatusCode::FORBIDDEN, "E301", message))
                }
            }
        }
        RepoFile::Raw(_) if !found.has_working => Err(missing()),
        RepoFile::Raw(file) => raw(copy, file).await,
    }
}

fn missing() -> Refusal {
    let message = "there is no such file or repository";
    Refusal::new(StatusCode::NOT_FOUND, "E200", message)
}

/// Requires the token for repositories. Its digest is compared, in constant time.
fn authenticate(call: &Call<'_>, digest: &str) -> Result<(), Refusal> {
    call.throttled(ThrottleKey::of(call.peer.address))?;
    let token = token(&call.head.headers)?;
    let key = call.app.throttle.token(&token);
    call.throttled(key)?;
    let found = sha256(token.as_bytes());
    if bool::from(found.as_bytes().ct_eq(digest.as_bytes())) {
        return Ok(());
    }
    call.app.throttle.fail(key, call.app.now());
    let message = "the token for repositories is not valid";
    Err(Refusal::login(StatusCode::FORBIDDEN, "E301", message))
}

/// Returns the token of a request: a bearer token, or the password of a user of any name.
fn token(headers: &HeaderMap) -> Result<String, Refusal> {
    let asked = |message| Refusal {
        // git then asks its credential helper.
        challenge: "Basic realm=\"homestak repositories\"",
        ..Refusal::new(StatusCode::UNAUTHORIZED, "E300", message)
    };
    let wrong = || Refusal {
        is_failed_login: true,
        ..asked("the Authorization header is neither `Bearer TOKEN` nor `Basic`")
    };
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = all.next() else {
        return Err(asked("the token for repositories is required"));
    };
    let text = header.to_str().ok().filter(|_| all.next().is_none());
    let (scheme, value) = text
        .and_then(|text| text.split_once(' '))
        .ok_or_else(wrong)?;
    let value = value.trim();
    let token = if scheme.eq_ignore_ascii_case("bearer") {
        value.to_owned()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let decoded = STANDARD.decode(value).map_err(|_| wrong())?;
        let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
        let (_, password) = decoded.split_once(':').ok_or_else(wrong)?;
        password.to_owned()
    } else {
        return Err(wrong());
    };
    match token.len() {
        1..=TOKEN_BYTES => Ok(token),
        _ => Err(wrong()),
    }
}

/// Sends a file of a bare repository.
async fn send(call: &Call<'_>, (directory, path): (PathBuf, String), kind: GitKind) -> Answer {
    let permit = SENT.of(call.peer.address).await?.permit().await?;
    // Cancel safety: only reads.
    let opened = run_blocking(move || open_below(&directory, &path)).await;
    let opened = opened.map_err(|_| Refusal::internal())?;
    let (file, length) = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(),
        _ => {
            tracing::error!(%error, "a file of a repository cannot be read");
            Refusal::internal()
        }
    })?;
    let range = match kind {
        GitKind::Pack => from_range(&call.head.headers, length)?,
        GitKind::Text | GitKind::Loose | GitKind::Index => None,
    };
    let from = range.unwrap_or(0);
    let body = FileBody::new(file, (from, length - from), permit).await;
    let body = body.map_err(|_| Refusal::internal())?;
    let mut answer = Response::new(Body::File(Box::new(body)));
    let headers = answer.headers_mut();
    set_type(headers, kind.content_type());
    if kind == GitKind::Pack {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    if range.is_some() {
        let text = format!("bytes {from}-{}/{length}", length - 1);
        if let Ok(text) = HeaderValue::from_str(&text) {
            headers.insert(CONTENT_RANGE, text);
        }
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(answer)
}

/// Returns where a download continues. Other ranges are ignored, as RFC 9110 allows.
fn from_range(headers: &HeaderMap, length: u64) -> Result<Option<u64>, Refusal> {
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    // `parse` accepts a sign.
    let from = from.filter(|from| from.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(from) = from.and_then(|from| from.parse::<u64>().ok()) else {
        return Ok(None);
    };
    if from >= length {
        let message = format!("the file has {length} bytes");
        let status = StatusCode::RANGE_NOT_SATISFIABLE;
        return Err(Refusal::new(status, "E101", message));
    }
    Ok(Some(from))
}

pub(super) fn set_type(headers: &mut HeaderMap, kind: &'static str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    // A raw file is never a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Opens a regular file below a directory, without following a link. Returns its size, too.
fn open_below(directory: &Path, path: &str) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let folder = flags | OFlags::DIRECTORY;
    let mut at = openat(CWD, directory, folder, Mode::empty())?;
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let no_file = |error| match error {
        // A link, or a file where a directory is expected.
        rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => rustix::io::Errno::NOENT,
        error => error,
    };
    for part in folders.split('/').filter(|part| !part.is_empty()) {
        at = openat(&at, part, folder, Mode::empty()).map_err(no_file)?;
    }
    let file = openat(&at, name, flags, Mode::empty()).map_err(no_file)?;
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::NotFound.into());
    }
    let length = u64::try_from(found.st_size).unwrap_or(0);
    Ok((File::from(file), length))
}

/// Sends a file of the branch `_working`.
async fn raw(repo: PathBuf, path: String) -> Answer {
    // Cancel safety: waiting for a permit is cancel-safe, and the request has a time limit.
    let permit = Arc::clone(&READ).acquire_owned().await;
    let permit = permit.map_err(|_| Refusal::internal())?;
    let kind = repos::content_type(&path);
    // Cancel safety: only reads; the permit is held until the processes have ended.
    let read = run_blocking(move || {
        let _permit = permit;
        read_raw(&repo, &path)
    });
    let body = read.await.map_err(|_| Refusal::internal())??;
    let mut answer = Response::new(Body::from(body));
    set_type(answer.headers_mut(), kind);
    Ok(answer)
}

fn read_raw(repo: &Path, path: &str) -> Result<Bytes, Refusal> {
    let listed = ["ls-tree", "-z", "-l", "--full-tree", WORKING, "--", path];
    let output = match git(repo, &listed, ENTRY_BYTES).map_err(|error| failed(&error))? {
        GitOutput::Done(output) => output,
        GitOutput::Failed | GitOutput::TooLarge => return Err(missing()),
    };
    let (object, size) = blob(&output, path).ok_or_else(missing)?;
    // Before git reads the file: it can be much larger than its pack.
    if size > RAW_BYTES {
        return Err(too_large());
    }
    let printed = git(repo, &["cat-file", "blob", object], RAW_BYTES);
    match printed.map_err(|error| failed(&error))? {
        GitOutput::Done(bytes) => Ok(bytes.into()),
        GitOutput::Failed => Err(missing()),
        GitOutput::TooLarge => Err(too_large()),
    }
}

fn too_large() -> Refusal {
    let message = format!("the file is larger than {RAW_BYTES} bytes; clone the repository");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "E101", message)
}

/// Returns the object of a regular file and its size, in what `git ls-tree -z -l` printed: neither of
/// a link nor of a submodule.
fn blob<'o>(output: &'o [u8], path: &str) -> Option<(&'o str, u64)> {
    let entry = std::str::from_utf8(output).ok()?.strip_suffix('\0')?;
    let (entry, name) = entry.split_once('\t')?;
    let mut fields = entry.split(' ').filter(|field| !field.is_empty());
    let is_file = matches!(fields.next(), Some("100644" | "100755"));
    let is_blob = fields.next() == Some("blob");
    let object = fields.next()?;
    let is_object = object.bytes().all(|byte| byte.is_ascii_hexdigit());
    let size = fields.next()?.parse().ok()?;
    (name == path && is_file && is_blob && is_object).then_some((object, size))
}

fn failed(error: &io::Error) -> Refusal {
    tracing::error!(%error, "git cannot read a file of a repository");
    match error.kind() {
        io::ErrorKind::TimedOut => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Refusal::new(status, "E500", "reading the file took too long")
        }
        _ => Refusal::internal(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_continues_at_a_number_of_digits() {
        let of = |text| {
            let range = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]);
            from_range(&range, 10).map_err(|refusal| refusal.status.as_u16())
        };
        assert_eq!(of("bytes=5-"), Ok(Some(5)));
        assert_eq!(of("bytes=10-"), Err(416));
        for ignored in ["bytes=+5-", "bytes=-", "bytes= 5-", "bytes=5-6", "bytes=5"] {
            assert_eq!(of(ignored), Ok(None), "{ignored}");
        }
    }

    #[test]
    fn only_regular_files_of_a_commit_are_sent() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        let of = |text: &str| blob(text.as_bytes(), "a").map(|(id, size)| (id.to_owned(), size));
        for mode in ["100644", "100755"] {
            let found = of(&format!("{mode} blob {id}       7\ta\0"));
            assert_eq!(found, Some((id.to_owned(), 7)));
        }
        for entry in [
            format!("120000 blob {id}       7\ta\0"),
            format!("160000 commit {id}       -\ta\0"),
            format!("040000 tree {id}       -\ta\0"),
            format!("100644 blob {id}       7\tb\0"),
            format!("100644 blob {id}       -\ta\0"),
            format!("100644 blob {id}\ta\0"),
            format!("100644 blob {id}       7\ta\0100644 blob {id}       7\ta\0"),
            String::new(),
        ] {
            assert_eq!(of(&entry), None, "{entry}");
        }
    }

    /// Runs git in a repository, with input.
    #[expect(clippy::disallowed_methods, reason = "the tests run git")]
    fn git_in(
        repo: &Path,
        arguments: &[&str],
        input: impl FnOnce(&mut std::process::ChildStdin),
    ) -> String {
        let mut child = std::process::Command::new("git")
            .args(arguments)
            .env("GIT_DIR", repo)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("git runs");
        input(&mut child.stdin.take().expect("a pipe"));
        let output = child.wait_with_output().expect("git runs");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    fn write_zeros(to: &mut std::process::ChildStdin, mebibytes: usize) {
        use std::io::Write as _;
        let zeros = vec![0x20; 1 << 20];
        for _ in 0..mebibytes {
            to.write_all(&zeros).expect("written");
        }
    }

    #[test]
    fn a_raw_file_that_is_too_large_is_refused_before_it_is_read() {
        let root = tempfile::tempdir().expect("a directory");
        let repo = root.path().join("x.git");
        git_in(&repo, &["init", "-q", "--bare"], |_| ());
        let write = ["hash-object", "-w", "--stdin"];
        let large = git_in(&repo, &write, |input| write_zeros(input, 20));
        let small = git_in(&repo, &write, |input| write_zeros(input, 1));
        let tree = git_in(&repo, &["mktree"], |input| {
            use std::io::Write as _;
            let text = format!("100644 blob {large}\tlarge\n100644 blob {small}\tsmall\n");
            input.write_all(text.as_bytes()).expect("written");
        });
        let people = "author a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\n";
        let commit = |mebibytes| {
            let words = ["hash-object", "-t", "commit", "-w", "--stdin"];
            git_in(&repo, &words, |input| {
                use std::io::Write as _;
                let start = format!("tree {tree}\n{people}");
                input.write_all(start.as_bytes()).expect("written");
                write_zeros(input, mebibytes);
            })
        };
        let publish = |commit: &str| {
            git_in(
                &repo,
                &["update-ref", "refs/heads/_working", commit],
                |_| (),
            );
        };
        publish(&commit(0));
        // Its size can be read, its content cannot.
        let file = repo.join("objects").join(&large[..2]).join(&large[2..]);
        let half = fs_err::read(&file).expect("read").len() / 2;
        fs_err::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("set");
        let opened = fs_err::OpenOptions::new()
            .write(true)
            .open(&file)
            .expect("opened");
        opened.set_len(half as u64).expect("cut");
        let refused = read_raw(&repo, "large").expect_err("too large");
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
        let read = read_raw(&repo, "small").expect("read");
        assert_eq!(read.len(), 1 << 20);
        // Other objects are limited by the memory of git.
        publish(&commit(160));
        let refused = read_raw(&repo, "small").expect_err("too large");
        assert_eq!(refused.status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_download_continues_where_it_ended() {
        let from = |range: &'static str| {
            let header = HeaderValue::from_static(range);
            from_range(&HeaderMap::from_iter([(RANGE, header)]), 10).map_err(|error| error.status)
        };
        assert_eq!(from("bytes=4-"), Ok(Some(4)));
        assert_eq!(from("bytes=10-"), Err(StatusCode::RANGE_NOT_SATISFIABLE));
        for other in [
            "bytes=0-4",
            "bytes=-4",
            "bytes=1-2,4-",
            "bits=1-",
            "bytes=x-",
        ] {
            assert_eq!(from(other), Ok(None), "{other}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        for directory in [&inside, &outside] {
            fs_err::create_dir(directory).expect("created");
        }
        fs_err::write(outside.join("secret"), "x").expect("written");
        fs_err::write(inside.join("file"), "four").expect("written");
        std::os::unix::fs::symlink(&outside, inside.join("folder")).expect("linked");
        std::os::unix::fs::symlink(outside.join("secret"), inside.join("link")).expect("linked");
        assert_eq!(open_below(&inside, "file").expect("opened").1, 4);
        for path in ["folder/secret", "link", "file/x", "none", "folder"] {
            let error = open_below(&inside, path).expect_err(path);
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{path}: {error}");
        }
    }
}
