//! Files and directories with std's behaviour, on fibers, threads and in futures.

use std::io::{BufRead, BufReader, ErrorKind, Result, SeekFrom};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::colours::{in_every_colour, poll_by_hand, poll_once};
use futures_lite::StreamExt;
use osier::fs::{self, File};

/// A directory for one test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("osier-fs-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Dir(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A test of its own process: it takes away the address space for the stacks of threads.
#[cfg(target_os = "linux")]
#[test]
fn a_call_whose_thread_does_not_start_is_an_error_and_the_next_one_works() {
    let test = "fs::a_call_whose_thread_does_not_start_is_an_error_and_the_next_one_works";
    let child = testkit::in_a_child(test, || {
        let dir = Dir::new();
        let path = dir.path("a");
        let std = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        // A plain thread makes the calls itself.
        let plain = File::from(std.try_clone().unwrap());
        let alone = testkit::without_room_for_a_thread(|| {
            plain
                .set_len(0)
                .and_then(|()| plain.sync_all())
                .and_then(|()| plain.metadata())
        });
        assert_eq!(alone.unwrap().len(), 0);

        let runtime = osier::Runtime::builder().workers(1).watchdog(None).build().unwrap();
        runtime.run(|| {
            use std::io::{Read, Seek, Write};
            let mut file = File::from(std);
            // Whatever the first calls allocate is there.
            file.seek(SeekFrom::Start(0)).unwrap();
            let (written, metadata, read) = testkit::without_room_for_a_thread(|| {
                let written = file.write(b"lost");
                let metadata = file.metadata().map(drop);
                let read = std::fs::File::open("/proc/self/mem")
                    .map(File::from)
                    .and_then(|mut file| file.read(&mut [0; 1]));
                (written, metadata, read)
            });
            for error in [written.unwrap_err(), metadata.unwrap_err(), read.unwrap_err()] {
                assert!(error.to_string().contains("cannot start a thread"), "{error}");
            }
            file.write_all(b"kept").unwrap();
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "kept");
        });
    });
    if let Some(child) = child {
        assert!(child.status.success(), "{child:?}");
    }
}

#[test]
fn every_function_does_what_stds_does() {
    use std::io::{Seek as _, Write as _};
    let all = || {
        let dir = Dir::new();
        let (one, two, deep) = (dir.path("one"), dir.path("two"), dir.path("a/b/c"));
        fs::write(&one, "hello")?;
        assert_eq!(
            (fs::read(&one)?, fs::read_to_string(&one)?),
            (b"hello".to_vec(), "hello".into())
        );
        assert_eq!(fs::copy(&one, &two)?, 5);
        fs::rename(&two, dir.path("three"))?;
        assert!(fs::exists(dir.path("three"))? && !fs::exists(&two)?);
        fs::hard_link(&one, &two)?;
        assert_eq!(fs::metadata(&two)?.len(), 5);
        std::os::unix::fs::symlink(&one, dir.path("link"))?;
        assert!(fs::symlink_metadata(dir.path("link"))?.is_symlink() && fs::metadata(dir.path("link"))?.is_file());
        assert_eq!(fs::read_link(dir.path("link"))?, one);
        assert_eq!(fs::canonicalize(dir.path("link"))?, std::fs::canonicalize(&one)?);
        let mut permissions = fs::metadata(&one)?.permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&one, permissions)?;
        assert!(fs::metadata(&one)?.permissions().readonly());
        fs::create_dir_all(&deep)?;
        fs::create_dir(deep.join("d"))?;
        fs::remove_dir(deep.join("d"))?;
        fs::remove_dir_all(dir.path("a"))?;
        fs::remove_file(&one)?;
        let mut names: Vec<_> = fs::read_dir(&dir.0)?.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["link", "three", "two"]);
        assert_eq!(fs::read(&one).unwrap_err().kind(), ErrorKind::NotFound);
        let mut new = fs::File::create_new(&one)?;
        new.write_all(b"new")?;
        new.rewind()?;
        assert_eq!(std::io::read_to_string(new)?, "new");
        assert_eq!(fs::File::create_new(&one).unwrap_err().kind(), ErrorKind::AlreadyExists);
        Result::Ok(())
    };
    all().unwrap();
    osier::run(all).unwrap();
}

