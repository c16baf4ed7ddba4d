# Builds the server in one image and runs it in another:
#
#   docker build -t osier .
#   docker run -p 8080:8080 -v "$PWD/public:/srv/www:ro" osier
#
# /etc/osier/site.toml is the configuration. Mount another one over it.

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /usr/src/osier
COPY . .
RUN cargo build --release --locked --package osier-server
RUN install -D target/release/osier /image/usr/bin/osier \
 && install -D --mode=644 packaging/docker/site.toml /image/etc/osier/site.toml \
 && install -D packaging/docker/health /image/usr/lib/osier/health \
 && install -D --mode=644 packaging/docker/index.html /image/srv/www/index.html \
 && install -D --mode=644 --target-directory=/image/usr/share/doc/osier LICENSE-APACHE LICENSE-MIT \
 && cargo run --locked --package xtask -- deny notices > /image/usr/share/doc/osier/third-party.txt

FROM debian:12.11-slim
COPY --from=build /image/ /
RUN groupadd --gid 8080 osier \
 && useradd --uid 8080 --gid 8080 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin osier
USER 8080:8080
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s CMD ["/usr/lib/osier/health"]
ENTRYPOINT ["/usr/bin/osier"]
CMD ["/etc/osier/site.toml"]
