//! Stream sockets with callbacks. The sockets are non-blocking; a call that would block waits for readiness as a
//! foreign descriptor does.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

use osier_poll::Interest;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Type};

use super::file::{lend, lock};
use super::io_queue::Handle;
use super::registry::QueueState;
use super::request::{Awaiting, Request};
use super::{CancelHandle, Refused, Status, result};
use crate::io::ready_async;
use crate::net::system::{self, NO_SIGNAL};
use crate::wait::socket::attempt;

/// The accept backlog. The system may have a lower limit.
const BACKLOG: i32 = 4096;

/// A TCP socket that listens, is connected, or is neither yet.
///
/// One connect or accept, one send and one receive may be outstanding at the same time. A call for which the socket
/// is in the wrong state calls back with an error. Clones are the same socket.
///
/// ```
/// use osier::callbacks::{IoQueue, Socket};
/// use std::io::Write;
/// use std::sync::mpsc;
///
/// let queue = IoQueue::new(0)?;
/// let listener = Socket::new(&queue);
/// listener.listen(([127, 0, 0, 1], 0).into())?;
/// let mut peer = std::net::TcpStream::connect(listener.local_addr()?)?;
/// peer.write_all(b"hello")?;
///
/// let (sender, receiver) = mpsc::channel();
/// listener.accept(move |_status, accepted| {
///     let socket = accepted.unwrap();
///     let receiving = socket.recv(vec![0; 16], move |_status, received, mut buffer| {
///         buffer.truncate(received.unwrap());
///         sender.send(buffer).unwrap();
///     });
///     receiving.unwrap();
/// })?;
/// let received = loop {
///     queue.iterate()?;
///     if let Ok(received) = receiver.try_recv() {
///         break received;
///     }
/// };
/// assert_eq!(received, b"hello");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct Socket(Arc<Inner>);

struct Inner {
    queue: Arc<QueueState>,
    socket: Mutex<Option<Arc<socket2::Socket>>>,
    /// The connect or the accept.
    opens: Arc<Request<()>>,
    sends: Arc<Request<()>>,
    receives: Arc<Request<()>>,
}

impl Socket {
    /// Makes a socket that neither listens nor is connected. Its callbacks run on `queue`.
    pub fn new(queue: &Handle) -> Socket {
        Socket::of(queue.shared(), None)
    }

    fn of(queue: &Arc<QueueState>, socket: Option<socket2::Socket>) -> Socket {
        Socket(Arc::new(Inner {
            queue: Arc::clone(queue),
            socket: Mutex::new(socket.map(Arc::new)),
            opens: Request::new(queue),
            sends: Request::new(queue),
            receives: Request::new(queue),
        }))
    }

    /// Listens on `address`. Port 0 means any free port. Connections of an earlier listener in TIME_WAIT do not
    /// prevent it.
    ///
    /// # Errors
    ///
    /// The system's error for the address, or `AlreadyExists` for a socket that already listens or connects.
    pub fn listen(&self, address: SocketAddr) -> io::Result<()> {
        let mut slot = self.slot();
        if slot.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let socket = open(address)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        *slot = Some(Arc::new(socket));
        Ok(())
    }

    /// The address of the local end.
    ///
    /// # Errors
    ///
    /// `NotConnected` for a socket that neither listens nor is connected.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket()?.local_addr()?;
        address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// `NotConnected` for a socket that is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket()?.peer_addr()?;
        address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Connects to `address`.
    ///
    /// # Errors
    ///
    /// [`Refused`] while a connect or an accept is outstanding, or once the queue is shut down.
    pub fn connect<C>(&self, address: SocketAddr, callback: C) -> Result<CancelHandle, Refused>
    where
        C: FnOnce(Status, io::Result<()>) + Send + 'static,
    {
        let this = self.clone();
        let connecting = async move {
            let mut connecting = this.begin_connect(address)?;
            finish_connect(&connecting.socket, address).await?;
            connecting.is_connected = true;
            Ok(())
        };
        self.open_with(connecting, |status, connected| {
            callback(status, result(status, connected));
        })
    }