#[test]
fn the_same_as_futures() {
    in_every_colour(|| async {
        let dir = Dir::new();
        let (one, two) = (dir.path("one"), dir.path("two"));
        fs::write_async(&one, "hello").await.unwrap();
        fs::rename_async(&one, &two).await.unwrap();
        assert_eq!(fs::read_to_string_async(&two).await.unwrap(), "hello");
        assert_eq!(fs::metadata_async(&two).await.unwrap().len(), 5);
        assert_eq!(fs::read_async(&one).await.unwrap_err().kind(), ErrorKind::NotFound);
        let mut entries = fs::read_dir_async(&dir.0).await.unwrap();
        let entry = entries.next().await.unwrap().unwrap();
        assert_eq!((entry.path(), entry.file_name()), (two, "two".into()));
        assert!(entry.file_type_async().await.unwrap().is_file());
        assert_eq!(entry.metadata_async().await.unwrap().len(), 5);
        assert!(entries.next().await.is_none());
        assert!(entries.next().await.is_none(), "asked again");
    });
}

#[test]
fn a_directory_of_many_files_is_read_in_pieces() {
    let dir = Dir::new();
    for number in 0..500 {
        std::fs::write(dir.path(&number.to_string()), "").unwrap();
    }
    let count = || {
        let names = fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(count(), 500);
    assert_eq!(osier::run(count), 500);
}

#[test]
fn a_file_is_read_written_and_sought_in() {
    use std::io::{Read as _, Seek as _, Write as _};
    let all = || {
        let dir = Dir::new();
        let path = dir.path("file");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.write_all(b"0123456789")?;
        assert_eq!(
            std::fs::read(&path)?,
            b"0123456789",
            "what a write returned from is in the file"
        );
        assert_eq!(file.seek(SeekFrom::Start(2))?, 2);
        let mut two = [0; 2];
        file.read_exact(&mut two)?;
        assert_eq!(&two, b"23");
        assert_eq!(file.stream_position()?, 4);
        file.write_all(b"__")?;
        assert_eq!(file.seek(SeekFrom::End(-1))?, 9);
        file.read_exact(&mut two[..1])?;
        assert_eq!((two[0], file.read(&mut two)?), (b'9', 0));
        file.set_len(6)?;
        file.sync_all()?;
        file.sync_data()?;
        assert_eq!(file.metadata()?.len(), 6);
        let mut clone = file.try_clone()?;
        clone.rewind()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        assert_eq!(text, "0123__");
        let mut std = file.into_std()?;
        assert_eq!(std.stream_position()?, 6);
        let mut appending = File::options().append(true).open(&path)?;
        appending.write_all(b"!")?;
        assert_eq!(fs::read(&path)?, b"0123__!");
        assert_eq!(File::create_new_error(&path), ErrorKind::AlreadyExists);
        assert_eq!(File::create(&path)?.metadata()?.len(), 0);
        Result::Ok(())
    };
    all().unwrap();
    osier::run(all).unwrap();
}

trait CreateNewError {
    fn create_new_error(path: &std::path::Path) -> ErrorKind;
}

impl CreateNewError for File {
    fn create_new_error(path: &std::path::Path) -> ErrorKind {
        let opened = File::options().write(true).create_new(true).open(path);
        opened.unwrap_err().kind()
    }
}

#[test]
fn a_file_is_read_written_and_sought_in_by_futures() {
    use futures_lite::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
    in_every_colour(|| async {
        let dir = Dir::new();
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .open_async(dir.path("file"))
            .await;
        let mut file = file.unwrap();
        for number in 0..100_u8 {
            file.write_all(&[number; 1000]).await.unwrap();
        }
        file.flush().await.unwrap();
        assert_eq!(file.metadata_async().await.unwrap().len(), 100_000);
        file.seek(SeekFrom::Start(50_000)).await.unwrap();
        let mut thousand = [0; 1000];
        file.read_exact(&mut thousand).await.unwrap();
        assert_eq!(thousand, [50; 1000]);
        file.write_all(&[200; 1000]).await.unwrap();
        file.set_len_async(60_000).await.unwrap();
        file.seek(SeekFrom::Start(51_500)).await.unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 8_500);
        assert!(rest[..500].iter().all(|&byte| byte == 200) && rest[500..1500].iter().all(|&byte| byte == 52));
        file.close().await.unwrap();
    });
}

