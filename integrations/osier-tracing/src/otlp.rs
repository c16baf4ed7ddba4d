//! Sends spans to a collector, by OTLP over HTTP (feature `otlp`). It needs no tokio runtime: the exporter sends over Osier's sockets, on
//! the thread of the batch processor of `opentelemetry_sdk`.
//!
//! ```no_run
//! use osier_tracing::otlp;
//! use tracing_subscriber::layer::SubscriberExt;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! let provider = otlp::provider("shop", "http://127.0.0.1:4318/v1/traces")?;
//! let spans = otlp::layer(&provider);
//! osier_tracing::Fibers::new(tracing_subscriber::registry().with(spans)).init();
//! osier::run(|| {
//!     // … serve; in a handler:
//!     let span = tracing::info_span!("order");
//!     otlp::set_parent(&span, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
//!     span.in_scope(|| tracing::info!("shipped"));
//! });
//! provider.shutdown()?; // sends the last spans
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! In osier-web, behind `wrap::trace()`, `request.trace()` displays as such a `traceparent`.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use osier_ureq::ureq::Agent;
use osier_ureq::ureq::config::Config;
use tracing::Span;
use tracing_core::Subscriber;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::registry::LookupSpan;

pub use {opentelemetry, opentelemetry_sdk};

/// How long a collector may take for a batch.
const PATIENCE: Duration = Duration::from_secs(10);

/// An HTTP client over Osier's sockets, for exporters of `opentelemetry-otlp`.
///
/// # Suspends
///
/// Its calls suspend a fiber, and block a plain thread.
#[derive(Clone, Debug)]
pub struct Client(Agent);

impl Default for Client {
    fn default() -> Client {
        Client::new(PATIENCE)
    }
}

impl Client {
    /// Makes a client with this timeout for each call.
    pub fn new(timeout: Duration) -> Client {
        let config = Config::builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .build();
        Client(osier_ureq::with(config))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let response = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = response.into_parts();
        Ok(Response::from_parts(head, body.read_to_vec()?.into()))
    }
}

/// Makes a provider of tracers that sends batches of spans to `endpoint`, the whole URL of a collector. The spans carry the name
/// `service`.
///
/// # Errors
///
/// The endpoint is not a valid URL.
pub fn provider(service: &str, endpoint: &str) -> Result<SdkTracerProvider, Box<dyn Error + Send + Sync>> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::default())
        .with_endpoint(endpoint)
        .build()?;
    let name = KeyValue::new("service.name", service.to_owned());
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_attribute(name).build())
        .build())
}

/// Makes a layer that passes spans of `tracing` to a provider.
pub fn layer<S>(provider: &SdkTracerProvider) -> OpenTelemetryLayer<S, Tracer>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer().with_tracer(provider.tracer("osier-tracing"))
}

/// Makes a span a child of the one that a field `traceparent` names. Call it before the span is entered. Returns false, and changes
/// nothing, if the field is invalid or the span goes to no provider.
pub fn set_parent(span: &Span, traceparent: &str) -> bool {
    let Some(parent) = parse(traceparent) else { return false };
    span.set_parent(Context::new().with_remote_span_context(parent)).is_ok()
}

/// The field `traceparent` for requests that are made within a span. `None` for a span that goes to no provider.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span().span_context().clone();
    let flags = span.trace_flags().to_u8();
    span.is_valid()
        .then(|| format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()))
}

/// Reads a field of version 00.
fn parse(field: &str) -> Option<SpanContext> {
    let is_fine = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
    let parts: Vec<&str> = field.split('-').collect();
    let [version @ "00", trace, span, flags] = parts[..] else {
        return None;
    };
    let lengths = [version, trace, span, flags].map(str::len);
    if lengths != [2, 32, 16, 2] || !field.bytes().all(is_fine) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}