    /// Accepts a connection.
    ///
    /// # Errors
    ///
    /// [`Refused`] while a connect or an accept is outstanding, or once the queue is shut down.
    pub fn accept<C>(&self, callback: C) -> Result<CancelHandle, Refused>
    where
        C: FnOnce(Status, io::Result<Socket>) + Send + 'static,
    {
        let (listener, queue) = (self.socket(), Arc::clone(&self.0.queue));
        let accepting = async move {
            let listener = listener?;
            loop {
                match system::accept(listener.as_fd()) {
                    Ok((socket, _)) => return Ok(Socket::of(&queue, Some(socket.into()))),
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => drop(ready_async(&*listener, Interest::READABLE).await?),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                        _ => return Err(error),
                    },
                }
            }
        };
        self.open_with(accepting, |status, accepted| callback(status, result(status, accepted)))
    }

    /// Sends once. The callback gets the number of bytes, which may be less than the buffer's length, and the buffer.
    ///
    /// # Errors
    ///
    /// [`Refused`], which holds the buffer, while a send is outstanding or once the queue is shut down.
    pub fn send<C>(&self, buffer: Vec<u8>, callback: C) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let send = |socket: &socket2::Socket, buffer: &mut [u8]| Ok(rustix::net::send(socket, buffer, NO_SIGNAL)?);
        self.transfer(&self.0.sends, Interest::WRITABLE, send, buffer, callback)
    }

    /// Receives once. The callback gets the number of bytes, 0 when the peer has closed its sending direction, and
    /// the buffer.
    ///
    /// # Errors
    ///
    /// [`Refused`], which holds the buffer, while a receive is outstanding or once the queue is shut down.
    pub fn recv<C>(&self, buffer: Vec<u8>, callback: C) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let receive = |mut socket: &socket2::Socket, buffer: &mut [u8]| socket.read(buffer);
        self.transfer(&self.0.receives, Interest::READABLE, receive, buffer, callback)
    }

    /// Closes the socket, from any thread, and cancels its outstanding requests. The last of these requests closes
    /// the descriptor. The socket may then connect or listen again.
    pub fn close(&self) {
        let socket = self.slot().take();
        for request in [&self.0.opens, &self.0.sends, &self.0.receives] {
            request.cancel_any();
        }
        drop(socket);
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<socket2::Socket>>> {
        self.0.socket.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn socket(&self) -> io::Result<Arc<socket2::Socket>> {
        self.slot().clone().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Removes a socket that failed to connect, unless another thread has closed it.
    fn forget(&self, socket: &Arc<socket2::Socket>) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, socket)) {
            slot.take();
        }
    }

    fn begin_connect(&self, address: SocketAddr) -> io::Result<Connecting> {
        let mut slot = self.slot();
        if slot.is_some() {
            return Err(Errno::ISCONN.into());
        }
        let socket = Arc::new(open(address)?);
        *slot = Some(Arc::clone(&socket));
        Ok(Connecting {
            of: self.clone(),
            socket,
            is_connected: false,
        })
    }

    fn open_with<F, T, C>(&self, future: F, callback: C) -> Result<CancelHandle, Refused>
    where
        F: Future<Output = io::Result<T>> + Send + 'static,
        T: Send + 'static,
        C: FnOnce(Status, Option<io::Result<T>>) + Send + 'static,
    {
        let work = Awaiting::new(future, callback);
        self.0.opens.begin(work).map_err(|refused| refused.map(drop))
    }

    fn transfer<C>(
        &self,
        request: &Arc<Request<()>>,
        interest: Interest,
        call: fn(&socket2::Socket, &mut [u8]) -> io::Result<usize>,
        buffer: Vec<u8>,
        callback: C,
    ) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let socket = self.socket();
        lend(request, buffer, callback, |lent| async move {
            let socket = socket?;
            loop {
                if let Some(done) = attempt(|| call(&socket, &mut lock(&lent))) {
                    return done;
                }
                ready_async(&*socket, interest).await?;
            }
        })
    }
}

/// A connect that is under way. If it ends without a connection, dropping this removes its own descriptor, and never
/// a newer one of the same socket.
struct Connecting {
    of: Socket,
    socket: Arc<socket2::Socket>,
    is_connected: bool,
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if !self.is_connected {
            self.of.forget(&self.socket);
        }
    }
}

osier_queue::impl_debug!(Socket, self => { socket: *self.slot() });

/// Opens a non-blocking stream socket for the family of `address`.
fn open(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

async fn finish_connect(socket: &socket2::Socket, address: SocketAddr) -> io::Result<()> {
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        connected => return connected,
    }
    ready_async(socket, Interest::WRITABLE).await?;
    socket.take_error()?.map_or(Ok(()), Err)
}