#[test]
fn a_write_that_fails_behind_is_told_by_the_next_call() {
    use futures_lite::AsyncWriteExt as _;
    let dir = Dir::new();
    std::fs::write(dir.path("file"), "x").unwrap();
    let mut read_only = File::open(dir.path("file")).unwrap();
    poll_by_hand(async {
        read_only.write_all(b"y").await.unwrap();
        let error = read_only.flush().await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(9), "{error}");
        read_only.flush().await.unwrap();
    });
    // The blocking face waits for it.
    assert_eq!(
        std::io::Write::write(&mut read_only, b"y").unwrap_err().raw_os_error(),
        Some(9)
    );
    assert_eq!(
        osier::run(|| std::io::Write::write(&mut read_only, b"y"))
            .unwrap_err()
            .raw_os_error(),
        Some(9)
    );
}

#[test]
fn what_was_written_is_in_the_file_although_the_future_and_the_file_are_gone() {
    use futures_lite::AsyncWriteExt as _;
    let dir = Dir::new();
    let mut file = File::create(dir.path("file")).unwrap();
    poll_by_hand(file.write_all(&[7; 10_000])).unwrap();
    drop(file);
    let path = dir.path("file");
    testkit::eventually("the bytes", || std::fs::metadata(&path).unwrap().len() == 10_000);
}

