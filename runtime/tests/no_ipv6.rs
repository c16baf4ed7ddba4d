//! A machine without IPv6: the kernel makes no sockets of that family. A filter of system calls plays that kernel, in processes of their own.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use osier::net::{TcpListener, TcpStream, UdpSocket};

/// Makes socket(2) fail for AF_INET6 on this thread and those that it starts.
fn forbid_ipv6() {
    // The offsets of `nr` and of the first argument in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const FAMILY: u32 = 16;
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset);
    let answer = |value| step(libc::BPF_RET | libc::BPF_K, 0, value);
    let unless = |value: u32, skipped| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skipped, value);
    let mut steps = [
        load(NUMBER),
        unless(libc::SYS_socket as u32, 3),
        load(FAMILY),
        unless(libc::AF_INET6 as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: prctl(2) reads the program, whose steps live until it returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

fn step(code: u32, otherwise: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: otherwise,
        k: value,
    }
}

/// The IPv6 address, then the IPv4 one, as a resolver gives them.
fn both(v4: SocketAddr) -> [SocketAddr; 2] {
    [SocketAddr::from((Ipv6Addr::LOCALHOST, v4.port())), v4]
}

fn is_unsupported<T>(outcome: io::Result<T>) -> bool {
    outcome.is_err_and(|error| error.raw_os_error() == Some(libc::EAFNOSUPPORT))
}

#[test]
fn the_next_address_is_tried() {
    let child = testkit::in_a_child("the_next_address_is_tried", || {
        forbid_ipv6();
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        assert!(is_unsupported(TcpListener::bind("[::1]:0")), "the filter works");
        let blocking = move || {
            let listener = TcpListener::bind(&both(free)[..]).unwrap();
            let address = listener.local_addr().unwrap();
            drop(TcpListener::bind_reuseport(&both(free)[..]).unwrap());
            drop(TcpStream::connect(&both(address)[..]).unwrap());
            drop(TcpStream::connect(("localhost", address.port())).unwrap());
            assert!(is_unsupported(TcpStream::connect(both(address)[0])));
            let udp = UdpSocket::bind(&both(free)[..]).unwrap();
            udp.connect(&both(address)[..]).unwrap();
            assert!(is_unsupported(udp.connect(both(address)[0])));
            assert!(is_unsupported(udp.send_to(b"x", both(address)[0])));
        };
        blocking();
        osier::run(blocking);
        osier::run(move || {
            osier::block_on(async move {
                let listener = TcpListener::bind_async(&both(free)[..]).await.unwrap();
                let address = listener.local_addr().unwrap();
                drop(TcpListener::bind_reuseport_async(&both(free)[..]).await.unwrap());
                drop(TcpStream::connect_async(&both(address)[..]).await.unwrap());
                assert!(is_unsupported(TcpStream::connect_async(both(address)[0]).await));
                let udp = UdpSocket::bind_async(&both(free)[..]).await.unwrap();
                udp.connect_async(&both(address)[..]).await.unwrap();
            });
        });
    });
    if let Some(child) = child {
        assert!(child.status.success(), "{child:?}");
    }
}