#[test]
fn a_read_that_is_dropped_leaves_its_bytes_to_the_next() {
    use futures_lite::AsyncReadExt as _;
    // A FIFO makes reads wait for as long as the test wants, with no bytes in memory before.
    let dir = Dir::new();
    let path = dir.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let writing = std::thread::spawn({
        let path = path.clone();
        move || std::fs::File::options().write(true).open(path).unwrap()
    });
    let mut file = File::open(&path).unwrap();
    let mut writer = writing.join().unwrap();
    {
        let mut buf = [0; 16];
        let mut reading = pin!(file.read(&mut buf));
        assert!(poll_once(reading.as_mut()).is_pending());
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    osier::run(|| {
        osier::scope(|scope| {
            let file = &file;
            let reading = scope.spawn(move || {
                let mut buf = [0; 16];
                let cancelled = std::io::Read::read(&mut &*file, &mut buf).unwrap_err();
                sender.send(osier::Cancelled::is(&cancelled)).unwrap();
            });
            crate::given::others_wait();
            reading.cancel();
            let _ = reading.join();
        });
    });
    assert!(receiver.recv().unwrap());
    std::io::Write::write_all(&mut writer, b"hello").unwrap();
    drop(writer);
    let mut text = String::new();
    poll_by_hand(file.read_to_string(&mut text)).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn an_operation_that_was_never_polled_does_nothing() {
    let dir = Dir::new();
    drop(fs::write_async(dir.path("file"), "x"));
    drop(File::create_async(dir.path("file")));
    // A thread of the pool has its chance to go wrong.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!fs::exists(dir.path("file")).unwrap());
}

#[test]
fn other_fibers_run_while_one_waits_for_a_file() {
    let dir = Dir::new();
    let path = dir.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let reading = runtime.spawn({
        let path = path.clone();
        // It waits in open(2) for the writer.
        move || fs::read(path)
    });
    let writing = runtime.spawn(move || fs::write(path, "through"));
    writing.join().unwrap().unwrap();
    assert_eq!(reading.join().unwrap().unwrap(), b"through");
}

#[test]
fn lines_of_a_large_file_come_in_order() {
    let dir = Dir::new();
    let lines: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    fs::write(dir.path("file"), &lines).unwrap();
    osier::run(|| {
        let file = BufReader::new(File::open(dir.path("file")).unwrap());
        let mut count = 0;
        for (number, line) in file.lines().enumerate() {
            assert_eq!(line.unwrap(), format!("line {number}"));
            count += 1;
        }
        assert_eq!(count, 50_000);
    });
}

#[test]
fn a_blocking_call_in_a_callback_on_a_worker_is_refused_before_it_begins() {
    use std::sync::{Arc, mpsc};
    use std::task::{Wake, Waker};
    struct Callback(mpsc::Sender<(ErrorKind, ErrorKind)>, PathBuf);
    impl Wake for Callback {
        fn wake(self: Arc<Self>) {
            let write = fs::write(&self.1, "x").unwrap_err().kind();
            let _ = self.0.send((write, fs::remove_file(&self.1).unwrap_err().kind()));
        }
    }
    let dir = Dir::new();
    let (sender, receiver) = mpsc::channel();
    let waker = Waker::from(Arc::new(Callback(sender, dir.path("file"))));
    let kinds = osier::run(move || {
        let mut sleep = pin!(osier::time::Sleep::new(Duration::from_millis(5)));
        assert!(
            sleep
                .as_mut()
                .poll(&mut std::task::Context::from_waker(&waker))
                .is_pending()
        );
        osier::unblock(move || receiver.recv_timeout(Duration::from_secs(20)).unwrap())
    });
    assert_eq!(kinds, (ErrorKind::WouldBlock, ErrorKind::WouldBlock));
    assert!(!fs::exists(dir.path("file")).unwrap());
}

#[test]
fn bytes_that_a_cancelled_read_has_taken_from_a_pipe_outlast_a_write() {
    use std::io::{Read as _, Seek as _, Write as _};
    let dir = Dir::new();
    let path = dir.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    osier::run(|| {
        // Open for both, so no end waits for the other.
        let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
        let read = osier::timeout(Duration::from_millis(10), || pipe.read(&mut [0; 16]).map(drop));
        assert!(!matches!(read, Ok(Ok(()))), "there is nothing to read");
        let mut other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        other.write_all(b"abcd").unwrap();
        let mut bytes = [0; 2];
        pipe.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ab");
        // They have no place in the pipe to go back to.
        assert_eq!(
            pipe.seek(SeekFrom::Start(0)).unwrap_err().kind(),
            ErrorKind::NotSeekable
        );
        pipe.write_all(b"ef").unwrap();
        let mut bytes = [0; 4];
        pipe.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"cdef");
    });
}

/// A test of its own process: it limits the size of files.
#[cfg(all(target_os = "linux", feature = "signal"))]
#[test]
fn a_write_that_stops_half_way_returns_its_count_and_a_retry_repeats_no_byte() {
    use osier::signal::{Signal, Signals};
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::io::{BufWriter, Write as _};
    let test = "fs::a_write_that_stops_half_way_returns_its_count_and_a_retry_repeats_no_byte";
    let child = testkit::in_a_child(test, || {
        let _not_killed = Signals::new([Signal::from_raw(rustix::process::Signal::XFSZ.as_raw())]).unwrap();
        let limit = |bytes| {
            let (current, maximum) = (Some(bytes), None);
            setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
        };
        let check = || {
            let dir = Dir::new();
            let bytes: Vec<u8> = (0..150_000_u32).map(|number| (number % 251) as u8).collect();
            limit(100_000);
            let file = File::create(dir.path("file")).unwrap();
            let mut file = BufWriter::with_capacity(1 << 20, file);
            file.write_all(&bytes).unwrap();
            assert_eq!(file.flush().unwrap_err().kind(), ErrorKind::FileTooLarge);
            limit(1_000_000);
            file.flush().unwrap();
            assert!(std::fs::read(dir.path("file")).unwrap() == bytes);
        };
        check();
        osier::run(check);
    });
    if let Some(child) = child {
        assert!(child.status.success(), "{child:?}");
    }
}

#[test]
fn a_clone_waits_for_the_write_that_uses_the_position() {
    use futures_lite::AsyncWriteExt as _;
    use std::io::Seek as _;
    let dir = Dir::new();
    let path = dir.path("file");
    osier::run(|| {
        let mut file = File::create(&path).unwrap();
        let mut clone = file.try_clone().unwrap();
        for round in 1..=4 {
            osier::block_on(file.write_all(&[7; 200_000])).unwrap();
            assert_eq!(clone.stream_position().unwrap(), round * 200_000);
        }
        // Each converts to a file of its own.
        let (mut one, mut two) = (file.into_std().unwrap(), clone.into_std().unwrap());
        one.rewind().unwrap();
        assert_eq!(two.stream_position().unwrap(), 0);
    });
}

#[test]
fn a_large_read_of_a_file_in_memory_comes_in_pieces() {
    use std::io::Read as _;
    let dir = Dir::new();
    let path = dir.path("file");
    let bytes: Vec<u8> = (0..1 << 20).map(|number: u32| (number % 251) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    osier::run(|| {
        let mut file = File::open(&path).unwrap();
        let mut all = vec![0; 2 << 20];
        assert!((1..=256 << 10).contains(&file.read(&mut all).unwrap()));
        let std = std::fs::File::open(&path).unwrap();
        let mut at = 0;
        loop {
            let count = osier::io::read_at(&std, at as u64, &mut all[at..]).unwrap();
            assert!(count <= 256 << 10);
            at += count;
            if count == 0 {
                break;
            }
        }
        assert!(all[..at] == bytes);
    });
}

#[test]
fn a_read_of_a_pipe_that_was_given_up_holds_up_no_write() {
    use std::io::{Read as _, Write as _};
    let dir = Dir::new();
    let path = dir.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    osier::run(|| {
        let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
        let read = osier::timeout(Duration::from_millis(10), || pipe.read(&mut [0; 16]).map(drop));
        assert!(!matches!(read, Ok(Ok(()))), "there is nothing to read");
        osier::timeout(testkit::DEADLINE, || {
            pipe.metadata().unwrap();
            pipe.write_all(b"hello").unwrap();
            pipe.flush().unwrap();
        })
        .unwrap();
        // The read that was given up has them.
        let mut bytes = [0; 5];
        pipe.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        pipe.into_std().unwrap();
    });
}

#[test]
fn a_pipe_that_is_opened_with_a_flag_of_the_system_waits_without_a_thread() {
    use std::io::{Read as _, Write as _};
    let dir = Dir::new();
    let path = dir.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    osier::run(|| {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        // It does not wait for a writer.
        let pipe = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(&path)
            .unwrap();
        let mut pipe = osier::io::Async::new(pipe.into_std().unwrap()).unwrap();
        let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let nothing = osier::timeout(Duration::from_millis(10), || pipe.read(&mut [0; 5]).map(drop));
        assert!(!matches!(nothing, Ok(Ok(()))));
        writer.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        pipe.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    });
}

#[test]
fn the_type_of_an_entry_needs_no_thread_of_the_pool() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("folder")).unwrap();
    osier::run(|| {
        let entry = fs::read_dir(&dir.0).unwrap().next().unwrap().unwrap();
        let std::task::Poll::Ready(kind) = poll_once(pin!(entry.file_type_async())) else {
            panic!("it is known");
        };
        assert!(kind.unwrap().is_dir() && entry.file_type().unwrap().is_dir());
    });
}
